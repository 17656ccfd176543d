"""Our actions as other packages want them: checked, numbered from their own start, scaled to their own bounds.

A represents the number of parts of an action.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from derex.types import Box

UNBOUNDED = 10.0
"""where a task sets no bound, its actions are kept within [-10, 10], or within 20 of the bound that there is"""
_AS_GOOD_AS_INFINITE = 1e6


def choice(action: Shaped[Any, "*any"], n: int) -> int:
    """One of n choices as an int."""
    array = np.asarray(action)
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= array < n:
        raise ValueError(
            f"action: expected one integer from 0 to {n - 1}, got {array.dtype} of shape {array.shape}: {array}."
        )
    return int(array)


def choices(action: Shaped[Any, "*any"], sizes: tuple[int, ...]) -> Int[np.ndarray, " A"]:
    """Several choices at once; the i-th is one of sizes[i]."""
    array = np.asarray(action)
    right = array.shape == (len(sizes),) and array.dtype.kind in "iu"
    if not right or np.any(array < 0) or np.any(array >= np.asarray(sizes)):
        raise ValueError(
            f"action: expected {len(sizes)} integers from 0 to less than {sizes}, got {array.dtype} of shape "
            f"{array.shape}: {array}."
        )
    return array.astype(np.int64)


class Range(NamedTuple):
    """Bounds of each part of a vector of real numbers; agents act within [-1, 1] in every part."""

    low: Float[np.ndarray, " A"]
    high: Float[np.ndarray, " A"]

    @property
    def spec(self) -> Box:
        return Box(len(self.low), -1.0, 1.0)

    def scaled(self, action: Shaped[Any, "*any"]) -> Float[np.ndarray, " A"]:
        """From [-1, 1] to the task's own bounds; what lies outside is clipped."""
        array = np.asarray(action)
        if array.shape != self.low.shape or array.dtype.kind not in "fiu" or not np.all(np.isfinite(array)):
            raise ValueError(
                f"action: expected {len(self.low)} finite numbers in [-1, 1], got {array.dtype} of shape "
                f"{array.shape}: {array}."
            )
        share = (np.clip(array.astype(np.float64), -1.0, 1.0) + 1.0) / 2.0
        return self.low + share * (self.high - self.low)


def make_range(low: Shaped[Any, "*shape"], high: Shaped[Any, "*shape"]) -> Range:
    """Bounds of any shape, flattened, with finite ones in place of those that are missing."""
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (low, high))
    if np.any(np.isnan(low) | np.isnan(high)) or np.any(low > high):
        raise ValueError(f"bounds: expected low <= high in each part of an action, got {low} and {high}.")
    open_low, open_high = low <= -_AS_GOOD_AS_INFINITE, high >= _AS_GOOD_AS_INFINITE
    bottom = np.where(
        open_low, np.where(open_high, -UNBOUNDED, np.minimum(high - 2 * UNBOUNDED, -UNBOUNDED)), low
    )
    top = np.where(open_high, np.where(open_low, UNBOUNDED, np.maximum(low + 2 * UNBOUNDED, UNBOUNDED)), high)
    return Range(bottom, top)
