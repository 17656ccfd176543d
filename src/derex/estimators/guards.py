"""What a fitted model remembers of what it has seen, so that the unseen gets the largest bonus.

A guard says by how much each row is unlike the training data: 0 for all that is like it, whose bonus stays exactly as
it is, up to 1, which adds √2 times the largest bonus of what was seen. That is the bonus of a state visited half as
often as the rarest one: ‖f(s)‖ grows like d(s)^-½.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from derex.decomposition.support import Support, excess, fit_support, unexplained_share
from derex.estimators.data import map_rows
from derex.networks.fixed import blocks


@runtime_checkable
class Guard(Protocol):
    """Tells rows apart from the training data; `dtype` is the one in which networks see them."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]: ...


class NoGuard(NamedTuple):
    """Nothing is known about what was seen: every bonus is the norm."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return np.zeros(len(rows), np.float32)


class SeenIds(NamedTuple):
    """Which ids of a table were trained. Those never seen have no representation, and are in excess by 1."""

    seen: Bool[np.ndarray, " n_ids"]

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return (~self.seen[rows]).astype(np.float32)

    def including(self, rows: np.ndarray) -> SeenIds:
        """The same with these ids seen as well."""
        seen = self.seen.copy()
        for block in blocks(rows):
            seen[block] = True
        return SeenIds(seen)


class FeatureSpan(NamedTuple):
    """Features of the rows that a fit saw; see `derex.decomposition.support`.

    They are those of the network as the fit left it: `partial_fit` moves on, and what training rows' features spanned
    then says nothing about a network that has changed.
    """

    support: Support
    typical: Float[np.ndarray, "m k"]  # representations of training rows, whose largest bonus is the measure
    network: Any  # an eqx.Module with a `features` method

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return excess(unexplained_share(features_of(self.network, rows, dtype), self.support), self.support)


def features_of(network: Any, rows: np.ndarray, dtype: str) -> Float[np.ndarray, "n h"]:
    """What the network's last layer reads, as vectors."""
    return map_rows(network.features, rows, dtype).reshape(len(rows), -1)


def feature_span(
    network: Any, rows: np.ndarray, counts: Float[np.ndarray, " m"], dtype: str, typical: np.ndarray
) -> FeatureSpan:
    """What the features of these rows span, row i seen counts[i] times."""
    return FeatureSpan(fit_support(features_of(network, rows, dtype), counts), typical, network)
