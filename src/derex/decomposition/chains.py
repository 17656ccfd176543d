"""Matrices of a finite Markov decision process, in float64: the input of the exact decomposition.

Symbols are the paper's. P[s, a, s'] are the dynamics, P_π the transition matrix of a policy (Section 2), d the
distribution of the states that transitions start from, D = diag(d), and A = E[x yᵀ] = D P the joint distribution of a
state and its successor (Section 3).

Letters in shapes: S states, A actions, n rows and m columns of a general (rectangular) joint. Matrices may be NumPy
arrays, JAX arrays or SciPy sparse; sparse stays sparse where that makes sense.
"""

from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Float64, Int, Num

from derex._text import require

Matrix: TypeAlias = Any
"""A float64 `np.ndarray` or `scipy.sparse.csr_array`; SciPy has no static types for it."""

SUM_TOLERANCE = 1e-5  # probabilities whose sum is this close to one are renormalised


def policy_transition_matrix(
    P_sas: Num[Any, "S A S"], policy: Num[Any, "S A"] | None = None
) -> Float64[np.ndarray, "S S"]:
    """P_π[s, s'] = Σ_a Pr(s' | s, a) π(a | s) (Section 2).

    Args:
        P_sas: dynamics, P[s, a, s'].
        policy: π[s, a]; None is the uniformly random policy.
    """
    P_sas = _check_dynamics(P_sas)
    n_states, n_actions, _ = P_sas.shape
    if policy is None:
        return P_sas.mean(axis=1)
    policy, shape = _check_stochastic("policy", policy), (n_states, n_actions)
    require(policy.shape == shape, "policy", f"shape {shape} to match P_sas", policy.shape)
    return np.einsum("sa,sat->st", policy, P_sas)


def state_action_matrix(P_sas: Num[Any, "S A S"]) -> Float64[np.ndarray, "SA S"]:
    """P in R^{|S||A| x |S|}: one row for each state-action pair, row s·A + a (Section 5).

    Its row distribution under a policy is ``(d[:, None] * policy).ravel()``.
    """
    P_sas = _check_dynamics(P_sas)
    return P_sas.reshape(-1, P_sas.shape[2])


def visitation(P_pi: Num[Any, "S S"], start: Num[Any, " S"] | int, horizon: int) -> Float64[np.ndarray, " S"]:
    """d = (1/T) Σ_{t<T} d_0ᵀ P_π^t: the mean distribution over the first T = `horizon` steps.

    Args:
        P_pi: transition matrix, dense or sparse.
        start: the start-state distribution d_0, or the id of the only start state.
        horizon: number of transitions T of an episode; d is the distribution of their first states.
    """
    P_pi = _check_stochastic("P_pi", P_pi, square=True)
    require(horizon >= 1, "horizon", "at least 1 step", horizon)
    n = P_pi.shape[0]
    if np.ndim(start) == 0:
        require(0 <= int(start) < n, "start", f"a state id in [0, {n - 1}]", start)
        start = np.eye(n)[int(start)]
    d_t = check_distribution("start", start)
    require(len(d_t) == n, "start", f"{n} probabilities, one for each state", len(d_t))
    total = np.zeros_like(d_t)
    for _ in range(horizon):
        total += d_t
        d_t = P_pi.T @ d_t
    return total / total.sum()


def stationary_distribution(P_pi: Num[Any, "S S"]) -> Float64[np.ndarray, " S"]:
    """The distribution with dᵀ P_π = dᵀ; an error if the chain has several recurrent classes."""
    P_pi = to_dense(_check_stochastic("P_pi", P_pi, square=True))
    n = len(P_pi)
    system = np.vstack([np.eye(n) - P_pi.T, np.ones(n)])
    d, _, rank, _ = np.linalg.lstsq(system, np.eye(n + 1)[n], rcond=1e-12)
    if rank < n:
        raise ValueError(
            f"P_pi: the chain has {n + 1 - rank} recurrent classes, so its stationary distribution is not "
            "unique. Use `visitation` with a start distribution instead."
        )
    d = np.maximum(d, 0.0)
    return d / d.sum()


def joint_matrix(d: Num[Any, " n"], P: Num[Any, "n m"]) -> Matrix:
    """A = D P, the joint distribution of a state and the next (Section 3); sparse when `P` is."""
    P = _check_stochastic("P", P)
    d = check_distribution("d", d)
    require(len(d) == P.shape[0], "d", f"{P.shape[0]} entries, one for each row of P", len(d))
    return sp.csr_array(sp.diags_array(d) @ P) if sp.issparse(P) else d[:, None] * P


def empirical_joint(
    x: Int[Any, " N"], y: Int[Any, " N"], n_x: int | None = None, n_y: int | None = None, sparse: bool = False
) -> Matrix:
    """A_n = (1/n) Σ_i x_i y_iᵀ (Section 3, the equation before Theorem 2), from ids.

    Args:
        x: ids of the states (or pairs) that transitions start from.
        y: ids of what follows them.
        n_x: number of rows; by default the largest id of `x` plus one.
        n_y: number of columns; by default the largest id of `y` plus one.
        sparse: return compressed sparse rows.
    """
    x, y = np.asarray(x), np.asarray(y)
    good = x.shape == y.shape and x.ndim == 1 and len(x) > 0
    require(good, "x, y", "two equally long, non-empty vectors of ids", f"{x.shape} and {y.shape}")
    n_x, n_y = _check_ids("x", x, "n_x", n_x), _check_ids("y", y, "n_y", n_y)
    weight = np.full(len(x), 1.0 / len(x))
    A_n = sp.csr_array((weight, (x, y)), shape=(n_x, n_y))
    return A_n if sparse else A_n.toarray()


def successor_representation(P_pi: Num[Any, "S S"], gamma: float | int) -> Float64[np.ndarray, "S S"]:
    """(I - γ P_π)^{-1}: v^π is linear in it, and its eigenvectors are those of P_π (Theorem 1)."""
    require(0.0 <= gamma < 1.0, "gamma", "a discount in [0, 1)", gamma)
    P_pi = to_dense(_check_stochastic("P_pi", P_pi, square=True))
    return np.linalg.inv(np.eye(len(P_pi)) - gamma * P_pi)


def laplacian(joint: Num[Any, "S S"], normalised: bool = True) -> Float64[np.ndarray, "S S"]:
    """The graph Laplacian of the symmetrised chain (Wu et al., 2019), a baseline of the paper.

    W = (D P + (D P)ᵀ)/2 with degrees w = W 1 = (d + d')/2, and L = diag(w) - W, or
    I - diag(w)^{-1/2} W diag(w)^{-1/2} when `normalised`. Rows of unvisited states are zero.
    """
    W = _symmetrise(joint)
    degree = W.sum(axis=1)
    if not normalised:
        return np.diag(degree) - W
    scale = inverse_sqrt(degree)
    return np.diag((degree > 0).astype(np.float64)) - scale[:, None] * W * scale


def laplacian_functions(joint: Num[Any, "S S"], k: int) -> Float64[np.ndarray, "S k"]:
    """The k smoothest functions after the constant: eigenfunctions of I - diag(w)^{-1} W, smallest first.

    They have zero mean, unit variance and no correlation under w = (d + d')/2, the stationary distribution of the
    symmetrised chain; w = d when d is itself stationary. Unvisited states get 0.
    """
    degree = _symmetrise(joint).sum(axis=1)
    visited = degree > 0
    n = int(visited.sum())
    require(1 <= k <= n - 1, "k", f"1 <= k <= {n - 1} (visited states without the constant)", k)
    root = np.sqrt(degree[visited])
    # Lifting the constant function from eigenvalue 0 past the largest possible one, 2, puts it last.
    lifted = laplacian(joint)[np.ix_(visited, visited)] + 3.0 * np.outer(root, root)
    vectors = np.linalg.eigh(lifted)[1][:, :k]
    functions = np.zeros((len(degree), k))
    functions[visited] = vectors * vector_signs(vectors) / root[:, None]
    return functions


def inverse_sqrt(weights: Float[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """w^{-1/2}, and 0 where w is 0."""
    positive = weights > 0
    return np.where(positive, 1.0 / np.sqrt(np.where(positive, weights, 1.0)), 0.0)


def vector_signs(vectors: Float[np.ndarray, "n k"]) -> Float64[np.ndarray, " k"]:
    """The sign of each column's entry of largest magnitude; multiplying by it makes singular vectors unique."""
    largest = np.argmax(np.abs(vectors), axis=0)
    return np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


def to_dense(matrix: Matrix) -> np.ndarray:
    """The matrix as a NumPy array."""
    return matrix.toarray() if sp.issparse(matrix) else matrix


def compute_marginals(A: Matrix) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " m"]]:
    """d and d', the sums of the rows and of the columns."""
    return np.asarray(A.sum(axis=1)).ravel(), np.asarray(A.sum(axis=0)).ravel()


def _check_matrix(name: str, values: Any) -> Matrix:
    """A non-negative, finite float64 matrix, dense or compressed sparse rows; errors name the argument."""
    sparse = sp.issparse(values)
    matrix: Matrix = sp.csr_array(values, dtype=np.float64) if sparse else np.asarray(values, np.float64)
    good = matrix.ndim == 2 and 0 not in matrix.shape
    require(good, name, "a non-empty matrix", f"shape {matrix.shape}")
    entries = np.asarray(matrix.data) if sparse else matrix
    require(np.all(np.isfinite(entries)), name, "finite numbers", "NaN or infinity")
    smallest = np.min(entries, initial=0.0)
    require(smallest >= 0, name, "probabilities", f"a negative entry {smallest:.3g}")
    return matrix


def check_joint(joint: Any) -> Matrix:
    """Check that a joint distribution A = D P is non-negative and sums to one; tiny drift is renormalised."""
    joint = _check_matrix("joint", joint)
    total = float(joint.sum())
    if abs(total - 1.0) > SUM_TOLERANCE:
        hint = " This looks like a transition matrix P: pass `joint_matrix(d, P)`." if total > 1.5 else ""
        raise ValueError(f"joint: entries must sum to one (A = D P), got a sum of {total:.6g}.{hint}")
    return joint / total


def check_distribution(name: str, d: Any) -> Float64[np.ndarray, " n"]:
    """Check that a probability vector is non-negative and sums to one; tiny drift is renormalised."""
    d = np.asarray(d, dtype=np.float64)
    if d.ndim != 1 or not np.all(np.isfinite(d)) or np.any(d < 0) or abs(d.sum() - 1.0) > SUM_TOLERANCE:
        raise ValueError(
            f"{name}: expected a vector of probabilities that sum to one, got shape {d.shape}, smallest "
            f"entry {np.min(d, initial=np.inf):.3g}, sum {d.sum():.6g}. Divide counts by their sum."
        )
    return d / d.sum()


def _check_stochastic(name: str, P: Any, square: bool = False) -> Matrix:
    P = _check_matrix(name, P)
    good = not square or P.shape[0] == P.shape[1]
    require(good, name, "a square matrix", f"shape {P.shape}")
    sums = np.asarray(P.sum(axis=1)).ravel()
    worst = int(np.argmax(np.abs(sums - 1.0)))
    good, got = abs(sums[worst] - 1.0) <= SUM_TOLERANCE, f"{sums[worst]:.6g} for row {worst}"
    require(good, name, "every row to sum to one", got, "Divide each row by its sum.")
    return sp.csr_array(sp.diags_array(1.0 / sums) @ P) if sp.issparse(P) else P / sums[:, None]


def _check_dynamics(P_sas: Any) -> Float64[np.ndarray, "S A S"]:
    P_sas = np.asarray(P_sas, dtype=np.float64)
    good = P_sas.ndim == 3 and P_sas.shape[0] == P_sas.shape[2]
    require(good, "P_sas", "shape (states, actions, states)", P_sas.shape)
    return np.asarray(_check_stochastic("P_sas", P_sas.reshape(-1, P_sas.shape[2]))).reshape(P_sas.shape)


def _check_ids(name: str, ids: np.ndarray, size_name: str, size: int | None) -> int:
    require(np.issubdtype(ids.dtype, np.integer), name, "integer ids", f"dtype {ids.dtype}")
    size = int(ids.max()) + 1 if size is None else size
    low, high, allowed = ids.min(), ids.max(), f"ids in [0, {size_name} - 1] = [0, {size - 1}]"
    fix = f"Raise `{size_name}` or check the ids."
    require(low >= 0 and high < size, name, allowed, f"values in [{low}, {high}]", fix)
    return size


def _symmetrise(joint: Any) -> Float64[np.ndarray, "S S"]:
    A = to_dense(check_joint(joint))
    square = A.shape[0] == A.shape[1]
    require(square, "joint", "a square one for a graph Laplacian", f"shape {A.shape}")
    return (A + A.T) / 2
