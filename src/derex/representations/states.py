"""De-Rex on pairs of successive observations, for fully observed environments (Section 4, with a changing policy)."""

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
    RepresentationState,
    RolloutView,
    Sizes,
    check_counts,
    check_weights,
)
from derex.representations.decomposed import DecomposedConfig
from derex.representations.optimised import OptimisedTraining


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


class ObservationSequence(NamedTuple):
    """Observations (B, S, …) and the first steps of episodes."""

    observation: Any
    first: Bool[Array, "B S"]


class StateNetworks(eqx.Module):
    """f of a state, g of the next state; g is None for tied objectives (g = f)."""

    f: ObservationFeatures
    g: ObservationFeatures | None

    @property
    def next(self) -> ObservationFeatures:
        """g, or f if tied."""
        return self.f if self.g is None else self.g

    def pairs(
        self, steps: ObservationSequence
    ) -> tuple[Float[Array, "B t k"], Float[Array, "B t k"], Float[Array, "B t"]]:
        """f of each step but the last, g of the step after it, and weights: 1 if both are in one episode."""
        here = jax.tree.map(lambda leaf: leaf[:, :-1], steps.observation)
        there = jax.tree.map(lambda leaf: leaf[:, 1:], steps.observation)
        counted = (~steps.first[:, 1:]).astype(jnp.float32)
        return apply_per_step(self.f, here), apply_per_step(self.next, there), counted


@dataclass(frozen=True)
class StatesConfig(DecomposedConfig):
    """A decomposition of successive observations, with its own networks."""

    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of the hidden layers"""

    def __post_init__(self) -> None:
        check_counts("", width=self.width)
        check_weights("", lambda_b=self.lambda_b)

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        k = self.decomposition.k
        f, g = (ObservationFeatures(sizes, self.width, k, key=part) for part in jax.random.split(key))
        networks = StateNetworks(f, None if self.decomposition.tied else g)
        episode = self.decomposition.init_episodes(sizes.streams)
        return RepresentationState(
            None, self.training.init(networks), self.decomposition.init_tracked(), episode
        )

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Trains on the rollout, then computes its bonus with the statistics of the new networks."""
        steps = ObservationSequence(view.trajectories.observation, view.trajectories.first)

        def loss(networks: StateNetworks, rows: ObservationSequence, key: PRNGKeyArray) -> Float[Array, ""]:
            return self.decomposition.estimate(*networks.pairs(rows))[0]

        own = self.training.run(state.own, steps, loss, key)
        networks: Any = own.networks
        tracked = self.decomposition.track(
            state.tracked, self.decomposition.compute_statistics(*networks.pairs(steps))
        )
        bonus, episode = self.decomposition.compute_bonuses(
            apply_per_step(networks.f, steps.observation), tracked, steps.first, state.memory
        )
        return RepresentationState(None, own, tracked, episode), bonus
