"""Pictures at another size, with nothing but numpy."""

from functools import lru_cache

import numpy as np
from jaxtyping import UInt8


def resized(
    picture: UInt8[np.ndarray, "H W C"], height: int, width: int
) -> UInt8[np.ndarray, "{height} {width} C"]:
    """The mean over each new pixel's area, sampled at least once in every old pixel."""
    rows, columns = _places(picture.shape[0], height), _places(picture.shape[1], width)
    tall = sum(
        (picture.take(row, axis=0).astype(np.uint32) for row in rows[1:]), picture[rows[0]].astype(np.uint32)
    )
    whole = sum((tall.take(column, axis=1) for column in columns[1:]), tall.take(columns[0], axis=1))
    count = len(rows) * len(columns)
    return ((whole + count // 2) // count).astype(np.uint8)


@lru_cache(maxsize=64)
def _places(old: int, new: int) -> tuple[np.ndarray, ...]:
    """For each sample within a new pixel, the old pixel that it falls into, for all new ones."""
    samples = -(-old // new)
    return tuple(
        ((np.arange(new) + (sample + 0.5) / samples) * old / new).astype(np.intp) for sample in range(samples)
    )
