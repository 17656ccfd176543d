"""Craftax adapter: `craftax:Craftax-Symbolic-v1`, `craftax:Craftax-Classic-Pixels-v1` and the other two.

Each achievement is rewarded once per episode; death or defeating the last boss terminates. Success is not defined.
A reset costs as much as many steps, so parallel streams share resets; see `derex.envs.wrappers.Batched`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int, PRNGKeyArray, Shaped, UInt8

from derex.envs.suites.common import JaxStep, cast_like, check_name, enlarge, load, plain_key
from derex.types import Discrete, EnvironmentSpec

NAMES = [f"Craftax-{kind}-v1" for kind in ("Classic-Pixels", "Classic-Symbolic", "Pixels", "Symbolic")]
NEVER = 2**30  # disables the game's own time limit; the wrappers truncate instead


class Craftax:
    """One Craftax environment; its time limit (10 000 or 100 000 steps) becomes `spec.horizon`."""

    reset_ratio = 16

    def __init__(self, name: str) -> None:
        load("craftax", "craftax")
        check_name("craftax", name, NAMES)
        from craftax.craftax_env import make_craftax_env_from_name

        self._classic, self._pixels = "Classic" in name, "Pixels" in name
        self._env = make_craftax_env_from_name(name, auto_reset=False)
        self._params = self._env.default_params.replace(max_timesteps=NEVER)
        key = jax.random.key_data(jax.random.key(0))
        observed, self._state = jax.eval_shape(lambda key: self._env.reset_env(key, self._params), key)
        observation = jax.ShapeDtypeStruct(observed.shape, jnp.uint8 if self._pixels else jnp.float32)
        horizon = int(self._env.default_params.max_timesteps)
        self.spec = EnvironmentSpec(f"craftax:{name}", observation, Discrete(self._env.num_actions), horizon)

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Shaped[Array, "*shape"]]:
        """Generates a new world."""
        observation, state = self._env.reset_env(plain_key(key), self._params)
        return cast_like(state, self._state), self._observe(observation)

    def step(self, state: Any, action: Int[Array, ""], key: PRNGKeyArray) -> JaxStep:
        """Takes one action; `craftax`'s `Action` lists them."""
        observation, state, reward, over, _ = self._env.step_env(plain_key(key), state, action, self._params)
        return (
            cast_like(state, self._state),
            self._observe(observation),
            jnp.asarray(reward, jnp.float32),
            over,
        )

    def render(self, state: Any) -> UInt8[np.ndarray, "H W 3"]:
        """Draws what a human player would see."""
        if self._classic:
            from craftax.craftax_classic.constants import BLOCK_PIXEL_SIZE_IMG
            from craftax.craftax_classic.renderer import make_craftax_pixel_renderer
        else:
            from craftax.craftax.constants import BLOCK_PIXEL_SIZE_IMG
            from craftax.craftax.renderer import make_craftax_pixel_renderer

        if not hasattr(self, "_draw"):
            self._draw = jax.jit(make_craftax_pixel_renderer(BLOCK_PIXEL_SIZE_IMG))
        return enlarge(np.clip(self._draw(state), 0, 255))

    def _observe(self, observation: Float32[Array, "*shape"]) -> Shaped[Array, "*shape"]:
        return jnp.round(observation * 255).astype(jnp.uint8) if self._pixels else observation


make = Craftax


def names() -> list[str]:
    """Returns the names of the four games."""
    load("craftax", "craftax")
    return NAMES
