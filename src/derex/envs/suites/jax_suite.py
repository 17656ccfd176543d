"""What the adapters of JAX suites share: plain keys, settled types, pictures of a size to look at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray, UInt8, UInt32

LONGER_SIDE = 480  # of a picture, about


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
