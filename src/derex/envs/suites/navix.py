"""NAVIX adapter: `navix:Navix-KeyCorridorS6R3-v0`; append `+rgb` for images instead of symbols.

The agent sees the 7 x 7 tiles ahead as (kind, colour, state), or as a 56 x 56 image. The carried object is not
observed; `+carried` shows it in the agent's own tile, as MiniGrid does (symbols only). GoToDoor has a second
observation, the colour of the target door, which NAVIX itself omits. The only reward, 1, terminates the episode; lava
and moving balls terminate it without reward.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PRNGKeyArray, UInt8, UInt32

from derex.envs.suites import common
from derex.envs.suites.common import CARRIED, cast_like, plain_key, split_options
from derex.types import Discrete, EnvironmentSpec, Symbols

SIZES = (11, 6, 3)
"""numbers of tile kinds, colours and door states (open, closed, locked)"""

VIEW, PICTURE = (7, 7, 3), (56, 56, 3)
SUCCESS = 0.5
UNLOCKED = -1  # `requires` of a door without a lock
RGB, ORIGINAL = "rgb", "original"
OPTIONS = (RGB, ORIGINAL, CARRIED)
KEY = 5  # tile kind
PICK_UP = 3
AHEAD = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])  # by direction: east, south, west, north


class Navix:
    """One NAVIX environment, truncated after 4 x height x width steps.

    This is the environments' own limit; `navix.make` replaces it by 100, too few to solve the larger ones.

    KeyCorridor cannot be solved in NAVIX 0.7: opened doors leave their wall standing, locked doors count as open, and
    the reward requires a goal where there is a ball. Here doors stand on floor, locked doors are closed, and picking
    up the ball gives the reward and terminates, as in MiniGrid. `+original` disables these repairs.
    """

    def __init__(self, name: str) -> None:
        navix = _package()
        base, options = split_options("navix", name, names(), OPTIONS)
        if RGB in options and CARRIED in options:
            raise ValueError(
                f"name: 'navix:{name}' asks for +{CARRIED}, which pictures do not show; leave +{RGB} out."
            )
        self._navix = navix
        self._repaired = base.startswith("Navix-KeyCorridor") and ORIGINAL not in options
        self._rgb, self._carried = RGB in options, CARRIED in options
        self._mission = base.startswith("Navix-GoToDoor")
        self._env = navix.make(base, max_steps=None)
        view: Any = jax.ShapeDtypeStruct(PICTURE, jnp.uint8) if self._rgb else Symbols(VIEW, SIZES)
        observation = {"view": view, "mission": Symbols((1,), SIZES[1:2])} if self._mission else view
        action, horizon = Discrete(len(self._env.action_set)), int(self._env.max_steps)
        self.spec = EnvironmentSpec(f"navix:{name}", observation, action, horizon, SUCCESS)
        self._state = jax.eval_shape(self._begin, jax.random.key_data(jax.random.key(0)))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """Generates a new world."""
        state = cast_like(self._begin(plain_key(key)), self._state)
        return state, self._observe(state)

    def step(self, state: Any, action: Int[Array, ""], key: PRNGKeyArray) -> common.JaxStep:
        """Takes one action: turn left, turn right, forward, pick up, drop, toggle, done."""
        # Not `self._env.step`, which counts time and resets automatically.
        state = state.replace(key=plain_key(key))
        after = self._env.transitions_fn(state, action, self._env.action_set)
        reward = self._env.reward_fn(state, action, after)
        terminated = self._env.termination_fn(state, action, after)
        if self._repaired:
            player, ball = state.get_player(idx=0), state.entities["goal"]
            ahead = player.position + jnp.asarray(AHEAD)[player.direction]
            terminated = (action == PICK_UP) & jnp.all(ahead == ball.position[0])
            reward = terminated
        after, reward = cast_like(after, self._state), jnp.asarray(reward, jnp.float32)
        return after, self._observe(after), reward, jnp.asarray(terminated, bool)

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """Draws the world from above."""
        from navix.rendering.cache import RenderingCache

        state = jax.tree.map(jnp.asarray, state)
        return common.enlarge(
            self._navix.observations.rgb(state.replace(cache=RenderingCache.init(state.grid)))
        )

    def _begin(self, key: UInt32[Array, "..."]) -> Any:
        """Returns the state of a new world, with doors repaired if needed."""
        state = self._env.reset(key).state
        if not self._rgb:
            state = state.replace(cache=None)  # an image of the empty world: most of the state's memory
        if self._repaired:
            doors = state.entities["door"]
            doors = doors.replace(open=jnp.where(doors.requires == UNLOCKED, doors.open, 0))
            rows, columns = doors.position[:, 0], doors.position[:, 1]
            state = state.replace(
                entities={**state.entities, "door": doors}, grid=state.grid.at[rows, columns].set(0)
            )
        return state

    def _observe(self, state: Any) -> Any:
        views = self._navix.observations
        if self._rgb:
            view = views.rgb_first_person(state)
        else:
            # 254 is an open door with a lock; it is shown as locked
            view = jnp.minimum(views.symbolic_first_person(state), jnp.asarray(SIZES, jnp.uint8) - 1)
        if self._carried and "key" in state.entities:
            keys = state.entities["key"]
            held = keys.id == state.get_player(idx=0).pocket
            colour = jnp.sum(jnp.where(held, keys.colour, 0)).astype(jnp.uint8)
            view = common.with_carried(view, jnp.stack([jnp.uint8(KEY), colour, jnp.uint8(0)]), jnp.any(held))
        if not self._mission:
            return view
        return {"view": view, "mission": jnp.asarray(state.mission.colour, jnp.uint8).reshape(1)}


make = Navix


def names() -> list[str]:
    """Returns the names registered so far; `+rgb` or `+carried`, and `+original`, may be appended."""
    return sorted(_package().registry())


def _package() -> Any:
    """Imports NAVIX without the deprecation warnings of its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return common.load("navix", "navix")
