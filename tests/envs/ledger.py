"""Episodes as the parent sees them, to be held against what environments write down of themselves."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derex.envs.host import HostSteps
from derex.envs.host.worker import episode_seed


class Ledger:
    """Which episodes of each stream the parent has seen begin, by their seeds, and how each went."""

    def __init__(self, keys: Sequence[tuple[int, ...]]):
        """`keys` are those of the streams, which show the seed of their episode as `Pretend` does."""
        self.keys, self.numbers, self.open = keys, [0] * len(keys), [-1] * len(keys)
        self.earliest = [-1] * len(keys)
        """the first episode of each stream that was seen"""
        self.counted: list[int] = []
        self.cut: list[int] = []

    def add(self, start: int, step: HostSteps, cut: Any) -> None:
        """A step of the streams from `start` on, and which of them were cut by a fault."""
        for place, shown in enumerate(step.observation[0][:, 0]):
            first, last, gone = (bool(of[place]) for of in (step.first, step.last, cut))
            self._add(start + place, first, last, gone, shown)

    def _add(self, row: int, first: bool, last: bool, cut: bool, shown: float) -> None:
        if first:
            assert self.open[row] < 0, "an episode begins while another is open"
            self.open[row] = self._next(row, shown)
            if self.earliest[row] < 0:
                self.earliest[row] = self.open[row]
        if cut or last:
            (self.cut if cut else self.counted).append(self.open[row])
            self.open[row] = -1

    def _next(self, row: int, shown: float) -> int:
        """The seed of the stream's next episode that shows this number; those before it nobody has seen."""
        while True:
            seed = episode_seed(self.keys[row], self.numbers[row])
            self.numbers[row] += 1
            if np.float32(seed / 2**31) == shown:
                return seed


def written(log: Path, event: str) -> list[dict[str, Any]]:
    """What environments wrote down when their episodes `began` or `ended`."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]
