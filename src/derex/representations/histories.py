"""De-Rex on histories with its own encoder and its own optimiser.

The agent's F₁ and F₂ learn slowly, from sparse reward; what decides exploration is whether the decomposition is learnt
while the policy moves. Here f and g have F₁, F₂ and F₃ to themselves, and take several steps on every unroll.
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
    LAMBDA_B,
    BonusUse,
    Representation,
    RepresentationState,
    RolloutView,
    Sizes,
    check_counts,
    check_weights,
    named,
    no_auxiliary,
    track_nothing,
)
from derex.representations.decomposed import DecompositionConfig
from derex.representations.optimised import OptimisedTraining
from derex.types import Trajectories


class HistoriesMemory(NamedTuple):
    """From unroll to unroll, of every stream."""

    history: LSTMState
    episode: Float[Array, "B k k"] | None
    """where the bonus asks for what is new in an episode"""


class RolloutSegment(NamedTuple):
    """An unroll, and the memory of what came before it."""

    trajectories: Trajectories
    before: LSTMState


@dataclass(frozen=True)
class HistoriesConfig:
    """What is decomposed, by which networks, and how they are trained."""

    decomposition: DecompositionConfig = field(default_factory=DecompositionConfig)
    lambda_b: float = LAMBDA_B
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the unroll's mean from the bonus"""
    training: OptimisedTraining = field(default_factory=OptimisedTraining)
    width: int = 128
    """units of F₁, F₂ and F₃"""
    tests: int | str = 8
    """longest test, or "to-end": of what the unroll holds of the episode"""
    test_actions: bool = False
    """whether tests hold their actions; for pseudo-counts rather not (docs/histories.md)"""

    def __post_init__(self) -> None:
        check_counts("", width=self.width)
        check_weights("", lambda_b=self.lambda_b)
        with named(""):
            self.future()

    def future(self) -> Future:
        """What histories are paired with."""
        return make_future(self.tests, self.decomposition.tied)

    @property
    def shortest_unroll(self) -> int:
        """Transitions that an unroll must have for any history in it to count."""
        return self.future().needs

    def build(self) -> Representation:
        """The record."""
        use = BonusUse(self.lambda_b, self.centre_bonus)
        return Representation(self._init, no_auxiliary, track_nothing, self._observe, self._report, use)

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
            forward.initial(sizes.streams), self.decomposition.begin_episodes(sizes.streams)
        )
        return RepresentationState(None, self.training.begin(networks), self.decomposition.initial(), memory)

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Learn from the unroll, then say what is rare in it; remember each stream's history for the next one."""
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
        tracked = self.decomposition.track(state.tracked, self.decomposition.seen(*pairs))
        bonus, episode = self.decomposition.bonus_of_steps(
            apply_per_step(networks.f, beliefs), tracked, trajectories.first, state.memory.episode
        )
        return RepresentationState(None, own, tracked, HistoriesMemory(memory, episode)), bonus

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return self.decomposition.report(state.tracked)


def _beliefs_so_far(
    networks: HistoryNetworks,
    history: Float[Array, "B S width"],
    first: Bool[Array, "B S"],
    before: LSTMState,
) -> tuple[Float[Array, "B S H"], LSTMState]:
    """b_t of every step of an unroll, and the memory before its last: the next unroll begins with that step."""
    beliefs, memory = networks.beliefs(history[:, :-1], first[:, :-1], before)
    last, _ = networks.beliefs(history[:, -1:], first[:, -1:], memory)
    return jnp.concatenate([beliefs, last], axis=1), memory
