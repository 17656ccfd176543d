"""De-Rex on histories with its own encoder and its own optimiser.

The agent's F₁ and F₂ learn slowly, from sparse reward; what decides exploration is whether the decomposition is learnt
while the policy moves. Here f and g have F₁, F₂ and F₃ to themselves, and take several steps on every unroll.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.futures import Future, future_of, halves_of, read_pairs
from derex.networks.histories import Embedding, Head, HistoryNetworks, at_each_step
from derex.networks.observations import encoder_of
from derex.networks.recurrent import LSTM
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


@dataclass(frozen=True)
class HistoriesForm:
    """What is decomposed, by which networks, and how they are trained."""

    decomposition: Decomposition = field(default_factory=Decomposition)
    lambda_b: float = 1.0
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the unroll's mean from the bonus"""
    training: OwnTraining = field(default_factory=OwnTraining)
    width: int = 128
    """units of F₁, F₂ and F₃"""
    tests: int | str = 8
    """longest test, or "to-end": of what the unroll holds of the episode"""
    test_actions: bool = False
    """whether tests hold their actions; for pseudo-counts rather not (docs/histories.md)"""

    def future(self) -> Future:
        """What histories are paired with."""
        return future_of(self.tests, self.decomposition.tied)

    def build(self) -> Representation:
        """The record."""
        use = BonusUse(self.lambda_b, self.centre_bonus)
        return Representation(self._init, no_auxiliary, track_nothing, self._observe, self._report, use)

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        encoder_key, embedding_key, forward_key, reverse_key, f_key, g_key = jax.random.split(key, 6)
        width, k = self.width, self.decomposition.k
        encoder = encoder_of(list(sizes.observation), width, key=encoder_key)
        embedding = Embedding(encoder, width * len(sizes.observation), sizes.action, width, key=embedding_key)
        forward, reverse = (LSTM(width, width, key=lstm_key) for lstm_key in (forward_key, reverse_key))
        f, g = (Head(width, k, key=head_key) for head_key in (f_key, g_key))
        if self.decomposition.tied:
            reverse = g = None
        networks = HistoryNetworks(embedding, forward, reverse, f, g, self.test_actions)
        memory = forward.initial(sizes.streams)
        return RepresentationState(None, self.training.begin(networks), self.decomposition.initial(), memory)

    def _observe(
        self, state: RepresentationState, view: View, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Learn from the unroll, then say what is rare in it; remember each stream's history for the next one."""
        trajectories, future = view.trajectories, self.future()

        def loss(networks: HistoryNetworks, chosen: Array, key: PRNGKeyArray):
            rows = trajectories.rows(chosen)
            embedded = networks.embed(rows)
            memory = jax.tree.map(lambda part: part[chosen], state.memory)
            beliefs, _ = networks.beliefs(embedded.history, rows.first, memory)
            phase = future.draw(key, *rows.shape)
            estimate = self.decomposition.loss(
                *halves_of(*read_pairs(networks, future, embedded, beliefs, rows, phase))
            )
            return estimate.loss, estimate.statistics

        own, tracked = self.training.run(
            state.own, state.tracked, loss, self.decomposition.track, len(trajectories.first), key
        )
        networks: Any = own.networks
        history = networks.embed(trajectories).history
        # The last step of this unroll is the first of the next: memory ends one step before it.
        before, memory = networks.beliefs(history[:, :-1], trajectories.first[:, :-1], state.memory)
        last, _ = networks.beliefs(history[:, -1:], trajectories.first[:, -1:], memory)
        f = at_each_step(networks.f, jax.numpy.concatenate([before, last], axis=1))
        return RepresentationState(None, own, tracked, memory), self.decomposition.bonus(f, tracked)

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return self.decomposition.report(state.tracked)
