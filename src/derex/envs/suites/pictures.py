"""Pictures at another size, with nothing but numpy."""

from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped, UInt8

MOST_IN_16_BITS = 256  # numbers of 8 bits whose sum, with what it takes to round their mean, fits


def resized(
    picture: UInt8[np.ndarray, "H W C"], height: int, width: int
) -> UInt8[np.ndarray, "{height} {width} C"]:
    """The mean over each new pixel's area, sampled at least once in every old pixel.

    A game's every step comes through here. Whole lines are gathered many times faster than pixels of three bytes, so
    that the columns are gathered as lines too; sums have no more bits than they need.
    """
    H, W, C = picture.shape
    rows, columns = _places(H, height, 1), _places(W, width, C)
    count = len(rows) * len(columns)
    wide = np.uint16 if count <= MOST_IN_16_BITS else np.uint32
    tall = _sums(picture.reshape(H, -1), rows, wide)
    whole = _sums(np.ascontiguousarray(tall.T), columns, wide)
    whole += count // 2
    whole //= count
    return np.ascontiguousarray(whole.astype(np.uint8).T).reshape(height, width, C)


def _sums(lines: Shaped[np.ndarray, "n m"], places: tuple[np.ndarray, ...], wide: Any) -> np.ndarray:
    """Of the lines at the i-th of all places, for every i."""
    total = lines.take(places[0], axis=0).astype(wide, copy=False)
    for place in places[1:]:
        total += lines.take(place, axis=0)
    return total


@lru_cache(maxsize=64)
def _places(old: int, new: int, channels: int) -> tuple[Int[np.ndarray, " _"], ...]:
    """For each sample within a new pixel, the old pixel that it falls into, for all new ones and all their channels."""
    samples = -(-old // new)
    pixels = [
        ((np.arange(new) + (sample + 0.5) / samples) * old / new).astype(np.intp) for sample in range(samples)
    ]
    return tuple((pixel[:, None] * channels + np.arange(channels)).reshape(-1) for pixel in pixels)
