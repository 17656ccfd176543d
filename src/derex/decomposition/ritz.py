"""Singular functions within the span of learnt features (Rayleigh–Ritz), and how far to trust them.

Training makes f and g span the leading singular functions long before each f_i is one of them, and the inputs φ of a
network's last layer span more than its k outputs. The best singular functions within the spans of φ(x) and ψ(y) have a
closed form, canonical correlation analysis:

    C_φ^-½ Cov(φ, ψ) C_ψ^-½ = U S Vᵀ,    f = Uᵀ C_φ^-½ (φ - E φ),    g = Vᵀ C_ψ^-½ (ψ - E ψ),

with E f fᵀ = E g gᵀ = I and E f gᵀ = S: the singular value decomposition of Section 4 restricted to the spans. In any
basis of the same spans the result is the same, so two fits that span the same functions agree.

Many features of few rows correlate by chance. How well a solution describes rows that it was not computed from is its
**energy** there,

    2 tr(S Cov(f, g)) - tr(S Cov(f) S Cov(g)) = ‖M₀‖² - ‖M₀ - Σ_i σ_i f_i ⊗ g_i‖²,

which is Σ σ_i² for the exact functions, and lower for any others. Everything here runs in double precision on the host.

Shapes: n rows, p features of x, q features of y, k functions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Num

RIDGES = (
    1e-7,
    1e-5,
    1e-3,
)  # relative to the largest variance of a direction; features are in single precision
LEAST_VARIANCE = 1e-10  # of a direction, relative to the largest: less is rounding of the features
TIE = 0.9  # values of this share of the largest magnitude decide the sign together


class FeatureMoments(NamedTuple):
    """Total weight of some rows, and the weighted sums of their features and of their products."""

    weight: float
    sum_f: Float64[np.ndarray, " p"]
    sum_g: Float64[np.ndarray, " q"]
    ff: Float64[np.ndarray, "p p"]
    fg: Float64[np.ndarray, "p q"]
    gg: Float64[np.ndarray, "q q"]

    def covariances(self) -> "Covariances":
        """Means and centred covariances."""
        weight = self.weight or 1.0  # of no rows everything is 0
        f, g = self.sum_f / weight, self.sum_g / weight
        parts = (self.ff, f, f), (self.fg, f, g), (self.gg, g, g)
        return Covariances(f, g, *(total / weight - np.outer(a, b) for total, a, b in parts))


class Covariances(NamedTuple):
    """Means and covariances of the features of x and y."""

    mean_f: Float64[np.ndarray, " p"]
    mean_g: Float64[np.ndarray, " q"]
    ff: Float64[np.ndarray, "p p"]
    fg: Float64[np.ndarray, "p q"]
    gg: Float64[np.ndarray, "q q"]


class RitzFunctions(NamedTuple):
    """k functions of x, (φ(x) - mean_f) @ f, and of y, with their singular values, in descending order."""

    mean_f: Float64[np.ndarray, " p"]
    mean_g: Float64[np.ndarray, " q"]
    f: Float64[np.ndarray, "p k"]
    g: Float64[np.ndarray, "q k"]
    singular_values: Float64[np.ndarray, " k"]

    def flipped(self, signs: Float[np.ndarray, " k"]) -> "RitzFunctions":
        """Each pair of functions times a sign."""
        return self._replace(f=self.f * signs, g=self.g * signs)


def compute_feature_moments(
    f: Num[np.ndarray, "n p"], g: Num[np.ndarray, "n q"], counts: Num[np.ndarray, " n"] | None = None
) -> FeatureMoments:
    """The moments of paired rows; row i counts counts[i] times (None: once). Moments of disjoint rows add up."""
    f, g = np.asarray(f, np.float64), np.asarray(g, np.float64)
    weights = np.ones(len(f)) if counts is None else np.asarray(counts, np.float64)
    weighted_f, weighted_g = f.T * weights, g.T * weights
    return FeatureMoments(
        float(weights.sum()), weights @ f, weights @ g, weighted_f @ f, weighted_f @ g, weighted_g @ g
    )


def add_moments(parts: Sequence[FeatureMoments]) -> FeatureMoments:
    """The moments of all rows of the parts together."""
    return FeatureMoments(*(sum(values[1:], values[0]) for values in zip(*parts, strict=True)))


def scale_moments(moments: FeatureMoments, factor: float) -> FeatureMoments:
    """The moments of the same rows, each counted `factor` times."""
    return FeatureMoments(*(factor * total for total in moments))  # pyrefly: ignore[bad-argument-type]


def solve_ritz(moments: FeatureMoments, k: int, ridge: float = RIDGES[0]) -> RitzFunctions:
    """The k leading singular functions within the spans of the features.

    Args:
        moments: of the rows.
        k: number of functions. Spans of fewer dimensions are filled up with zero functions of singular value 0.
        ridge: added to the variance of every direction, relative to the largest.
    """
    of = moments.covariances()
    root_f, root_g = _inverse_sqrt(of.ff, ridge), _inverse_sqrt(of.gg, ridge)
    U, _, Vt = np.linalg.svd(root_f.T @ of.fg @ root_g, full_matrices=False)
    f, g = root_f @ U[:, :k], root_g @ Vt[:k].T
    f, g = (_unit_variance(side, C) for side, C in ((f, of.ff), (g, of.gg)))  # the ridge had shrunk them
    sigma = np.maximum(np.einsum("pk,pq,qk->k", f, of.fg, g), 0.0)
    order = np.argsort(-sigma, kind="stable")
    missing = ((0, 0), (0, k - len(order)))
    f, g = (np.pad(side[:, order], missing) for side in (f, g))
    return RitzFunctions(of.mean_f, of.mean_g, f, g, np.pad(sigma[order], missing[1]))


def evaluate_ritz(
    functions: RitzFunctions, moments: FeatureMoments
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """The functions on other rows: the correlation of each pair, and the energy of the first 1, 2, …, k pairs."""
    of = moments.covariances()
    ff, gg = functions.f.T @ of.ff @ functions.f, functions.g.T @ of.gg @ functions.g
    fg = functions.f.T @ of.fg @ functions.g
    sigma = functions.singular_values
    scale = np.sqrt(np.diag(ff) * np.diag(gg))
    correlation = np.divide(np.diag(fg), scale, out=np.zeros_like(scale), where=scale > 0.0)
    cross = sigma[:, None] * ff * sigma * gg
    quadratic = np.cumsum(np.tril(cross, -1).sum(axis=1) * 2.0 + np.diag(cross))
    return correlation, 2.0 * np.cumsum(sigma * np.diag(fg)) - quadratic


def choose_ridge(
    halves: Sequence[FeatureMoments], k: int, ridges: Sequence[float] = RIDGES
) -> tuple[float, float, Float64[np.ndarray, " k"]]:
    """The ridge of highest energy on the half that each solution was not computed from.

    Returns:
        The ridge, its energy, and the k correlations on the other half; the last two are means over both halves.
    """
    best: tuple[float, float, np.ndarray] | None = None
    for ridge in ridges:
        checked = []
        for one, other in (halves, halves[::-1]):
            checked.append(evaluate_ritz(solve_ritz(one, k, ridge), other))
        correlation, energy = (np.mean([each[i] for each in checked], axis=0) for i in (0, 1))
        if best is None or energy[-1] > best[1]:
            best = ridge, float(energy[-1]), correlation
    assert best is not None
    return best


def compute_sampling_errors(
    f: Float[np.ndarray, "n k"],
    g: Float[np.ndarray, "n k"],
    singular_values: Float[np.ndarray, " k"],
    counts: Num[np.ndarray, " n"] | None = None,
) -> Float64[np.ndarray, " k"]:
    """Standard error of each σ_i, from its influence function f_i g_i - ½ σ_i (f_i² + g_i²), rows independent."""
    influence = f * g - 0.5 * singular_values * (f**2 + g**2)
    weights = np.ones(len(f)) if counts is None else np.asarray(counts, np.float64)
    n = weights.sum()
    mean = weights @ influence / n
    return np.sqrt(weights @ (influence - mean) ** 2 / n / n)


def choose_signs(values: Float[np.ndarray, "n k"]) -> Float64[np.ndarray, " k"]:
    """Signs that make each column's largest value positive.

    Of symmetric functions the largest and the smallest value are equally far from 0 up to noise: of all values within
    10 % of the largest magnitude the first one decides, so that two fits agree.
    """
    size = np.abs(values)
    first = np.argmax(size >= TIE * size.max(axis=0), axis=0)
    return np.where(np.take_along_axis(values, first[None], axis=0)[0] < 0.0, -1.0, 1.0)


def bonus_weights(
    singular_values: Float[np.ndarray, " k"], learnt: Bool[np.ndarray, " k"], sigma_floor: float
) -> Float64[np.ndarray, " k"]:
    """1 / max(σ_i, sigma_floor), and 0 for functions that were not learnt: their σ_i is noise."""
    sigma = np.maximum(np.asarray(singular_values, np.float64), sigma_floor)
    return np.divide(1.0, sigma, out=np.zeros_like(sigma), where=learnt & (sigma > 0.0))


def _inverse_sqrt(C: Float64[np.ndarray, "p p"], ridge: float) -> Float64[np.ndarray, "p r"]:
    """R with Rᵀ (C + ridge λ₁ I) R = I on the directions of C that vary."""
    values, directions = np.linalg.eigh(C)
    largest = max(values[-1], np.finfo(np.float64).tiny)
    varies = values > LEAST_VARIANCE * largest
    return directions[:, varies] / np.sqrt(values[varies] + ridge * largest)


def _unit_variance(
    functions: Float64[np.ndarray, "p k"], C: Float64[np.ndarray, "p p"]
) -> Float64[np.ndarray, "p k"]:
    """Rescales columns to variance 1 under the covariance C."""
    deviation = np.sqrt(np.einsum("pk,pq,qk->k", functions, C, functions))
    return np.divide(functions, deviation, out=np.zeros_like(functions), where=deviation > 0.0)
