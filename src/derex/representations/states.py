"""De-Rex on pairs of successive observations, for fully observed problems: Section 4, while a policy moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.futures import halves_of
from derex.networks.histories import Head, at_each_step
from derex.networks.observations import encoder_of
from derex.representations.base import (
    BonusUse,
    Representation,
    RepresentationState,
    Sizes,
    View,
    no_auxiliary,
    track_nothing,
)
from derex.representations.decomposed import Decomposition
from derex.representations.own import OwnTraining


class ObservationFeatures(eqx.Module):
    """An encoder of the whole observation, and a head with k outputs."""

    encoder: Any
    head: Head

    def __init__(self, sizes: Sizes, width: int, k: int, *, key: PRNGKeyArray):
        encoder_key, head_key = jax.random.split(key)
        self.encoder = encoder_of(list(sizes.observation), width, key=encoder_key)
        self.head = Head(width * len(sizes.observation), k, key=head_key)

    def __call__(self, observation: Any) -> Float[Array, " k"]:
        return self.head(jax.nn.relu(self.encoder(observation)))


class Pair(eqx.Module):
    """f of a state, g of the next; a tied objective has g = f."""

    f: ObservationFeatures
    g: ObservationFeatures | None

    def next(self, observation: Any) -> Float[Array, " k"]:
        """g, or f where they are one."""
        return self.f(observation) if self.g is None else self.g(observation)


@dataclass(frozen=True)
class StatesForm:
    """What is decomposed, by which networks, and how they are trained."""

    decomposition: Decomposition = field(default_factory=Decomposition)
    lambda_b: float = 1.0
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the unroll's mean from the bonus"""
    training: OwnTraining = field(default_factory=OwnTraining)
    width: int = 128
    """units of the hidden layers"""

    def build(self) -> Representation:
        """The record."""
        use = BonusUse(self.lambda_b, self.centre_bonus)
        return Representation(self._init, no_auxiliary, track_nothing, self._observe, self._report, use)

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        k = self.decomposition.k
        f, g = (ObservationFeatures(sizes, self.width, k, key=part) for part in jax.random.split(key))
        networks = Pair(f, None if self.decomposition.tied else g)
        return RepresentationState(None, self.training.begin(networks), self.decomposition.initial(), None)

    def _observe(
        self, state: RepresentationState, view: View, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Learn from the unroll, then say what is rare in it."""
        trajectories = view.trajectories

        def loss(networks: Pair, chosen: Array, key: PRNGKeyArray):
            rows = trajectories.rows(chosen)
            here = jax.tree.map(lambda leaf: leaf[:, :-1], rows.observation)
            there = jax.tree.map(lambda leaf: leaf[:, 1:], rows.observation)
            counted = (~rows.first[:, 1:]).astype(jnp.float32)
            f, g = at_each_step(networks.f, here), at_each_step(networks.next, there)
            estimate = self.decomposition.loss(*halves_of(f, g, counted))
            return estimate.loss, estimate.statistics

        own, tracked = self.training.run(
            state.own, state.tracked, loss, self.decomposition.track, len(trajectories.first), key
        )
        f = at_each_step(own.networks.f, trajectories.observation)
        return RepresentationState(None, own, tracked, None), self.decomposition.bonus(f, tracked)

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return self.decomposition.report(state.tracked)
