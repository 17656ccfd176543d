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

from derex._text import check_ranges
from derex.networks.histories import Embedded, Head, Pairs, apply_per_step
from derex.networks.recurrent import LSTM
from derex.representations.base import RepresentationState, RolloutView, Sizes, StateAndBonus
from derex.representations.decomposed import FuturesConfig


class BeliefHeads(eqx.Module):
    """f on beliefs, g on the outputs of the reverse LSTM F₃ over futures."""

    f: Any
    g: Any
    reverse: LSTM | None


@dataclass(frozen=True)
class BeliefConfig(FuturesConfig):
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
        check_ranges(self, "representation.", weights=("lambda_b", "weight"))
        self.future()

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        f_key, g_key, reverse_key = jax.random.split(key, 3)
        k, H, W = self.decomposition.k, sizes.belief, sizes.embedding
        if not self.projection and k != H:
            raise ValueError(
                f"projection: without it f is the belief itself, so k must be the width of the core; got k = {k} and "
                f"width {H}."
            )
        f = Head(H, k, key=f_key) if self.projection else eqx.nn.Identity()
        g = reverse = None
        if not self.decomposition.tied:
            g = Head(H, k, key=g_key)
            reverse = LSTM(W, H, W == H, key=reverse_key)
        heads, episodes = BeliefHeads(f, g, reverse), self.decomposition.init_episodes(sizes.streams)
        return RepresentationState(heads, None, self.decomposition.init_tracked(), episodes)

    def _pairs(self, joint: BeliefHeads, view: RolloutView, key: PRNGKeyArray) -> Pairs:
        history = view.embedded.history
        embedded = Embedded(history, history) if self.test_actions else view.embedded
        return self.read_tests(joint, embedded, view.beliefs, view.trajectories, key)

    def _auxiliary(
        self, joint: BeliefHeads, view: RolloutView, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], None]:
        return self.weight * self.decomposition.compute_loss(self._pairs(joint, view, key)), None

    def _observe(self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus:
        """The bonus of a rollout, by its statistics under the current networks."""
        tracked = self.decomposition.track(state.tracked, self._pairs(state.joint, view, key))
        f, first = apply_per_step(state.joint.f, view.beliefs), view.trajectories.first
        bonus, episodes = self.decomposition.compute_bonuses(f, tracked, first, state.memory)
        return state._replace(tracked=tracked, memory=episodes), bonus
