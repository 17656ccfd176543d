"""Records shared by every part of the package; this module imports nothing of derex."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Int32


class Transitions(NamedTuple):
    """The data set 𝒟 = {(s, a, s')_i} of Section 3, as ids; row i of each array is one transition."""

    state: Int32[Array, " n"]
    action: Int32[Array, " n"]
    next_state: Int32[Array, " n"]
