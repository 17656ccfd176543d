"""Steps of a group of streams, in arrays that whoever waits for them owns."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32, Shaped

from derex.types import EnvironmentSpec


class Steps(NamedTuple):
    """A step of a group of streams, in arrays that are filled; with leading axes, several. See `TimeStep`."""

    observation: tuple[Shaped[Any, "*n ..."], ...]
    """parts in the order of the tree's leaves"""
    reward: Float32[Any, "*n"]
    discount: Float32[Any, "*n"]
    truncated: Bool[Any, "*n"]
    first: Bool[Any, "*n"]

    @property
    def last(self) -> Bool[Any, "*n"]:
        """Whether the episode ends here."""
        return (self.discount == 0) | self.truncated

    def at(self, t: int) -> Steps:
        """Those of one place of the first axis; views."""
        parts = tuple(part[t] for part in self.observation)
        return Steps(parts, self.reward[t], self.discount[t], self.truncated[t], self.first[t])


def empty_steps(spec: EnvironmentSpec, *axes: int) -> Steps:
    """Arrays to fill, with these axes in front."""
    parts = tuple(np.empty((*axes, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(spec.observation))
    numbers = (np.empty(axes, np.float32) for _ in range(2))
    return Steps(parts, *numbers, *(np.empty(axes, bool) for _ in range(2)))
