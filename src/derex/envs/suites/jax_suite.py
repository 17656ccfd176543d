"""What the adapters of JAX suites share: options of names, plain keys, settled types, pictures of a size to look at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray, UInt8, UInt32

LONGER_SIDE = 480  # of a picture, about
CARRIED = "carried"
"""an option of grid worlds: what the agent carries is seen in its own place, as in MiniGrid"""


def split_options(suite: str, name: str, options: tuple[str, ...]) -> tuple[str, list[str]]:
    """A name and the options behind it, each after a +."""
    base, *asked = name.split("+")
    wrong = [option for option in asked if option not in options]
    if wrong:
        expected = ", ".join(f"+{option}" for option in options)
        raise ValueError(
            f"name: '{suite}:{name}' asks for {wrong[0]!r} after a +; expected some of {expected}."
        )
    return base, asked


def with_carried(view: UInt8[Array, "h w m"], thing: UInt8[Array, " m"], there: Any) -> UInt8[Array, "h w m"]:
    """The view with the thing, where there is one, in the agent's place: in the middle of the row nearest to it."""
    height, width, _ = view.shape
    return jnp.where(there, view.at[height - 1, width // 2].set(thing), view)


def plain_key(key: PRNGKeyArray) -> UInt32[Array, "..."]:
    """The key as numbers: suites put keys into their states, where only arrays can be saved."""
    return jax.random.key_data(key)


def settled(tree: Any, like: Any) -> Any:
    """The same values in the types of `like`, none of them weak: what a step returns has to be what a reset does."""
    return jax.tree.map(lambda leaf, spec: jnp.asarray(leaf, spec.dtype), tree, like)


def enlarged(picture: Any) -> UInt8[np.ndarray, "H W 3"]:
    """A small picture with each of its points repeated, so that people can see something."""
    picture = np.asarray(picture, np.uint8)
    times = max(1, LONGER_SIDE // max(picture.shape[:2]))
    return np.repeat(np.repeat(picture, times, axis=0), times, axis=1)
