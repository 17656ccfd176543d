"""Inputs unlike any the networks were trained on: their norm says nothing, so their bonus must not rest on it.

In the exact visitation geometry f(s) = U_s / √d(s), and a state that was never seen has an infinite norm. A network
does not extrapolate that way: where no training signal arrived it often returns an average representation, that
is a *small* norm. What tells such inputs apart is the part of their features that no training row's features span.
With features φ, counted over n training visits, C = E[φ φᵀ] (centred) and ρ = E‖φ‖²/n, the weight of one visit,

    share(s) = φᵀ ρ (C + ρ I)⁻¹ φ / ‖φ‖²   in [0, 1].

For one-hot features it is 1/(N(s) + 1), N(s) the number of visits: 1 if never seen (up to the centring, a relative
error of the order of Σ_s d(s)²). A bonus is raised where
the share is above what fresh visits to the training states show (the 99th percentile over visits, each left out of its
own C), continuously, by up to √2 times the largest bonus in training: that of a state visited half as often as the
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


def fit_support(features: Float[np.ndarray, "m h"], counts: Float[np.ndarray, " m"]) -> Support:
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
        np.asarray(_fresh_visit_quantile(share, energy / ridge, counts), np.float32),
    )


def unexplained_share(features: Float[np.ndarray, "b h"], support: Support) -> Float[np.ndarray, " b"]:
    """share(s) of each row: 0 where training explains the features, 1 where nothing like them was seen."""
    phi = np.asarray(features, np.float32) - support.mean
    energy = np.maximum(np.sum(phi**2, axis=1), np.finfo(np.float32).tiny)
    return np.clip(np.sum((phi @ support.filter.T) ** 2, axis=1) / energy, 0.0, 1.0)


def excess(share: Float[np.ndarray, " b"], support: Support) -> Float[np.ndarray, " b"]:
    """1 - threshold / share where the share is above the threshold, 0 elsewhere: how much of the ceiling to add."""
    return (1.0 - support.threshold / np.maximum(share, support.threshold)).astype(np.float32)


def raise_bonus(
    bonus: Float[np.ndarray, " b"], excess: Float[np.ndarray, " b"], largest_bonus: float
) -> Float[np.ndarray, " b"]:
    """bonus + √2 · (largest bonus in training) · excess: where nothing is in excess, the bonus itself."""
    return (bonus + np.float32(CEILING * largest_bonus) * excess).astype(np.float32)


def _fresh_visit_quantile(
    share: Float[np.ndarray, " m"], relative_energy: Float[np.ndarray, " m"], counts: Float[np.ndarray, " m"]
) -> float:
    """The share at a fresh visit, with that visit left out of mean and C, at the quantile over visits.

    Leaving one visit out of n takes n/(n-1) φφᵀ from the scatter matrix n C: a rank-one update.
    """
    n = counts.sum()
    leverage = np.clip(share * relative_energy * n / max(n - 1.0, 1.0), 0.0, 1.0 - 1e-9)
    fresh = np.minimum(share / (1.0 - leverage), 1.0)
    order = np.argsort(fresh)
    cumulative = np.cumsum(counts[order]) / n
    at = min(np.searchsorted(cumulative, QUANTILE), len(order) - 1)
    return float(max(fresh[order][at], np.finfo(np.float32).tiny))
