"""De-Rex on pairs of successive observations, for fully observed problems: Section 4, while a policy moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex.networks.histories import Head, apply_per_step
from derex.networks.inputs import encode_rows, make_encoder
from derex.representations.base import (
    LAMBDA_B,
    BonusUse,
    Representation,
    RepresentationState,
    RolloutView,
    Sizes,
    check_counts,
    check_weights,
    no_auxiliary,
    track_nothing,
)
from derex.representations.decomposed import DecompositionConfig
from derex.representations.optimised import OptimisedTraining


class ObservationFeatures(eqx.Module):
    """An encoder of the whole observation, and a head with k outputs."""

    encoder: Any
    head: Head

    def __init__(self, sizes: Sizes, width: int, k: int, *, key: PRNGKeyArray):
        encoder_key, head_key = jax.random.split(key)
        self.encoder = make_encoder(list(sizes.observation), width, key=encoder_key)
        self.head = Head(width * len(sizes.observation), k, key=head_key)

    def __call__(self, observation: Any) -> Float[Array, " k"]:
        return self.head(jax.nn.relu(self.encoder(observation)))

    @property
    def reads_rows(self) -> bool:
        """Whether many observations are read quicker together."""
        return self.encoder.reads_rows

    def rows(self, observations: Any) -> Float[Array, "n k"]:
        """Many at once."""
        return jax.vmap(self.head)(jax.nn.relu(encode_rows(self.encoder, observations)))


class ObservationSequence(NamedTuple):
    """What is learnt from: (B, S, …)."""

    observation: Any
    first: Bool[Array, "B S"]


class StateNetworks(eqx.Module):
    """f of a state, g of the next; a tied objective has g = f."""

    f: ObservationFeatures
    g: ObservationFeatures | None

    @property
    def next(self) -> ObservationFeatures:
        """g, or f where they are one."""
        return self.f if self.g is None else self.g

    def pairs(
        self, steps: ObservationSequence
    ) -> tuple[Float[Array, "B t k"], Float[Array, "B t k"], Float[Array, "B t"]]:
        """f of each step but the last, g of the one after it, and whether they are of one episode."""
        here = jax.tree.map(lambda leaf: leaf[:, :-1], steps.observation)
        there = jax.tree.map(lambda leaf: leaf[:, 1:], steps.observation)
        counted = (~steps.first[:, 1:]).astype(jnp.float32)
        return apply_per_step(self.f, here), apply_per_step(self.next, there), counted


@dataclass(frozen=True)
class StatesConfig:
    """What is decomposed, by which networks, and how they are trained."""

    decomposition: DecompositionConfig = field(default_factory=DecompositionConfig)
    lambda_b: float = LAMBDA_B
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the unroll's mean from the bonus"""
    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of the hidden layers"""

    def __post_init__(self) -> None:
        check_counts("", width=self.width)
        check_weights("", lambda_b=self.lambda_b)

    def build(self) -> Representation:
        """The record."""
        use = BonusUse(self.lambda_b, self.centre_bonus)
        return Representation(self._init, no_auxiliary, track_nothing, self._observe, self._report, use)

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        k = self.decomposition.k
        f, g = (ObservationFeatures(sizes, self.width, k, key=part) for part in jax.random.split(key))
        networks = StateNetworks(f, None if self.decomposition.tied else g)
        episode = self.decomposition.begin_episodes(sizes.streams)
        return RepresentationState(None, self.training.begin(networks), self.decomposition.initial(), episode)

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Learn from the unroll, then say what is rare in it, by what it shows of the networks as they are now."""
        steps = ObservationSequence(view.trajectories.observation, view.trajectories.first)

        def loss(networks: StateNetworks, rows: ObservationSequence, key: PRNGKeyArray) -> Float[Array, ""]:
            return self.decomposition.estimate(*networks.pairs(rows))[0]

        own = self.training.run(state.own, steps, loss, key)
        networks: Any = own.networks
        tracked = self.decomposition.track(state.tracked, self.decomposition.seen(*networks.pairs(steps)))
        bonus, episode = self.decomposition.bonus_of_steps(
            apply_per_step(networks.f, steps.observation), tracked, steps.first, state.memory
        )
        return RepresentationState(None, own, tracked, episode), bonus

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return self.decomposition.report(state.tracked)
