"""Returns, lengths and successes of the episodes of host streams: what `Statistics` is to JAX environments.

Letters in shapes: n streams.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from derex.envs.host.steps import Steps
from derex.envs.wrappers import EpisodeSums


class EpisodeCounter:
    """Counts episodes as they end.

    Not counted, however they end: a first episode whose time limit was shortened, and one that was cut by a fault, of
    which nobody knows what it would have come to.
    """

    def __init__(
        self, shortened: Bool[np.ndarray, " n"], success_return: float | Float[np.ndarray, " n"] | None
    ):
        """`shortened` says whose first episode has less than the whole time limit; success is of all or of each."""
        n = len(shortened)
        self._threshold = np.inf if success_return is None else success_return
        self._whole = ~shortened
        self._begun = np.zeros(n, bool)
        self._return, self._length = np.zeros(n), np.zeros(n, np.int64)
        self._sums = _nothing(n)

    def add(self, step: Steps, cut: Bool[np.ndarray, " n"]) -> None:
        """One step of all streams, and which episodes a fault has cut there."""
        self._return += step.reward
        self._length += 1
        if step.first.any():
            self._whole |= step.first & self._begun  # no episode but the very first is shortened
            self._begun |= step.first
            self._return[step.first], self._length[step.first] = 0.0, 0
        last = step.last
        if not last.any():  # as a rule
            return
        counted, sums = last & self._whole & ~cut, self._sums
        success = counted & (self._return >= self._threshold)
        self._sums = EpisodeSums(
            sums.episodes + counted,
            sums.returns + np.where(counted, self._return, 0.0),
            sums.lengths + np.where(counted, self._length, 0),
            sums.successes + success,
        )

    def taken(self) -> EpisodeSums:
        """What was counted since this was last asked for, of each stream; numpy arrays."""
        sums, self._sums = self._sums, _nothing(len(self._whole))
        return sums


def _nothing(n: int) -> EpisodeSums:
    none, zero = np.zeros(n, np.int64), np.zeros(n)
    return EpisodeSums(none, zero, none, none)  # type: ignore[arg-type]
