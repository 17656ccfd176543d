"""De-Rex and graph drawing on the agent's own belief, trained jointly: the paper's form (Section 6, appendix B, C).

f is a projection of b_t = F₂(h_t), g of a reverse LSTM over the agent's embeddings F₁. The loss is added to the agent's
with weight w_loss and trains F₁ and F₂ as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.histories import Embedded, Future, Head, apply_per_step, make_future, read_pairs
from derex.networks.recurrent import LSTM
from derex.representations.base import (
    RepresentationState,
    RolloutView,
    Sizes,
    check_weights,
    prefix_errors,
)
from derex.representations.decomposed import DecomposedConfig


class BeliefHeads(eqx.Module):
    """f on beliefs, g on the outputs of the reverse LSTM F₃ over futures."""

    f: Any
    g: Any
    reverse: LSTM | None


@dataclass(frozen=True)
class BeliefConfig(DecomposedConfig):
    """A decomposition of the agent's beliefs, trained with the agent."""

    weight: float = 0.01
    """w_loss"""
    tests: int | str = 8
    """longest test, or "to-end": the rest of the episode within the rollout"""
    test_actions: bool = True
    """include actions in tests"""
    projection: bool = True
    """False: f(b) = b, the loss is directly on b_t (the paper's ablation); k must be the width of the core"""

    def __post_init__(self) -> None:
        check_weights("", lambda_b=self.lambda_b, weight=self.weight)
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
        f_key, g_key, reverse_key = jax.random.split(key, 3)
        k = self.decomposition.k
        if not self.projection and k != sizes.belief:
            raise ValueError(
                f"projection: without it f is the belief itself, so k must be the width of the core; got k = {k} and "
                f"width {sizes.belief}."
            )
        f = Head(sizes.belief, k, key=f_key) if self.projection else eqx.nn.Identity()
        g = reverse = None
        if not self.decomposition.tied:
            g = Head(sizes.belief, k, key=g_key)
            reverse = LSTM(sizes.embedding, sizes.belief, sizes.embedding == sizes.belief, key=reverse_key)
        heads, episodes = BeliefHeads(f, g, reverse), self.decomposition.init_episodes(sizes.streams)
        return RepresentationState(heads, None, self.decomposition.init_tracked(), episodes)

    def _pairs(self, joint: BeliefHeads, view: RolloutView, key: PRNGKeyArray) -> Any:
        future = self.future()
        history = view.embedded.history
        embedded = Embedded(history, history) if self.test_actions else view.embedded
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
        """The bonus of a rollout, by its statistics under the current networks."""
        statistics = self.decomposition.compute_statistics(*self._pairs(state.joint, view, key))
        tracked = self.decomposition.track(state.tracked, statistics)
        f = apply_per_step(state.joint.f, view.beliefs)
        bonus, episode = self.decomposition.compute_bonuses(f, tracked, view.trajectories.first, state.memory)
        return state._replace(tracked=tracked, memory=episode), bonus
