"""Recall: a cue is shown once and asked for L steps later; nothing in between helps to remember it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, Int32, PRNGKeyArray, UInt8

from derex.envs.drawing import BLUE, FAINT, INK, ORANGE, box, canvas, disc
from derex.types import Discrete, EnvironmentSpec

CUES = 4


class RecallState(NamedTuple):
    """The cue of this episode, and how many steps ago it was shown."""

    cue: Int32[Array, ""]
    time: Int32[Array, ""]


class Recall:
    """`recall-L`: one of 4 cues at the first step, L blank steps, then the signal to choose.

    The action that answers the signal gives 1 if it is the cue's number, else 0, and ends the episode after L + 2
    steps; all other actions are without effect. The observation is the cue one-hot, then the signal: 5 numbers, all 0
    at a blank step and after the choice. Without memory the expected return is 1/4.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.spec = EnvironmentSpec(
            name=f"recall-{length}",
            observation=jax.ShapeDtypeStruct((CUES + 1,), jnp.float32),
            action=Discrete(CUES),
            horizon=length + 2,
            success_return=0.5,
        )

    def reset(self, key: PRNGKeyArray) -> tuple[RecallState, Float32[Array, "5"]]:
        """The cue is shown."""
        state = RecallState(jnp.floor(jax.random.uniform(key) * CUES).astype(jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: RecallState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[RecallState, Float32[Array, "5"], Float32[Array, ""], Bool[Array, ""]]:
        """Time passes, or the choice is made."""
        chosen = state.time == self.length + 1
        reward = (chosen & (action == state.cue)).astype(jnp.float32)
        state = state._replace(time=state.time + 1)
        return state, self._observe(state), reward, chosen

    def render(self, state: RecallState) -> UInt8[np.ndarray, "H W 3"]:
        """The observation as bars, cues in blue and the signal in orange; a dot is under the cue to be remembered,
        and the line below shows how much of the episode is over."""
        picture, shown = canvas(240, 160), np.asarray(self._observe(state))
        for bar, value in enumerate(shown):
            left, colour = 20 + 42 * bar, ORANGE if bar == CUES else BLUE
            box(picture, (left, 20), (left + 32, 110), FAINT)
            if value:
                box(picture, (left, 20), (left + 32, 110), colour)
        disc(picture, (36 + 42 * int(state.cue), 122), 4, INK)
        box(picture, (20, 140), (220, 146), FAINT)
        box(picture, (20, 140), (20 + 200 * min(int(state.time) / self.spec.horizon, 1.0), 146), INK)
        return picture

    def _observe(self, state: RecallState) -> Float32[Array, "5"]:
        shown = jnp.where(state.time == 0, state.cue, -1)
        shown = jnp.where(state.time == self.length + 1, CUES, shown)
        return jax.nn.one_hot(shown, CUES + 1, dtype=jnp.float32)  # all zeros for -1
