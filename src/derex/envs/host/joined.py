"""Several pools as one: streams in workers beside streams of libraries that step many at once.

Letters in shapes: n streams of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Int64, Shaped

from derex.envs.host.pool import Pool
from derex.envs.host.steps import Steps, empty_steps
from derex.envs.host.vector import VectorPool
from derex.types import EnvironmentSpec


class Member(NamedTuple):
    """A pool, and where its streams are."""

    pool: Pool | VectorPool
    rows: tuple[Int[np.ndarray, " _"], ...]
    """of each group, in the order of the pool's own"""


class JoinedPool:
    """All streams of all members, used like a `Pool`; every member has streams in every group."""

    def __init__(self, spec: EnvironmentSpec, groups: tuple[int, ...], members: Sequence[Member]):
        """Of pools that are open and show what `spec` says."""
        self.spec, self.groups, self._members = spec, groups, tuple(members)
        self.shortened = self._gathered([member.pool.shortened for member in members]).astype(bool)
        self._buffers = [[empty_steps(spec, len(rows)) for rows in member.rows] for member in self._members]

    @property
    def restarts(self) -> int:
        """Of all workers, so far."""
        return sum(member.pool.restarts for member in self._members)

    @property
    def begun(self) -> Int64[np.ndarray, " n"]:
        """How many episodes of each stream were begun; a copy."""
        return self._gathered([member.pool.begun for member in self._members])

    def send(self, group: int, actions: Shaped[np.ndarray, "n *action"] | None = None) -> None:
        """Has the streams of a group stepped; without actions, for the very first step of all."""
        for pool, rows in self._members:
            pool.send(group, None if actions is None else actions[rows[group]])

    def receive(
        self, group: int, into: Steps, before: tuple[Any, ...] | None = None
    ) -> Bool[np.ndarray, " n"]:
        """Waits for the step that was sent for, and fills it in; as `Pool.receive`."""
        cut = np.zeros(self.groups[group], bool)
        for (pool, rows), buffers in zip(self._members, self._buffers, strict=True):
            here, part = rows[group], buffers[group]
            earlier = None if before is None else tuple(array[here] for array in before)
            cut[here] = pool.receive(group, part, earlier)
            for whole, own in zip(jax.tree.leaves(into), jax.tree.leaves(part), strict=True):
                whole[here] = own
        return cut

    def close(self) -> None:
        """Closes all; harmless when repeated."""
        for member in self._members:
            member.pool.close()

    def _gathered(self, parts: list[Any]) -> np.ndarray:
        """One number of each stream, from those of each member."""
        whole = np.zeros(sum(self.groups), np.int64)
        starts = np.cumsum((0, *self.groups))
        for member, part in zip(self._members, parts, strict=True):
            places = [start + rows for start, rows in zip(starts, member.rows, strict=False)]
            whole[np.concatenate(places)] = part
        return whole
