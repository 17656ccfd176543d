"""De-Rex on pairs of successive observations, for fully observed environments (Section 4, with a changing policy)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex._text import check_ranges
from derex.networks.histories import Head, Pairs, apply_per_step
from derex.networks.inputs import encode_rows, make_encoder
from derex.representations.base import (
    OptimisedTraining,
    RepresentationState,
    RolloutView,
    Sizes,
    StateAndBonus,
)
from derex.representations.decomposed import DecomposedConfig
from derex.types import Trajectories


class ObservationFeatures(eqx.Module):
    """An encoder of the observation and a head with k outputs."""

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
        """Whether the encoder is faster on batches."""
        return self.encoder.reads_rows

    def rows(self, observations: Any) -> Float[Array, "n k"]:
        """Features of a batch."""
        return jax.vmap(self.head)(jax.nn.relu(encode_rows(self.encoder, observations)))


class StateNetworks(eqx.Module):
    """f of a state, g of the next state; g is None for tied objectives (g = f)."""

    f: ObservationFeatures
    g: ObservationFeatures | None

    def pairs(self, steps: Trajectories) -> Pairs:
        """f of each step but the last, and g of the step after it; they count if both are in one episode."""
        here = jax.tree.map(lambda leaf: leaf[:, :-1], steps.observation)
        there = jax.tree.map(lambda leaf: leaf[:, 1:], steps.observation)
        counted = (~steps.first[:, 1:]).astype(jnp.float32)
        g = self.f if self.g is None else self.g
        return Pairs(apply_per_step(self.f, here), apply_per_step(g, there), counted)


@dataclass(frozen=True)
class StatesConfig(DecomposedConfig):
    """A decomposition of successive observations, with its own networks."""

    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of the hidden layers"""

    def __post_init__(self) -> None:
        check_ranges(self, "representation.", counts=("width",), weights=("lambda_b",))

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        k = self.decomposition.k
        f, g = (ObservationFeatures(sizes, self.width, k, key=part) for part in jax.random.split(key))
        own = self.training.init(StateNetworks(f, None if self.decomposition.tied else g))
        episodes = self.decomposition.init_episodes(sizes.streams)
        return RepresentationState(None, own, self.decomposition.init_tracked(), episodes)

    def _observe(self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus:
        """Trains on the rollout, then computes its bonus with the statistics of the new networks."""
        steps, decomposition = view.trajectories, self.decomposition

        def loss(networks: StateNetworks, rows: Trajectories, key: PRNGKeyArray) -> Float[Array, ""]:
            return decomposition.compute_loss(networks.pairs(rows))

        own = self.training.run(state.own, steps, loss, key)
        networks: Any = own.networks
        tracked = decomposition.track(state.tracked, networks.pairs(steps))
        f = apply_per_step(networks.f, steps.observation)
        bonus, episodes = decomposition.compute_bonuses(f, tracked, steps.first, state.memory)
        return RepresentationState(None, own, tracked, episodes), bonus
