"""The losses whose minimum is the decomposition: De-Rex's own (Section 4), the nested one, and graph drawing.

An objective takes the outputs of f and g on two *independent* halves of data and returns a loss with an unbiased
gradient, and the statistics of those outputs. The gradient of L_off is a product of two expectations; estimating both
from the same rows biases it (Theorem 4), taking one from each half does not (Theorem 5). Two disjoint halves of one
small fixed set are not independent.

Shapes: b rows of a half, k features. Weights (b,) are masks or counts (`derex.decomposition.statistics`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient as sg
from jaxtyping import Float

from derex._text import require
from derex.decomposition import statistics
from derex.decomposition.statistics import BatchStatistics, Half, sigma_hat, weighted_mean

REFERENCE_K = 16  # where λ_r = "grow" equals the paper's value
REFERENCE_LAMBDA_R = 10.0


class Estimate(NamedTuple):
    """A loss to differentiate, and the statistics of its two halves (no gradient)."""

    loss: Float[Array, ""]
    statistics: BatchStatistics


@runtime_checkable
class Objective(Protocol):
    """A decomposition objective: a pure, hashable function of outputs, independent of the networks."""

    tied: ClassVar[bool]  # one network for both sides (g = f)

    def __call__(self, first: Half, second: Half) -> Estimate: ...


def diag_loss(sigma: Float[Array, "k k"]) -> Float[Array, ""]:
    """L_diag(Σ) = 1/k Σ_i Σ_ii: to be maximised."""
    return jnp.trace(sigma) / sigma.shape[0]


def off_loss(sigma: Float[Array, "k k"]) -> Float[Array, ""]:
    """L_off(Σ) = 1/(k² - k) Σ_{i≠j} Σ_ij²: to be zero. One feature has no off-diagonal, and L_off = 0."""
    return _mean_off_diagonal(jnp.square(sigma))


def combined_loss(sigma: Float[Array, "k k"], lambda_r: float) -> Float[Array, ""]:
    """L(Σ) = -L_diag(Σ) + λ_r L_off(Σ); with a mini-batch Σ̂ its gradient is biased (Theorem 4)."""
    return -diag_loss(sigma) + lambda_r * off_loss(sigma)


def double_sampled_off_loss(first: Float[Array, "k k"], second: Float[Array, "k k"]) -> Float[Array, ""]:
    """L̂_off(θ) = 1/(k²-k) Σ_{i≠j} [Σ̂_ij sg(Σ̂'_ij) + Σ̂'_ij sg(Σ̂_ij)] (Section 4, Theorem 5).

    Its gradient is unbiased for ∂L_off(Σ). Its *value* estimates 2 L_off; log `off_value` instead.
    """
    return _mean_off_diagonal(first * sg(second) + second * sg(first))


def off_value(first: Float[Array, "k k"], second: Float[Array, "k k"]) -> Float[Array, ""]:
    """An unbiased estimate of the value of L_off(Σ) from two independent halves."""
    return _mean_off_diagonal(first * second)


def penalty_weight(lambda_r: float | int | str, k: int) -> float:
    """λ_r as a number; "grow" is λ_r (k - 1) / 15 with the paper's λ_r = 10 at k = 16.

    L_diag averages k entries and L_off k² - k of them, so the penalty on each pair decays like 1/k against the reward
    for its diagonal, and duplicated modes pay off at large k. A weight that grows like k keeps the balance.
    """
    if lambda_r == "grow":
        return REFERENCE_LAMBDA_R * max(k - 1, 1) / (REFERENCE_K - 1)
    good = not isinstance(lambda_r, str | bool) and 0.0 <= lambda_r < math.inf
    require(good, "lambda_r", "a finite number >= 0 or 'grow'", repr(lambda_r))
    return float(lambda_r)


@dataclass(frozen=True)
class DeRexObjective:
    """-L_diag + λ_r L̂_off on batch-normalised outputs, the paper's loss.

    Attributes:
        lambda_r: weight of the off-diagonal penalty.
        normalise: batch-normalise both outputs, each half by its own statistics. Without it L_diag has no maximum: for
            exact tests, not for training.
        double_sampling: take the two factors of ∂L_off from different halves. False is the biased loss.
        limit: clip normalised outputs to ± limit. At unit variance |f_i(s)| ≤ d(s)^-½, so states visited at least
            limit⁻² of the time are unaffected; a rarer one cannot be a whole feature in the batch that holds it. With a
            changing policy that lost the decomposition (docs/agents.md).
    """

    lambda_r: float = REFERENCE_LAMBDA_R
    normalise: bool = True
    double_sampling: bool = True
    limit: float = math.inf
    tied: ClassVar[bool] = False

    def __call__(self, first: Half, second: Half) -> Estimate:
        sigmas = self._sigma(first), self._sigma(second)
        if self.double_sampling:
            off = double_sampled_off_loss(*sigmas)
        else:
            off = (off_loss(sigmas[0]) + off_loss(sigmas[1])) / 2
        diag = (diag_loss(sigmas[0]) + diag_loss(sigmas[1])) / 2
        return Estimate(-diag + self.lambda_r * off, statistics.compute_batch_statistics(first, second))

    def _sigma(self, half: Half) -> Float[Array, "k k"]:
        if not self.normalise:
            return sigma_hat(*half)
        f, g = (statistics.batch_normalise(outputs, half.weights)[0] for outputs in (half.f, half.g))
        return sigma_hat(
            statistics.clip_outputs(f, self.limit), statistics.clip_outputs(g, self.limit), half.weights
        )


@dataclass(frozen=True)
class NestedObjective:
    """Nested low-rank approximation of the centred operator: a true, ordered SVD, also at large k.

    ‖M₀ - Σ_i f_i g_iᵀ‖² = const - 2 tr Σ + tr(C_f C_g), with Σ = Cov(f, g), C_f = Cov(f), C_g = Cov(g), M₀ the
    operator without its constant mode. Component i minimises it with all components j < i held fixed:

        L = Σ_i [ -2 Σ_ii + C_f,ii C_g,ii + 2 Σ_{j<i} C_f,ij C_g,ij ],    f_j, g_j stopped in the last sum,

    so that it finds the i-th singular pair independently of later ones. Covariances are centred by their own half and
    carry Bessel's factor, hence unbiased; C_f and C_g come from different halves, hence their product and its gradient
    are too. Outputs are not normalised: f_i and g_i share a free factor (c, 1/c), and E f_i² E g_i² = σ_i² at the
    minimum. Statistics are computed after both are rescaled to unit variance.
    """

    tied: ClassVar[bool] = False

    def __call__(self, first: Half, second: Half) -> Estimate:
        (cross_1, f_1, g_1), (cross_2, f_2, g_2) = (_nested_covariances(half) for half in (first, second))
        linear = -(jnp.sum(cross_1) + jnp.sum(cross_2))  # -2 tr Σ, averaged over the halves
        quadratic = jnp.sum(f_1 * g_2 + f_2 * g_1) / 2
        return Estimate(linear + quadratic, statistics.compute_batch_statistics(first, second))


def attraction(
    u: Float[Array, "b k"], v: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, ""]:
    """L_diag = 1/(nk) Σ_i Σ_j (f(u_i)_j - f(v_i)_j)²: successive states are close."""
    return jnp.mean(weighted_mean(jnp.square(u - v), weights))


def orthonormality(
    u: Float[Array, "b k"],
    v: Float[Array, "c k"],
    weights_u: Float[Array, " b"] | None = None,
    weights_v: Float[Array, " c"] | None = None,
) -> Float[Array, ""]:
    """E_{u,v independent} 1/k² Σ_jl (f(u)_j f(u)_l - δ_jl)(f(v)_j f(v)_l - δ_jl), over all pairs (u, v).

    For independent u and v it is an unbiased estimate of ‖E[f fᵀ] - I‖²/k².
    """
    identity = jnp.eye(u.shape[-1])
    return jnp.mean((sigma_hat(u, u, weights_u) - identity) * (sigma_hat(v, v, weights_v) - identity))


def paired_orthonormality(
    u: Float[Array, "b k"], v: Float[Array, "b k"], weights: Float[Array, " b"] | None = None
) -> Float[Array, ""]:
    """L_off as the appendix prints it: u_i and v_i are the two ends of one transition.

    Σ_jl (u_j u_l - δ)(v_j v_l - δ) = (u·v)² - ‖u‖² - ‖v‖² + k for each pair. It is unbounded below on bipartite graphs
    when λ_r > k; kept for fidelity.
    """
    k = u.shape[-1]
    each = jnp.sum(u * v, -1) ** 2 - jnp.sum(u * u, -1) - jnp.sum(v * v, -1) + k
    return weighted_mean(each, weights) / k**2


def graph_drawing_loss(
    first: Half, second: Half, lambda_r: float, paired: bool = False, normalise: bool = False
) -> Float[Array, ""]:
    """Rep_loss = L_diag + λ_r L_off of graph drawing.

    Args:
        first: f at the pairs' first states (`f`) and next states (`g`), one half of the data.
        second: the same for the other, independent half.
        lambda_r: weight of orthonormality.
        paired: the appendix's literal L_off. The default draws u from one half and v from the other, as the
            original does.
        normalise: batch-normalise f (over both ends of a half together) first.
    """
    if normalise:
        first, second = _normalise_together(first), _normalise_together(second)
    close = (attraction(*first) + attraction(*second)) / 2
    if paired:
        off = (paired_orthonormality(*first) + paired_orthonormality(*second)) / 2
    else:
        off = orthonormality(first.f, second.f, first.weights, second.weights)
    return close + lambda_r * off


def _normalise_together(half: Half) -> Half:
    """f of both ends of a half, batch-normalised together."""
    weights = None if half.weights is None else jnp.concatenate([half.weights, half.weights])
    shared = statistics.compute_moments(jnp.concatenate([half.f, half.g]), weights)
    return Half(statistics.standardise(half.f, shared), statistics.standardise(half.g, shared), half.weights)


@dataclass(frozen=True)
class GraphDrawingObjective:
    """The Laplacian baseline (appendix C; Wu et al.), with g = f; attributes as in `graph_drawing_loss`."""

    lambda_r: float = REFERENCE_LAMBDA_R
    paired: bool = False
    normalise: bool = False
    tied: ClassVar[bool] = True

    def __call__(self, first: Half, second: Half) -> Estimate:
        loss = graph_drawing_loss(first, second, self.lambda_r, paired=self.paired, normalise=self.normalise)
        return Estimate(loss, statistics.compute_batch_statistics(first, second))


def make_objective(
    name: str, k: int, lambda_r: float | int | str = REFERENCE_LAMBDA_R, limit: float = math.inf
) -> Objective:
    """The objective of that name for k features; only "derex", which normalises its outputs, uses `limit`."""
    weight = penalty_weight(lambda_r, k)
    objectives: dict[str, Objective] = {
        "derex": DeRexObjective(weight, limit=limit),
        "nested": NestedObjective(),
        "laplacian": GraphDrawingObjective(weight),
    }
    require(name in objectives, "objective", f"one of {', '.join(map(repr, objectives))}", repr(name))
    return objectives[name]


def _mean_off_diagonal(matrix: Float[Array, "k k"]) -> Float[Array, ""]:
    k = matrix.shape[0]
    return (jnp.sum(matrix) - jnp.trace(matrix)) / max(k * k - k, 1)


def _nested_covariances(half: Half) -> tuple[Float[Array, " k"], Float[Array, "k k"], Float[Array, "k k"]]:
    """diag Σ and the nested C_f, C_g of a half: unbiased, lower-triangular, later components only."""
    rows = half.f.shape[0] if half.weights is None else jnp.sum(half.weights)
    bessel = rows / jnp.maximum(rows - 1.0, 1.0)
    f = half.f - weighted_mean(half.f, half.weights)
    g = half.g - weighted_mean(half.g, half.weights)
    cross = bessel * weighted_mean(f * g, half.weights)
    return cross, bessel * _nested_gram(f, half.weights), bessel * _nested_gram(g, half.weights)


def _nested_gram(z: Float[Array, "b k"], weights: Float[Array, " b"] | None) -> Float[Array, "k k"]:
    """Rows i, columns j <= i of E[z zᵀ] with z_j stopped for j < i; √2 so that products count each pair twice."""
    below = jnp.tril(sigma_hat(z, sg(z), weights), -1)
    return jnp.sqrt(2.0) * below + jnp.diag(weighted_mean(jnp.square(z), weights))
