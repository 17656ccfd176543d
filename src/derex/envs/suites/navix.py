"""NAVIX: `navix:Navix-KeyCorridorS6R3-v0`; with pictures in place of symbols, `navix:Navix-DoorKey-8x8-v0+rgb`.

The agent sees the 7 x 7 tiles before it, each as kind, colour and state, or as a picture of 56 x 56. What it carries it
has to remember; with `+carried` symbols show it in the agent's place, as in MiniGrid. GoToDoor, which NAVIX gives no
instruction, has a second part: the colour of the door that is meant. The one reward, 1, ends the episode; lava and
moving balls end it without.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, PRNGKeyArray, UInt8, UInt32

from derex.envs.suites.common import (
    CARRIED,
    enlarged,
    load,
    plain_key,
    settled,
    split_options,
    unknown,
    with_carried,
)
from derex.types import Discrete, EnvironmentSpec, Symbols

SIZES = (11, 6, 3)
"""kinds of tiles, colours, and states of doors: open, closed, locked"""

VIEW, PICTURE = (7, 7, 3), (56, 56, 3)
SUCCESS = 0.5
UNLOCKED = -1  # what a door requires that needs no key
RGB, ORIGINAL = "rgb", "original"
OPTIONS = (RGB, ORIGINAL, CARRIED)
KEY = 5  # its kind
PICK_UP = 3
AHEAD = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])  # by direction: east, south, west, north


class Navix:
    """One environment of NAVIX, cut after 4 x height x width steps.

    That is the limit of NAVIX's environments themselves; `navix.make` replaces it by 100 for all, fewer than the way
    through the larger ones takes.

    KeyCorridor cannot be solved as NAVIX 0.7 makes it: doors stand in walls that stay when they are opened, locked ones
    count as open, and the reward waits for a goal where there is a ball. Here doors stand on floor, locked ones are
    closed, and the episode ends with the reward when the ball is picked up, as in MiniGrid; `+original` leaves all
    that as it comes.
    """

    def __init__(self, name: str) -> None:
        navix = _package()
        base = name.partition("+")[0]
        if base not in names():
            raise unknown("navix", base, names())
        _, options = split_options("navix", name, OPTIONS)
        if RGB in options and CARRIED in options:
            raise ValueError(
                f"name: 'navix:{name}' asks for +{CARRIED}, which pictures do not show; leave +{RGB} out."
            )
        self._navix = navix
        self._repaired = base.startswith("Navix-KeyCorridor") and ORIGINAL not in options
        self._rgb, self._carried = RGB in options, CARRIED in options
        self._mission = base.startswith("Navix-GoToDoor")
        self._env = navix.make(base, max_steps=None)
        self.spec = EnvironmentSpec(
            name=f"navix:{name}",
            observation=self._seen(),
            action=Discrete(len(self._env.action_set)),
            horizon=int(self._env.max_steps),
            success_return=SUCCESS,
        )
        self._state = jax.eval_shape(self._begin, jax.random.key_data(jax.random.key(0)))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """A new world."""
        state = settled(self._begin(plain_key(key)), self._state)
        return state, self._observe(state)

    def step(
        self, state: Any, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """One action: turn left, turn right, forward, pick up, drop, toggle, done."""
        # Its three functions rather than its step, which would count time and begin episodes anew.
        state = state.replace(key=plain_key(key))
        after = self._env.transitions_fn(state, action, self._env.action_set)
        reward = self._env.reward_fn(state, action, after)
        terminated = self._env.termination_fn(state, action, after)
        if self._repaired:
            player, ball = state.get_player(idx=0), state.entities["goal"]
            ahead = player.position + jnp.asarray(AHEAD)[player.direction]
            terminated = (action == PICK_UP) & jnp.all(ahead == ball.position[0])
            reward = terminated
        after, reward = settled(after, self._state), jnp.asarray(reward, jnp.float32)
        return after, self._observe(after), reward, jnp.asarray(terminated, bool)

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """The world from above."""
        from navix.rendering.cache import RenderingCache

        state = jax.tree.map(jnp.asarray, state)
        return enlarged(self._navix.observations.rgb(state.replace(cache=RenderingCache.init(state.grid))))

    def _begin(self, key: UInt32[Array, "..."]) -> Any:
        """The state of a new world; its doors as the options say."""
        state = self._env.reset(key).state
        if not self._rgb:
            state = state.replace(cache=None)  # the empty world as a picture, most of what a state holds
        if self._repaired:
            doors = state.entities["door"]
            doors = doors.replace(open=jnp.where(doors.requires == UNLOCKED, doors.open, 0))
            rows, columns = doors.position[:, 0], doors.position[:, 1]
            state = state.replace(
                entities={**state.entities, "door": doors}, grid=state.grid.at[rows, columns].set(0)
            )
        return state

    def _seen(self) -> Any:
        """What the specification says of an observation."""
        view: Any = jax.ShapeDtypeStruct(PICTURE, jnp.uint8) if self._rgb else Symbols(VIEW, SIZES)
        return {"view": view, "mission": Symbols((1,), SIZES[1:2])} if self._mission else view

    def _observe(self, state: Any) -> Any:
        views = self._navix.observations
        if self._rgb:
            view = views.rgb_first_person(state)
        else:
            # 254 stands for a locked door that is open; it is shown as locked
            view = jnp.minimum(views.symbolic_first_person(state), jnp.asarray(SIZES, jnp.uint8) - 1)
        if self._carried and "key" in state.entities:
            keys = state.entities["key"]
            held = keys.id == state.get_player(idx=0).pocket
            colour = jnp.sum(jnp.where(held, keys.colour, 0)).astype(jnp.uint8)
            view = with_carried(view, jnp.stack([jnp.uint8(KEY), colour, jnp.uint8(0)]), jnp.any(held))
        if not self._mission:
            return view
        return {"view": view, "mission": jnp.asarray(state.mission.colour, jnp.uint8).reshape(1)}


def make(name: str) -> Navix:
    """The environment of that name."""
    return Navix(name)


def names() -> list[str]:
    """Names that are registered now; each may be followed by +rgb or +carried, and by +original."""
    return sorted(_package().registry())


def _package() -> Any:
    """NAVIX without what the packages that it imports, for agents of its own, have to say about old functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return load("navix", "navix")
