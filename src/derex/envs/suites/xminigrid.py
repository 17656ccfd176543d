"""XLand-MiniGrid: `xminigrid:MiniGrid-DoorKey-8x8`, `xminigrid:MiniGrid-MemoryS16`, `xminigrid:XLand-MiniGrid-R4-9x9`.

The agent sees the tiles before it, each as its kind and its colour; what it carries and where north is it has to
remember. With `+carried` behind the name it sees what it carries in its own place, as in MiniGrid. The reward, 1 less
up to 0.9 for the time taken, ends the episode. The worlds called XLand, whose rules would have to be downloaded, and
the playground have no goal: they are for learning without any reward.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, PRNGKeyArray, UInt8

from derex.envs.suites.common import (
    CARRIED,
    LONGER_SIDE,
    load,
    plain_key,
    settled,
    split_options,
    unknown,
    with_carried,
)
from derex.types import Discrete, EnvironmentSpec, Symbols

SUCCESS = 0.05  # any reward; the least is 0.1
SMALLEST_TILE, LARGEST_TILE = 4, 32  # sides of a drawn tile


class XMiniGrid:
    """One environment of XLand-MiniGrid; its own time limit is the specification's."""

    def __init__(self, name: str) -> None:
        xminigrid = load("xminigrid", "xminigrid")
        base = name.partition("+")[0]
        if base not in names():
            raise unknown("xminigrid", base, names())
        self._carried = CARRIED in split_options("xminigrid", name, (CARRIED,))[1]
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES, Tiles
        from xminigrid.types import StepType, TimeStep

        self._env, self._params = xminigrid.make(base)
        self._time_step: Any = TimeStep
        self._first, self._nothing = StepType.FIRST, Tiles.EMPTY
        key = jax.random.key_data(jax.random.key(0))
        self._state = jax.eval_shape(lambda key: self._env.reset(self._params, key).state, key)
        self.spec = EnvironmentSpec(
            name=f"xminigrid:{name}",
            observation=Symbols(self._env.observation_shape(self._params), (NUM_TILES, NUM_COLORS)),
            action=Discrete(self._env.num_actions(self._params)),
            horizon=int(self._params.max_steps),
            success_return=SUCCESS if _has_goal(base) else None,
        )

    def reset(self, key: PRNGKeyArray) -> tuple[Any, UInt8[Array, "h w 2"]]:
        """A new world."""
        opened = self._env.reset(self._params, plain_key(key))
        return settled(opened.state, self._state), self._seen(opened)

    def step(
        self, state: Any, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Any, UInt8[Array, "h w 2"], Float32[Array, ""], Bool[Array, ""]]:
        """One action: forward, turn right, turn left, pick up, put down, toggle. Nothing is random but the reset."""
        before = self._time_step(state, self._first, jnp.float32(0), jnp.float32(1), None)
        after = self._env.step(self._params, before, action)
        # Its discount is 0 at the task's own end alone; a last step with discount 1 is one that the limit cut.
        reward, ended = jnp.asarray(after.reward, jnp.float32), jnp.asarray(after.discount == 0, bool)
        return settled(after.state, self._state), self._seen(after), reward, ended

    def _seen(self, step: Any) -> UInt8[Array, "h w 2"]:
        if not self._carried:
            return step.observation
        pocket = step.state.agent.pocket
        return with_carried(step.observation, pocket, pocket[0] != self._nothing)

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """The world from above, what the agent sees in a lighter shade."""
        from xminigrid.rendering.rgb_render import render

        state = jax.tree.map(np.asarray, state)
        tile = min(max(LONGER_SIDE // max(state.grid.shape[:2]), SMALLEST_TILE), LARGEST_TILE)
        return np.asarray(render(state.grid, state.agent, self._params.view_size, tile), np.uint8)


def make(name: str) -> XMiniGrid:
    """The environment of that name."""
    return XMiniGrid(name)


def names() -> list[str]:
    """Names that are registered now; each may be followed by +carried."""
    return sorted(load("xminigrid", "xminigrid").registered_environments())


def _has_goal(name: str) -> bool:
    return not name.startswith("XLand") and name != "MiniGrid-Playground"
