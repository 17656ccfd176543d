"""The exact decomposition of enumerable experience: the ground truth for learnt ones.

It decomposes the joint A = E[x yᵀ] = D P of a state s ~ d and its successor s' ~ d' (Section 3), in one of two
geometries.

**Counting** (Section 3, Theorem 3) decomposes A = U Σ Vᵀ itself; a state is represented by its row of U. When D and
P Pᵀ are invertible and *all* singular values are kept, ‖U_s‖²_{Λ⁻¹} = α_s / d(s)² with Λ = Σ² and α_s = (P Pᵀ)⁻¹_ss:
rarely visited states have long representations. Both conditions matter.
  - Truncated to its top k, the bonus has the **wrong sign**. The leading singular vectors of D P are large where D is
    large, so U_s is long at the *most* visited states; the inverse dependence on d(s) is in the smallest singular
    values, which truncation removes. In four rooms the rank correlation with 1/d is about -0.99 for small k.
  - P of four rooms is singular, as in many symmetric worlds, and Theorem 3 then says nothing even at full rank. It
    applies, e.g., to random dense P.

**Visitation** (Section 4, where batch normalisation sets the norm; the default) decomposes M = D^{-1/2} A D'^{-1/2}
without its constant mode √d √d'ᵀ (singular value 1, always present), which centring removes. The functions f_i =
U_i / √d and g_i = V_i / √d' have zero mean, unit variance and no correlation under d and d', and E[f(s) g(s')ᵀ] = Σ
with 1 >= σ_1 >= σ_2 >= ... >= 0. At full rank ‖f(s)‖² = 1/d(s) - 1 for any P; at small k the factor 1/√d(s) keeps the
order right while d is far from flat. This is what networks with batch normalisation learn.

Letters in shapes: n rows, m columns of the joint, k components.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Num
from scipy.sparse.linalg import aslinearoperator, svds

from derex._text import require
from derex.decomposition.chains import (  # noqa: F401  (all that is public there is public here)
    Matrix,
    check_joint,
    compute_marginals,
    empirical_joint,
    inverse_sqrt,
    joint_matrix,
    laplacian,
    laplacian_functions,
    policy_transition_matrix,
    state_action_matrix,
    stationary_distribution,
    successor_representation,
    to_dense,
    vector_signs,
    visitation,
)

Geometry: TypeAlias = Literal["visitation", "counting"]
GEOMETRIES: tuple[Geometry, ...] = ("visitation", "counting")

DENSE_LIMIT = 2000  # sparse joints with more rows or columns are decomposed iteratively, never made dense

_Svd: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The top k components of a joint distribution.

    Attributes:
        left: values f_i(s) of the left functions; rows of states with d(s) = 0 are 0.
        right: values g_i(s') of the right functions; rows of states with d'(s') = 0 are 0.
        singular_values: σ_1 >= ... >= σ_k >= 0.
        d: distribution of the rows.
        d_next: distribution of the columns.
        geometry: which matrix was decomposed; see the module's text.
    """

    left: Float64[np.ndarray, "n k"]
    right: Float64[np.ndarray, "m k"]
    singular_values: Float64[np.ndarray, " k"]
    d: Float64[np.ndarray, " n"]
    d_next: Float64[np.ndarray, " m"]
    geometry: Geometry

    @property
    def k(self) -> int:
        """Number of components."""
        return len(self.singular_values)

    @property
    def rank(self) -> int:
        """Number of components whose singular value is not zero up to rounding."""
        scale = 1.0 if self.geometry == "visitation" else self.singular_values.max(initial=0.0)
        tolerance = max(len(self.d), len(self.d_next)) * np.finfo(np.float64).eps * scale
        return int(np.sum(self.singular_values > tolerance))

    def bonus(self, weighted: bool = True, sigma_floor: float | int = 0.0) -> Float64[np.ndarray, " n"]:
        """The exploration bonus ‖f(s)‖_{Λ⁻¹} with Λ = max(σ, sigma_floor)² (Sections 3 and 4).

        Args:
            weighted: weight components by Λ⁻¹; otherwise the plain norm ‖f(s)‖.
            sigma_floor: least singular value to divide by. Directions with a small σ_i are mostly noise in data, and
                without a floor they dominate the bonus.

        Returns:
            The bonus of every state; infinity for states never visited, d(s) = 0. Without a floor, components whose
            singular value is zero up to rounding (beyond `rank`) are left out of the weighted norm: Λ⁻¹ is then the
            pseudo-inverse, as in the proof of Theorem 3.
        """
        require(sigma_floor >= 0, "sigma_floor", "a number >= 0", sigma_floor)
        scaled = self.left
        if weighted:
            used = self.k if sigma_floor > 0 else self.rank
            scaled = self.left[:, :used] / np.maximum(self.singular_values[:used], sigma_floor)
        return np.where(self.d > 0, np.linalg.norm(scaled, axis=1), np.inf)


def decompose(
    joint: Num[Any, "n m"], k: int | None = None, geometry: Geometry = "visitation"
) -> Decomposition:
    """The exact (truncated) singular value decomposition of a joint distribution, A_n = U Σ Vᵀ in Section 3.

    Small or dense joints use LAPACK. Sparse joints past `DENSE_LIMIT` use ARPACK from a fixed start vector if `k` is
    given, and are made dense otherwise.

    Args:
        joint: A = E[x yᵀ] = D P, non-negative and summing to one, dense or SciPy sparse; possibly rectangular
            (state-action pairs to next states, histories to futures).
        k: number of components; None keeps all.
        geometry: "visitation" or "counting"; see the module's text.

    Returns:
        The decomposition, with signs such that the largest entry of each left function is positive.
    """
    require(geometry in GEOMETRIES, "geometry", f"one of {', '.join(map(repr, GEOMETRIES))}", repr(geometry))
    A = check_joint(joint)
    d, d_next = compute_marginals(A)
    rows, columns = np.flatnonzero(d > 0), np.flatnonzero(d_next > 0)
    k = _check_k(k, min(len(rows), len(columns)), geometry)
    # Only visited states are decomposed: null vectors of A must not have mass on unvisited ones.
    visited = A[rows][:, columns]
    if geometry == "visitation":
        U, sigma, V = _visitation_svd(visited, k)
        U, V = U * inverse_sqrt(d[rows])[:, None], V * inverse_sqrt(d_next[columns])[:, None]
    else:
        U, sigma, V = _svd(visited, None, k)
    signs = vector_signs(U)
    left, right = np.zeros((len(d), k)), np.zeros((len(d_next), k))
    left[rows], right[columns] = U * signs, V * signs
    return Decomposition(left, right, sigma, d, d_next, geometry)


def visitation_matrix(joint: Num[Any, "n m"]) -> Matrix:
    """M = D^{-1/2} A D'^{-1/2} = D^{1/2} P D'^{-1/2}, constant mode included; sparse when `joint` is."""
    A = check_joint(joint)
    row_scale, column_scale = map(inverse_sqrt, compute_marginals(A))
    if sp.issparse(A):
        return sp.csr_array(sp.diags_array(row_scale) @ A @ sp.diags_array(column_scale))
    return row_scale[:, None] * A * column_scale


def _visitation_svd(A: Matrix, k: int) -> _Svd:
    """The top k singular triples of M - √d √d'ᵀ.

    M has (√d, √d') as singular vectors of its largest value, 1, possibly tied. Adding √d √d'ᵀ lifts that value alone to
    2: it comes first, and all others, those of value zero too, are orthogonal to it. Dropping the first triple is then
    the same as subtracting the constant mode.
    """
    d, d_next = compute_marginals(A)
    U, sigma, V = _svd(visitation_matrix(A), (np.sqrt(d), np.sqrt(d_next)), k + 1)
    return U[:, 1:], np.minimum(sigma[1:], 1.0), V[:, 1:]


def _svd(matrix: Matrix, rank_one: tuple[np.ndarray, np.ndarray] | None, k: int) -> _Svd:
    """Top k singular triples of a matrix, plus the outer product of two vectors if given; descending."""
    if sp.issparse(matrix) and max(matrix.shape) > DENSE_LIMIT and k < min(matrix.shape):
        return _iterative_svd(matrix, rank_one, k)
    dense = to_dense(matrix)
    U, sigma, Vt = np.linalg.svd(
        dense if rank_one is None else dense + np.outer(*rank_one), full_matrices=False
    )
    return U[:, :k], sigma[:k], Vt[:k].T


def _iterative_svd(matrix: Matrix, rank_one: tuple[np.ndarray, np.ndarray] | None, k: int) -> _Svd:
    """`_svd` without a dense matrix. Singular values below the method's accuracy, √eps, come out as 0."""
    operator = aslinearoperator(matrix)
    if rank_one is not None:  # the sum is never formed
        u, v = rank_one
        operator = operator + aslinearoperator(u[:, None]) @ aslinearoperator(v[None, :])
    start = np.random.default_rng(0).standard_normal(min(matrix.shape))
    U, sigma, Vt = svds(operator, k=k, v0=start, solver="arpack")
    order = np.argsort(-sigma, kind="stable")
    sigma = np.where(sigma > np.sqrt(np.finfo(np.float64).eps) * sigma.max(), sigma, 0.0)
    return U[:, order], sigma[order], Vt[order].T


def _check_k(k: int | None, visited: int, geometry: Geometry) -> int:
    largest = visited - 1 if geometry == "visitation" else visited
    if largest < 1:
        raise ValueError(
            "joint: only one row or column is ever visited, so nothing is left to decompose beside the constant "
            "mode. Collect data that visits at least two states."
        )
    if k is None:
        return largest
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise TypeError(f"k: expected an integer, got {k!r} of type {type(k).__name__}.")
    constant = ", and the constant mode takes one component" if geometry == "visitation" else ""
    why = f"The joint visits min(rows, columns) = {visited} states{constant}."
    require(1 <= k <= largest, "k", f"1 <= k <= {largest}", k, why)
    return int(k)
