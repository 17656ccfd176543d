"""How close a learnt decomposition is to the exact one, where states can be enumerated.

Singular vectors are not compared one by one: near-degenerate singular values, frequent in symmetric worlds, make the
vectors (and subspaces cut inside a cluster) arbitrary. Rotations inside a cluster leave unchanged how much of the
joint's energy the functions capture.

All scores use the visitation geometry (see `derex.decomposition.exact`) and are invariant to shifts and positive
rescalings of each function. States that are never visited (d = 0) are ignored. Letters in shapes: n rows, m columns of
the joint, k components.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Num
from scipy import stats

from derex._text import require
from derex.decomposition.chains import check_distribution, check_joint, compute_marginals
from derex.decomposition.exact import decompose, visitation_matrix

_TOLERANCE = 1e-6  # relative variation below this is rounding: values are often float32


def captured_energy(joint: Num[Any, "n m"], f_values: Float[Any, "n k"]) -> float:
    """‖M_0ᵀ Q‖_F² / Σ_{i<=k} σ_i²: the part of the best possible energy that the span of f holds.

    M_0 is D^{1/2} P D'^{-1/2} without its constant mode and Q an orthonormal basis of √d (f - E_d f). It is 1 exactly
    for the top-k left singular functions, or any invertible mixture of them.

    Args:
        joint: A = D P.
        f_values: value of the k functions at every state.

    Returns:
        A number in [0, 1]; NaN when the joint has no energy beyond its constant mode.
    """
    A = check_joint(joint)
    d, _ = compute_marginals(A)
    columns = np.sqrt(d)[:, None] * _standardise("f_values", f_values, d)
    U, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    Q = U[:, sizes > _TOLERANCE * np.max(sizes, initial=0.0)]
    # Q is orthogonal to √d, so the constant mode of M need not be removed.
    energy = float(np.sum((visitation_matrix(A).T @ Q) ** 2))
    return _ratio(energy, np.sum(_exact_values(A, np.shape(f_values)[1]) ** 2))


def correlation_matrix(
    joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]
) -> Float64[np.ndarray, "k k"]:
    """Σ(θ) = E[f(s) g(s')ᵀ] (Section 4) under the joint, with f and g standardised exactly under d and d'.

    Rows and columns of constant components are 0.
    """
    A = check_joint(joint)
    d, d_next = compute_marginals(A)
    f, g = _standardise("f_values", f_values, d), _standardise("g_values", g_values, d_next)
    same, expected = f.shape[1] == g.shape[1], f"as many components as f_values, {f.shape[1]}"
    require(same, "g_values", expected, g.shape[1])
    return np.asarray(f.T @ (A @ g))


def trace_ratio(joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]) -> float:
    """Σ_i Σ(θ)_ii / Σ_{i<=k} σ_i: 1 for the exact decomposition; above 1 if modes are duplicated."""
    sigma = correlation_matrix(joint, f_values, g_values)
    return _ratio(np.trace(sigma), np.sum(_exact_values(joint, len(sigma))))


def largest_off_diagonal(
    joint: Num[Any, "n m"], f_values: Float[Any, "n k"], g_values: Float[Any, "m k"]
) -> float:
    """max_{i≠j} |Σ(θ)_ij|: 0 for the exact decomposition, the constraint of the problem in Section 3."""
    sigma = correlation_matrix(joint, f_values, g_values)
    return float(np.max(np.abs(sigma[~np.eye(len(sigma), dtype=bool)]), initial=0.0))


def bonus_rank_correlation(bonus: Float[Any, " n"], d: Num[Any, " n"]) -> float:
    """Spearman's correlation of the bonus with 1/d(s) over visited states; NaN when either is constant.

    The flatter d is, the lower it is for the exact bonus too: compare with the exact bonus on the same data.
    """
    d = check_distribution("d", d)
    bonus = np.asarray(bonus, dtype=np.float64)
    expected = f"one value for each of {len(d)} states"
    require(bonus.shape == d.shape, "bonus", expected, f"shape {bonus.shape}")
    bonus, rarity = bonus[d > 0], 1.0 / d[d > 0]
    require(not np.any(np.isnan(bonus)), "bonus", "numbers", "NaN at a visited state")
    if len(bonus) < 2 or np.all(bonus == bonus[0]) or np.all(rarity == rarity[0]):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(bonus), stats.rankdata(rarity))[0, 1])


def auroc(scores_unseen: Num[Any, " a"], scores_seen: Num[Any, " b"]) -> float:
    """The probability that an unseen state scores higher than a seen one, ties counting one half."""
    unseen, seen = np.ravel(np.asarray(scores_unseen)), np.ravel(np.asarray(scores_seen))
    numbers = f"{len(unseen)} and {len(seen)}"
    require(len(unseen) and len(seen), "scores_unseen, scores_seen", "at least one score in both", numbers)
    ranks = stats.rankdata(np.concatenate([unseen, seen]))
    wins = ranks[: len(unseen)].sum() - len(unseen) * (len(unseen) + 1) / 2
    return float(wins / (len(unseen) * len(seen)))


def _exact_values(joint: Any, k: int) -> Float64[np.ndarray, " k"]:
    """The exact top k singular values, or all where there are fewer than k."""
    A = check_joint(joint)
    available = min(int(np.sum(marginal > 0)) for marginal in compute_marginals(A)) - 1
    return decompose(A, min(k, available) if available else None).singular_values


def _standardise(name: str, values: Any, weights: np.ndarray) -> Float64[np.ndarray, "size k"]:
    """Function values with mean 0 and variance 1 under the weights; 0 for constants and where weights are 0."""
    values = np.asarray(values, dtype=np.float64)
    good = values.ndim == 2 and len(values) == len(weights) and values.shape[1] > 0
    require(good, name, f"shape ({len(weights)}, k)", values.shape)
    visited = (weights > 0)[:, None]
    values = np.where(visited, values, 0.0)
    require(np.all(np.isfinite(values)), name, "finite values", "NaN or infinity at a visited state")
    centred = np.where(visited, values - weights @ values, 0.0)
    deviation = np.sqrt(weights @ centred**2)
    varies = deviation > _TOLERANCE * np.max(np.abs(values), axis=0)
    return np.where(varies, centred / np.where(varies, deviation, 1.0), 0.0)


def _ratio(value: Any, best: Any) -> float:
    return float(value / best) if best > np.finfo(np.float64).eps else float("nan")
