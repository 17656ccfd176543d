"""De-Rex and graph drawing on the agent's own belief, trained with it: the paper's form (Section 6, appendix B, C).

f reads a projection of b_t = F₂(h_t), g the reverse LSTM over the agent's own embeddings F₁. The loss is added to the
agent's with weight w_loss, so that F₁ and F₂ learn from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.histories import Embedded, Future, Head, apply_per_step, make_future, read_pairs
from derex.networks.recurrent import LSTM
from derex.representations.base import (
    LAMBDA_B,
    BonusUse,
    Representation,
    RepresentationState,
    RolloutView,
    Sizes,
    check_weights,
    named,
    track_nothing,
)
from derex.representations.decomposed import DecompositionConfig


class BeliefHeads(eqx.Module):
    """f on beliefs, g on what the reverse LSTM F₃ makes of futures."""

    f: Any
    g: Any
    reverse: LSTM | None


def tests_of(embedded: Embedded, actions: bool) -> Embedded:
    """The agent's embeddings, tests with the actions along them or observations alone."""
    return Embedded(embedded.history, embedded.history) if actions else embedded


@dataclass(frozen=True)
class BeliefConfig:
    """What is decomposed, and how it weighs in the agent's loss."""

    decomposition: DecompositionConfig = field(default_factory=DecompositionConfig)
    lambda_b: float = LAMBDA_B
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the unroll's mean from the bonus"""
    weight: float = 0.01
    """w_loss"""
    tests: int | str = 8
    """longest test, or "to-end": of what the unroll holds of the episode"""
    test_actions: bool = True
    """whether tests hold their actions"""
    projection: bool = True
    """False puts the loss directly on b_t (the paper's ablation); then k is the width of the core"""

    def __post_init__(self) -> None:
        check_weights("", lambda_b=self.lambda_b, weight=self.weight)
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
        return Representation(self._init, self._auxiliary, track_nothing, self._observe, self._report, use)

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        f_key, g_key, reverse_key = jax.random.split(key, 3)
        k = self.decomposition.k
        if not self.projection and k != sizes.belief:
            raise ValueError(
                f"projection: without it f is the belief itself, so k must be the width of the core; got k = {k} and "
                f"width {sizes.belief}."
            )
        f = Head(sizes.belief, k, key=f_key) if self.projection else eqx.nn.Identity()
        episode = self.decomposition.begin_episodes(sizes.streams)
        if self.decomposition.tied:
            return RepresentationState(
                BeliefHeads(f, None, None), None, self.decomposition.initial(), episode
            )
        g = Head(sizes.belief, k, key=g_key)
        reverse = LSTM(sizes.embedding, sizes.belief, sizes.embedding == sizes.belief, key=reverse_key)
        return RepresentationState(BeliefHeads(f, g, reverse), None, self.decomposition.initial(), episode)

    def _pairs(self, joint: BeliefHeads, view: RolloutView, key: PRNGKeyArray) -> Any:
        future = self.future()
        embedded = tests_of(view.embedded, self.test_actions)
        phase = future.draw(key, *view.trajectories.shape)
        return read_pairs(joint, future, embedded, view.beliefs, view.trajectories, phase)

    def _auxiliary(
        self, joint: BeliefHeads, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], None]:
        loss, _ = self.decomposition.estimate(*self._pairs(joint, view, key))
        return self.weight * loss, None

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[RepresentationState, Float[Array, "B S"]]:
        """Say what is rare in the unroll, by what it shows of the networks as they are."""
        seen = self.decomposition.seen(*self._pairs(state.joint, view, key))
        tracked = self.decomposition.track(state.tracked, seen)
        f = apply_per_step(state.joint.f, view.beliefs)
        bonus, episode = self.decomposition.bonus_of_steps(f, tracked, view.trajectories.first, state.memory)
        return state._replace(tracked=tracked, memory=episode), bonus

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return self.decomposition.report(state.tracked)
