"""What a fitted model remembers of what it has seen, so that the unseen gets the largest bonus.

A guard says by how much each row is unlike the training data: 0 for all that is like it, whose bonus stays exactly as
it is, up to 1, which adds √2 times the largest bonus of what was seen. That is the bonus of a state visited half as
often as the rarest one: ‖f(s)‖ grows like d(s)^-½.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from derex.decomposition.support import Support, excess, unexplained_share
from derex.networks.fixed import blocks


@runtime_checkable
class Guard(Protocol):
    """Tells rows apart from the training data; `features` are those of the rows, where asked for."""

    @property
    def needs_features(self) -> bool: ...

    def excess(self, rows: np.ndarray, features: np.ndarray | None) -> Float[np.ndarray, " n"]: ...


class NoGuard(NamedTuple):
    """Nothing is known about what was seen: every bonus is the norm."""

    needs_features: bool = False

    def excess(self, rows: np.ndarray, features: np.ndarray | None) -> Float[np.ndarray, " n"]:
        return np.zeros(len(rows), np.float32)


class SeenIds(NamedTuple):
    """Which ids of a table were trained. Those never seen have no representation, and are in excess by 1."""

    seen: Bool[np.ndarray, " n_ids"]
    needs_features: bool = False

    def excess(self, rows: np.ndarray, features: np.ndarray | None) -> Float[np.ndarray, " n"]:
        return (~self.seen[rows]).astype(np.float32)

    def including(self, rows: np.ndarray) -> SeenIds:
        """The same with these ids seen as well."""
        seen = self.seen.copy()
        for block in blocks(rows):
            seen[block] = True
        return SeenIds(seen)


class FeatureSpan(NamedTuple):
    """Features of the training rows; see `derex.decomposition.support`."""

    support: Support
    typical: Float[np.ndarray, "m k"]  # representations of training rows, whose largest bonus is the measure
    needs_features: bool = True

    def excess(self, rows: np.ndarray, features: np.ndarray | None) -> Float[np.ndarray, " n"]:
        assert features is not None
        return excess(unexplained_share(features, self.support), self.support)
