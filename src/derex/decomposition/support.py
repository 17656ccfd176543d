"""Inputs unlike any the networks were trained on: their norm says nothing, so their bonus must not rest on it.

In the exact visitation geometry f(s) = U_s / √d(s), and a state that was never seen has an infinite norm. A network
does not extrapolate that way: where no training signal arrived it often returns an average representation, that
is a *small* norm. What tells such inputs apart is the part of their features that no training row's features span.
With features φ, counted over n training visits, C = E[φ φᵀ] (centred) and ρ = E‖φ‖²/n, the weight of one visit,

    share(s) = φᵀ ρ (C + ρ I)⁻¹ φ / ‖φ‖²   in [0, 1].

For one-hot features it is exactly 1/(N(s) + 1), N(s) the number of visits: 1 if never seen. A bonus is raised where
the share is above what fresh visits to the training states show (the 99th percentile over visits, each left out of its
own C), continuously, up to √2 times the largest bonus in training: that of a state visited half as often as the
rarest. Below it the bonus is left exactly as it is.

Shapes: m distinct rows, h features.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

QUANTILE = 0.99
CEILING = 2.0**0.5


class Support(NamedTuple):
    """What the training rows' features span."""

    mean: Float[np.ndarray, " h"]
    filter: Float[np.ndarray, "h h"]  # φ -> the part of φ that training does not explain
    threshold: Float[np.ndarray, ""]  # of the share; 1 switches the guard off
    ceiling: Float[np.ndarray, ""]  # most that is added to a bonus


def fit_support(
    features: Float[np.ndarray, "m h"], counts: Float[np.ndarray, " m"], largest_bonus: float
) -> Support:
    """Describe the span of training features, row i seen counts[i] times."""
    phi, counts = np.asarray(features, np.float64), np.asarray(counts, np.float64)
    n = counts.sum()
    mean = counts @ phi / n
    phi = phi - mean
    energy = np.sum(phi**2, axis=1)
    ridge = max(float(counts @ energy), np.finfo(np.float64).tiny) / n  # n ρ: one average visit
    eigenvalues, directions = np.linalg.eigh((phi * counts[:, None]).T @ phi)
    kept = ridge / (np.maximum(eigenvalues, 0.0) + ridge)
    share = (phi @ directions) ** 2 @ kept / np.maximum(energy, np.finfo(np.float64).tiny)
    return Support(
        mean.astype(np.float32),
        (directions * np.sqrt(kept)).T.astype(np.float32),
        np.float32(_fresh_visit_quantile(share, energy / ridge, counts)) * np.ones((), np.float32),
        np.float32(CEILING * largest_bonus) * np.ones((), np.float32),
    )


def unexplained_share(features: Float[np.ndarray, "b h"], support: Support) -> Float[np.ndarray, " b"]:
    """share(s) of each row: 0 where training explains the features, 1 where nothing like them was seen."""
    phi = np.asarray(features, np.float32) - support.mean
    energy = np.maximum(np.sum(phi**2, axis=1), np.finfo(np.float32).tiny)
    return np.clip(np.sum((phi @ support.filter.T) ** 2, axis=1) / energy, 0.0, 1.0)


def raise_bonus(
    bonus: Float[np.ndarray, " b"], share: Float[np.ndarray, " b"], support: Support
) -> Float[np.ndarray, " b"]:
    """bonus + ceiling · (1 - threshold / share) where share > threshold, the bonus itself elsewhere."""
    excess = 1.0 - support.threshold / np.maximum(share, support.threshold)
    return (bonus + support.ceiling * excess).astype(np.float32)


def _fresh_visit_quantile(
    share: Float[np.ndarray, " m"], relative_energy: Float[np.ndarray, " m"], counts: Float[np.ndarray, " m"]
) -> float:
    """The share at a fresh visit, with that visit left out of C (rank-one update), at the quantile over visits."""
    leverage = np.clip(share * relative_energy, 0.0, 1.0 - 1e-9)
    fresh = np.minimum(share / (1.0 - leverage), 1.0)
    order = np.argsort(fresh)
    cumulative = np.cumsum(counts[order]) / counts.sum()
    return float(max(fresh[order][np.searchsorted(cumulative, QUANTILE)], np.finfo(np.float32).tiny))
