"""De-Rex on histories, with networks and an optimiser of its own.

The agent's F₁ and F₂ learn slowly from sparse reward; exploration depends on how fast the decomposition is learnt while
the policy changes. Here f and g have their own F₁, F₂ and F₃, and take several steps on every rollout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex.networks.histories import (
    Future,
    Head,
    HistoryNetworks,
    apply_per_step,
    make_embedding,
    make_future,
    read_pairs,
)
from derex.networks.recurrent import LSTM, LSTMState
from derex.representations.base import (
    RepresentationState,
    RolloutView,
    Sizes,
    check_counts,
    check_weights,
    prefix_errors,
)
from derex.representations.decomposed import DecomposedConfig
from derex.representations.optimised import OptimisedTraining
from derex.types import Trajectories


class HistoriesMemory(NamedTuple):
    """State of every stream between rollouts."""

    history: LSTMState
    episode: Float[Array, "B k k"] | None
    """r M⁻¹ of the episodic bonus, if any"""


class RolloutSegment(NamedTuple):
    """A rollout, and the LSTM state before it."""

    trajectories: Trajectories
    before: LSTMState


@dataclass(frozen=True)
class HistoriesConfig(DecomposedConfig):
    """A decomposition of histories and tests, with its own networks."""

    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of F₁, F₂ and F₃"""
    tests: int | str = 8
    """longest test, or "to-end": the rest of the episode within the rollout"""
    test_actions: bool = False
    """include actions in tests; not recommended for pseudo-counts (docs/histories.md)"""

    def __post_init__(self) -> None:
        check_counts("", width=self.width)
        check_weights("", lambda_b=self.lambda_b)
        with prefix_errors(""):
            self.future()

    def future(self) -> Future:
        """The futures that histories are paired with."""
        return make_future(self.tests, self.decomposition.tied)

    @property
    def shortest_unroll(self) -> int:
        """Least number of transitions of a rollout in which any history counts."""
        return self.future().needs

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        embedding_key, forward_key, reverse_key, f_key, g_key = jax.random.split(key, 5)
        width, k = self.width, self.decomposition.k
        embedding = make_embedding(sizes.observation, sizes.action, width, key=embedding_key)
        forward, reverse = (
            LSTM(width, width, residual=True, key=part) for part in (forward_key, reverse_key)
        )
        f, g = (Head(width, k, key=head_key) for head_key in (f_key, g_key))
        if self.decomposition.tied:
            reverse = g = None
        networks = HistoryNetworks(embedding, forward, reverse, f, g, self.test_actions)
        memory = HistoriesMemory(
            forward.initial(sizes.streams), self.decomposition.init_episodes(sizes.streams)
        )
        return RepresentationState(
            None, self.training.init(networks), self.decomposition.init_tracked(), memory
        )

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Trains on the rollout, then computes its bonus; keeps each stream's LSTM state for the next rollout."""
        trajectories, future = view.trajectories, self.future()
        reading_key, key = jax.random.split(key)
        present = RolloutSegment(trajectories, state.memory.history)

        def loss(networks: HistoryNetworks, rows: RolloutSegment, key: PRNGKeyArray) -> Float[Array, ""]:
            embedded = networks.embed(rows.trajectories)
            beliefs, _ = networks.beliefs(embedded.history, rows.trajectories.first, rows.before)
            phase = future.draw(key, *rows.trajectories.shape)
            pairs = read_pairs(networks, future, embedded, beliefs, rows.trajectories, phase)
            return self.decomposition.estimate(*pairs)[0]

        own = self.training.run(state.own, present, loss, key)
        networks: Any = own.networks
        embedded = networks.embed(trajectories)
        beliefs, memory = _beliefs_so_far(networks, embedded.history, trajectories.first, present.before)
        phase = future.draw(reading_key, *trajectories.shape)
        pairs = read_pairs(networks, future, embedded, beliefs, trajectories, phase)
        tracked = self.decomposition.track(state.tracked, self.decomposition.compute_statistics(*pairs))
        bonus, episode = self.decomposition.compute_bonuses(
            apply_per_step(networks.f, beliefs), tracked, trajectories.first, state.memory.episode
        )
        return RepresentationState(None, own, tracked, HistoriesMemory(memory, episode)), bonus


def _beliefs_so_far(
    networks: HistoryNetworks,
    history: Float[Array, "B S width"],
    first: Bool[Array, "B S"],
    before: LSTMState,
) -> tuple[Float[Array, "B S H"], LSTMState]:
    """b_t of every step, and the LSTM state before the last, which is the first step of the next rollout."""
    beliefs, memory = networks.beliefs(history[:, :-1], first[:, :-1], before)
    last, _ = networks.beliefs(history[:, -1:], first[:, -1:], memory)
    return jnp.concatenate([beliefs, last], axis=1), memory
