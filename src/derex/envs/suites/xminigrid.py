"""XLand-MiniGrid adapter: `xminigrid:MiniGrid-DoorKey-8x8`, `xminigrid:XLand-MiniGrid-R4-9x9`.

The agent sees the tiles ahead as (kind, colour); the carried object and the heading are not observed. `+carried` shows
the carried object in the agent's own tile, as MiniGrid does. The reward, 1 minus up to 0.9 for the time taken,
terminates the episode. The XLand worlds, whose rulesets would have to be downloaded, and the playground have no goal
and no reward.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray, UInt8

from derex.envs.suites import common
from derex.envs.suites.common import CARRIED, cast_like, load, plain_key, split_options
from derex.types import Discrete, EnvironmentSpec, Symbols

SUCCESS = 0.05  # below the smallest reward, 0.1
SMALLEST_TILE, LARGEST_TILE = 4, 32  # side of a rendered tile in pixels


class XMiniGrid:
    """One XLand-MiniGrid environment; its time limit becomes `spec.horizon`."""

    def __init__(self, name: str) -> None:
        xminigrid = load("xminigrid", "xminigrid")
        base, options = split_options("xminigrid", name, names(), (CARRIED,))
        self._carried = CARRIED in options
        from xminigrid.core.constants import NUM_COLORS, NUM_TILES, Tiles
        from xminigrid.types import StepType, TimeStep

        self._env, self._params = xminigrid.make(base)
        has_goal = not base.startswith("XLand") and base != "MiniGrid-Playground"
        self._time_step: Any = TimeStep
        self._first, self._nothing = StepType.FIRST, Tiles.EMPTY
        key = jax.random.key_data(jax.random.key(0))
        self._state = jax.eval_shape(lambda key: self._env.reset(self._params, key).state, key)
        self.spec = EnvironmentSpec(
            name=f"xminigrid:{name}",
            observation=Symbols(self._env.observation_shape(self._params), (NUM_TILES, NUM_COLORS)),
            action=Discrete(self._env.num_actions(self._params)),
            horizon=int(self._params.max_steps),
            success_return=SUCCESS if has_goal else None,
        )

    def reset(self, key: PRNGKeyArray) -> tuple[Any, UInt8[Array, "h w 2"]]:
        """Generates a new world."""
        opened = self._env.reset(self._params, plain_key(key))
        return cast_like(opened.state, self._state), self._seen(opened)

    def step(self, state: Any, action: Int[Array, ""], key: PRNGKeyArray) -> common.JaxStep:
        """Takes one action: forward, turn right, turn left, pick up, put down, toggle. Steps are deterministic."""
        before = self._time_step(state, self._first, jnp.float32(0), jnp.float32(1), None)
        after = self._env.step(self._params, before, action)
        # The discount is 0 only at a termination; a last step with discount 1 is a truncation.
        reward, ended = jnp.asarray(after.reward, jnp.float32), jnp.asarray(after.discount == 0, bool)
        return cast_like(after.state, self._state), self._seen(after), reward, ended

    def _seen(self, step: Any) -> UInt8[Array, "h w 2"]:
        if not self._carried:
            return step.observation
        pocket = step.state.agent.pocket
        return common.with_carried(step.observation, pocket, pocket[0] != self._nothing)

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the world from above, with the agent's view highlighted."""
        from xminigrid.rendering.rgb_render import render

        state = jax.tree.map(np.asarray, state)
        tile = min(max(common.LONGER_SIDE // max(state.grid.shape[:2]), SMALLEST_TILE), LARGEST_TILE)
        return np.asarray(render(state.grid, state.agent, self._params.view_size, tile), np.uint8)


make = XMiniGrid


def names() -> list[str]:
    """Returns the names registered so far; `+carried` may be appended."""
    return sorted(load("xminigrid", "xminigrid").registered_environments())
