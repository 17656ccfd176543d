"""How close a learnt decomposition is to the exact one, where states can be enumerated.

Singular vectors are not compared one by one: near-degenerate singular values, which symmetric worlds are
full of, make the vectors (and subspaces cut inside a cluster) arbitrary. What a rotation inside a cluster
cannot change is how much of the joint's energy the functions capture.

All scores are in the visitation geometry (see `derex.decomposition.exact`) and invariant to shifts and
positive rescalings of each function. States that are never visited (d = 0) are ignored, whatever their
values. Letters in shapes: n rows, m columns of the joint, k components.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Num
from scipy import stats

from derex.decomposition.chains import Matrix, check_distribution, check_joint
from derex.decomposition.exact import Decomposition, decompose, visitation_matrix

_TOLERANCE = 1e-6  # variation smaller than this part of the whole is rounding: values are often float32


def captured_energy(joint: Num[Any, "n m"], f_values: Float[Any, "n k"]) -> float:
    """‖M_0ᵀ Q‖_F² / Σ_{i<=k} σ_i²: the part of the best possible energy that the span of f holds.

    M_0 is D^{1/2} P D'^{-1/2} without its constant mode and Q an orthonormal basis of √d (f - E_d f).
    It is 1 exactly for the top-k left singular functions, or any invertible mixture of them.

    Args:
        joint: A = D P.
        f_values: value of the k functions at every state.

    Returns:
        A number in [0, 1]; NaN when the joint has no energy beyond its constant mode.
    """
    A = check_joint(joint)
    energy, k = _energy(A, f_values), np.shape(f_values)[1]
    return _ratio(energy, np.sum(_exact(A, k).singular_values ** 2))


def correlation_matrix(
    joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]
) -> Float64[np.ndarray, "k k"]:
    """Σ(θ) = E[f(s) g(s')ᵀ] (Section 4) under the joint, with f and g standardised exactly under d and d'.

    Components that are constant correlate with nothing: their rows or columns are 0.
    """
    A = check_joint(joint)
    f = _standardised("f_values", f_values, _marginal(A, axis=1))
    g = _standardised("g_values", g_values, _marginal(A, axis=0))
    if f.shape[1] != g.shape[1]:
        raise ValueError(
            f"g_values: expected as many components as f_values, {f.shape[1]}; got {g.shape[1]}."
        )
    return np.asarray(f.T @ (A @ g))


def trace_ratio(joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]) -> float:
    """Σ_i Σ(θ)_ii / Σ_{i<=k} σ_i: 1 for the exact decomposition; above 1 means that modes are duplicated."""
    sigma = correlation_matrix(joint, f_values, g_values)
    return _ratio(np.trace(sigma), np.sum(_exact(joint, len(sigma)).singular_values))


def largest_off_diagonal(
    joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]
) -> float:
    """max_{i≠j} |Σ(θ)_ij|: 0 for the exact decomposition, the constraint of the problem in Section 3."""
    return _max_off_diagonal(correlation_matrix(joint, f_values, g_values))


def bonus_rank_correlation(bonus: Float[Any, " n"], d: Num[Any, " n"]) -> float:
    """Spearman's correlation of the bonus with 1/d(s) over visited states; NaN when either is constant.

    How flat d is bounds it for the exact bonus as well: compare with the exact one on the same data.
    """
    d = check_distribution("d", d)
    bonus = np.asarray(bonus, dtype=np.float64)
    if bonus.shape != d.shape:
        raise ValueError(f"bonus: expected one value for each of {len(d)} states, got shape {bonus.shape}.")
    bonus, rarity = bonus[d > 0], 1.0 / d[d > 0]
    if np.any(np.isnan(bonus)):
        raise ValueError("bonus: NaN at a visited state, expected numbers.")
    if len(bonus) < 2 or np.all(bonus == bonus[0]) or np.all(rarity == rarity[0]):
        return float("nan")
    ranks = stats.rankdata(bonus), stats.rankdata(rarity)
    return float(np.corrcoef(*ranks)[0, 1])


def auroc(scores_unseen: Num[Any, " a"], scores_seen: Num[Any, " b"]) -> float:
    """The probability that an unseen state scores higher than a seen one, ties counting one half."""
    unseen, seen = np.ravel(np.asarray(scores_unseen)), np.ravel(np.asarray(scores_seen))
    if len(unseen) == 0 or len(seen) == 0:
        raise ValueError(
            f"scores_unseen, scores_seen: both need at least one score, got {len(unseen)} and {len(seen)}."
        )
    ranks = stats.rankdata(np.concatenate([unseen, seen]))
    wins = ranks[: len(unseen)].sum() - len(unseen) * (len(unseen) + 1) / 2
    return float(wins / (len(unseen) * len(seen)))


def score(
    joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"], bonus: Float[Any, " n"]
) -> dict[str, float]:
    """All scores of a learnt decomposition, and beside them what the exact one gets on the same joint.

    Returns:
        captured_energy, trace_ratio (exact: 1), largest_off_diagonal (exact: 0), spearman of the given
        bonus with 1/d, and spearman_exact of the exact weighted bonus with as many components.
    """
    A = check_joint(joint)
    sigma = correlation_matrix(A, f_values, g_values)
    exact = _exact(A, sigma.shape[0])
    return {
        "captured_energy": _ratio(_energy(A, f_values), np.sum(exact.singular_values**2)),
        "trace_ratio": _ratio(np.trace(sigma), np.sum(exact.singular_values)),
        "largest_off_diagonal": _max_off_diagonal(sigma),
        "spearman": bonus_rank_correlation(bonus, exact.d),
        "spearman_exact": bonus_rank_correlation(exact.bonus(), exact.d),
    }


def _energy(A: Matrix, f_values: Any) -> float:
    """‖M_0ᵀ Q‖_F²; Q is orthogonal to √d, so the constant mode of M need not be taken out."""
    d = _marginal(A, axis=1)
    Q = _orthonormal_basis(np.sqrt(d)[:, None] * _standardised("f_values", f_values, d))
    return float(np.sum((visitation_matrix(A).T @ Q) ** 2))


def _max_off_diagonal(sigma: Float64[np.ndarray, "k k"]) -> float:
    off = ~np.eye(len(sigma), dtype=bool)
    return float(np.max(np.abs(sigma[off]), initial=0.0))


def _exact(joint: Any, k: int) -> Decomposition:
    """The exact top k, or all components where there are fewer than k."""
    A = check_joint(joint)
    available = min(int(np.sum(_marginal(A, axis) > 0)) for axis in (0, 1)) - 1
    return decompose(A, min(k, available) if available else None)


def _marginal(A: Matrix, axis: int) -> Float64[np.ndarray, " size"]:
    return np.asarray(A.sum(axis=axis)).ravel()


def _standardised(name: str, values: Any, weights: np.ndarray) -> Float64[np.ndarray, "size k"]:
    """Function values with mean 0 and variance 1 under the weights; 0 for constants and where weights are."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(weights) or values.shape[1] == 0:
        raise ValueError(f"{name}: expected shape ({len(weights)}, k), got {values.shape}.")
    visited = (weights > 0)[:, None]
    values = np.where(visited, values, 0.0)
    if not np.all(np.isfinite(values)):
        raise ValueError(f"{name}: NaN or infinity at a visited state, expected finite values.")
    centred = np.where(visited, values - weights @ values, 0.0)
    deviation = np.sqrt(weights @ centred**2)
    varies = deviation > _TOLERANCE * np.max(np.abs(values), axis=0)
    return np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)


def _orthonormal_basis(columns: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n r"]:
    """An orthonormal basis of the columns' span; directions lost in rounding are left out."""
    U, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return U[:, sizes > _TOLERANCE * np.max(sizes, initial=0.0)]


def _ratio(value: Any, best: Any) -> float:
    return float(value / best) if best > np.finfo(np.float64).eps else float("nan")
