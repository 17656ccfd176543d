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
from jaxtyping import Float, PRNGKeyArray

from derex._text import check_ranges
from derex.networks.histories import Head, HistoryNetworks, apply_per_step, make_embedding
from derex.networks.recurrent import LSTM, LSTMState
from derex.representations.base import (
    OptimisedTraining,
    RepresentationState,
    RolloutView,
    Sizes,
    StateAndBonus,
)
from derex.representations.decomposed import FuturesConfig
from derex.types import Trajectories


class HistoriesMemory(NamedTuple):
    """State of every stream between rollouts."""

    history: LSTMState
    episode: Float[Array, "B k k"] | None  # r M⁻¹ of the episodic bonus, if any


@dataclass(frozen=True)
class HistoriesConfig(FuturesConfig):
    """A decomposition of histories and tests, with its own networks."""

    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of F₁, F₂ and F₃"""
    tests: int | str = 8
    """longest test, or "to-end": the rest of the episode within the rollout"""
    test_actions: bool = False
    """include actions in tests; not recommended for pseudo-counts (docs/histories.md)"""

    def __post_init__(self) -> None:
        check_ranges(self, "representation.", counts=("width",), weights=("lambda_b",))
        self.future()

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        embedding_key, *lstm_keys, f_key, g_key = jax.random.split(key, 5)
        width, k = self.width, self.decomposition.k
        embedding = make_embedding(sizes.observation, sizes.action, width, key=embedding_key)
        forward, reverse = (LSTM(width, width, residual=True, key=part) for part in lstm_keys)
        f, g = (Head(width, k, key=head_key) for head_key in (f_key, g_key))
        if self.decomposition.tied:
            reverse = g = None
        own = self.training.init(HistoryNetworks(embedding, forward, reverse, f, g, self.test_actions))
        episodes = self.decomposition.init_episodes(sizes.streams)
        memory = HistoriesMemory(forward.initial(sizes.streams), episodes)
        return RepresentationState(None, own, self.decomposition.init_tracked(), memory)

    def _observe(self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus:
        """Trains on the rollout, then computes its bonus; keeps each stream's LSTM state for the next rollout."""
        steps, before, decomposition = view.trajectories, state.memory.history, self.decomposition
        reading_key, key = jax.random.split(key)

        def loss(
            networks: HistoryNetworks, rows: tuple[Trajectories, LSTMState], key: PRNGKeyArray
        ) -> Float[Array, ""]:
            steps, before = rows
            embedded = networks.embed(steps)
            beliefs, _ = networks.beliefs(embedded.history, steps.first, before)
            return decomposition.compute_loss(self.read_tests(networks, embedded, beliefs, steps, key))

        own = self.training.run(state.own, (steps, before), loss, key)
        networks: Any = own.networks
        embedded = networks.embed(steps)
        # The last step is the first of the next rollout, so the LSTM state before it is kept.
        beliefs, history = networks.beliefs(embedded.history[:, :-1], steps.first[:, :-1], before)
        last, _ = networks.beliefs(embedded.history[:, -1:], steps.first[:, -1:], history)
        beliefs = jnp.concatenate([beliefs, last], axis=1)
        pairs = self.read_tests(networks, embedded, beliefs, steps, reading_key)
        tracked = decomposition.track(state.tracked, pairs)
        f = apply_per_step(networks.f, beliefs)
        bonus, episode = decomposition.compute_bonuses(f, tracked, steps.first, state.memory.episode)
        return RepresentationState(None, own, tracked, HistoriesMemory(history, episode)), bonus
