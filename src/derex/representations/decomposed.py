"""How much of a representation an episode has not shown yet.

The norm of De-Rex tells what is rare in all experience. Where every episode has a world of its own, that is not enough:
whoever finds a rare sight may stay before it, or go to and fro, and is paid at every step. Here each stream keeps the
features of its episode, M = r I + Σ f fᵀ, and what counts of a new one is the share that the others leave of it,

    new(h_t) = r f(h_t)ᵀ M⁻¹ f(h_t) / ‖f(h_t)‖²,

which is 1 for what is orthogonal to all before, and 1 / (1 + n ‖f‖² / r) for what was seen n times and nothing else. f
is whitened over all experience, so that every direction counts alike. Not in the paper. The elliptical episodic bonus
of Henaff et al. (2022) is fᵀ M⁻¹ f alone, on features of inverse dynamics.

Shapes: B streams, S steps of an unroll, k features.

What all decompositions track, and the bonus and numbers that are read off it (Section 4, exploration).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from derex.decomposition.bonus import compute_bonus, compute_ritz_bonus, whiten, whiten_sigma
from derex.decomposition.objectives import Objective, make_objective
from derex.decomposition.statistics import (
    READING_EPSILON,
    BatchStatistics,
    RunningStatistics,
    batch_normalise,
    clip_outputs,
    init_statistics,
    read_statistics,
    sigma_hat,
    standardise,
    update_statistics,
)
from derex.networks.histories import split_halves
from derex.representations.base import check, check_counts, check_weights, named

SMALLEST = 1e-6  # ‖f‖² that is divided by


def begin_episodes(streams: int, k: int) -> Float[Array, "B k k"]:
    """r M⁻¹ of every stream before its first step."""
    return jnp.broadcast_to(jnp.eye(k), (streams, k, k))


def newness(
    features: Float[Array, "B S k"], first: Bool[Array, "B S"], kept: Float[Array, "B k k"], ridge: float
) -> tuple[Float[Array, "B S"], Float[Array, "B k k"]]:
    """new(h_t) of every step, and what to keep: all before the last step, with which the next unroll begins.

    `ridge` is r as a multiple of k, the mean of ‖f‖². After each step K = r M⁻¹ becomes K - u uᵀ / (r + fᵀ u), u = K f
    (Sherman and Morrison).
    """
    k = features.shape[-1]
    fresh = jnp.eye(k)

    def step(kept: Array, inputs: tuple[Array, Array]):
        f, begins = inputs
        kept = jnp.where(begins[:, None, None], fresh, kept)
        u = jnp.einsum("bij,bj->bi", kept, f, precision=jax.lax.Precision.HIGHEST)
        left = jnp.sum(f * u, axis=-1)
        share = left / jnp.maximum(jnp.sum(jnp.square(f), axis=-1), SMALLEST)
        kept = kept - u[:, :, None] * u[:, None, :] / (ridge * k + left)[:, None, None]
        return kept, jnp.clip(share, 0.0, 1.0)

    by_step = jnp.moveaxis(features, 1, 0), first.T
    kept, shares = jax.lax.scan(step, kept, jax.tree.map(lambda leaf: leaf[:-1], by_step))
    _, last = step(kept, jax.tree.map(lambda leaf: leaf[-1], by_step))
    return jnp.concatenate([shares, last[None]]).T, kept


AGENT_SIGMA_FLOOR = (
    0.5  # of 64 features some are not learnt yet at any time: without it their noise is the bonus
)
LIMIT = 6.0  # a stream that stays where no other is has 32 rows of 4096 in a half: 6² 32 / 4096 = 0.3 of Σ̂


class Correlations(NamedTuple):
    """Of features with features."""

    f: Float[Array, "k k"]
    g: Float[Array, "k k"]


class PairStatistics(NamedTuple):
    """What one step of training shows."""

    statistics: BatchStatistics
    correlations: Correlations


class TrackedStatistics(NamedTuple):
    """Running means of it; divide by `running.weight`."""

    running: RunningStatistics
    correlations: Correlations


@dataclass(frozen=True)
class DecompositionConfig:
    """Objective and reading, shared by all forms of De-Rex and by graph drawing."""

    k: int = 64
    objective: str = "derex"
    """derex (the paper's loss), nested, or laplacian (graph drawing: g = f)"""
    lambda_r: float | str = 10.0
    """weight of the off-diagonal penalty, or "grow" """
    ritz: bool = True
    """read the singular functions within the span of f; False takes each f_i for one, as the paper does"""
    weighted: bool = True
    """weigh the norm by Σ̃⁻² as in the paper"""
    sigma_floor: float = AGENT_SIGMA_FLOOR
    """ε_σ, keeps small σ from being all of the norm: σ² + ε_σ² in the place of σ²; without `ritz` the larger of the
    two"""
    limit: float = LIMIT
    """largest |f_i| that is told from larger ones, in deviations: about 1/√d of the rarest states that matter"""
    statistics_decay: float = 0.0
    """of Σ̃ and the other statistics, from unroll to unroll; 0: those of the present networks alone. Networks move: what
    is read with statistics of earlier ones shows their movement where it should show what is rare"""

    episodic: float = 0.0
    """above 0: the bonus is multiplied by the share of f that its episode has not shown yet, for worlds that are new in
    every episode; this is the ridge r of that share over k: the smaller, the less is left of what was seen once
    (`representations.episodic`)"""

    def __post_init__(self) -> None:
        check_counts("decomposition.", k=self.k)
        check_weights("decomposition.", sigma_floor=self.sigma_floor, episodic=self.episodic)
        check("decomposition.limit", self.limit, self.limit > 0.0, "a number above 0, or inf")
        decay = self.statistics_decay
        check("decomposition.statistics_decay", decay, 0.0 <= decay <= 1.0, "a number in [0, 1]")
        with named("decomposition."):  # an objective or a penalty that there is not
            make_objective(self.objective, self.k, self.lambda_r, self.limit)

    @property
    def loss(self) -> Objective:
        """The objective."""
        return make_objective(self.objective, self.k, self.lambda_r, self.limit)

    @property
    def tied(self) -> bool:
        """Whether g is f."""
        return self.loss.tied

    def initial(self) -> TrackedStatistics:
        """Nothing seen."""
        none = jnp.zeros((self.k, self.k))
        return TrackedStatistics(init_statistics(self.k), Correlations(none, none))

    def estimate(
        self, f: Float[Array, "B t k"], g: Float[Array, "B t k"], counted: Float[Array, "B t"]
    ) -> tuple[Float[Array, ""], BatchStatistics]:
        """The loss on pairs of outputs, those that count, and their statistics."""
        estimate = self.loss(*split_halves(f, g, counted))
        return estimate.loss, estimate.statistics

    def seen(
        self, f: Float[Array, "B t k"], g: Float[Array, "B t k"], counted: Float[Array, "B t"]
    ) -> PairStatistics:
        """What pairs of outputs show of the decomposition; all from the same rows, or σ could exceed 1."""
        weights = counted.reshape(-1)
        (f, f_moments), (g, g_moments) = (
            batch_normalise(outputs.reshape(-1, self.k), weights, READING_EPSILON) for outputs in (f, g)
        )
        statistics = BatchStatistics(f_moments, g_moments, sigma_hat(f, g, weights))
        return PairStatistics(statistics, Correlations(sigma_hat(f, f, weights), sigma_hat(g, g, weights)))

    def track(self, tracked: TrackedStatistics, seen: PairStatistics) -> TrackedStatistics:
        """Σ̃, moments and correlations after one more step."""
        decay = self.statistics_decay
        mixed = (
            decay * old + (1.0 - decay) * new
            for old, new in zip(tracked.correlations, seen.correlations, strict=True)
        )
        return TrackedStatistics(
            update_statistics(tracked.running, seen.statistics, decay), Correlations(*mixed)
        )

    def bonus(self, f: Float[Array, "*b k"], tracked: TrackedStatistics) -> Float[Array, "*b"]:
        """‖f‖ of the standardised features, weighted by Σ̃⁻²."""
        seen, C = self._read(tracked)
        features = clip_outputs(standardise(f, seen.f), self.limit)
        if self.ritz:
            return compute_ritz_bonus(features, C.f, C.g, seen.sigma, self.weighted, self.sigma_floor)
        return compute_bonus(features, jnp.diag(seen.sigma), self.weighted, self.sigma_floor)

    def begin_episodes(self, streams: int) -> Float[Array, "B k k"] | None:
        """What is kept of each stream's episode, before its first step."""
        return begin_episodes(streams, self.k) if self.episodic else None

    def bonus_of_steps(
        self,
        f: Float[Array, "B S k"],
        tracked: TrackedStatistics,
        first: Bool[Array, "B S"],
        episodes: Float[Array, "B k k"] | None,
    ) -> tuple[Float[Array, "B S"], Float[Array, "B k k"] | None]:
        """The bonus of every step of an unroll, and what is kept of the episodes."""
        rare = self.bonus(f, tracked)
        if episodes is None:
            return rare, None
        seen, C = self._read(tracked)
        features = whiten(C.f, clip_outputs(standardise(f, seen.f), self.limit))
        new, episodes = newness(features, first, episodes, self.episodic)
        return rare * new, episodes

    def report(self, tracked: TrackedStatistics) -> dict[str, Array]:
        """The spectrum within the span, its mean, the mean of diag Σ̃, and how far Σ̃ is from diagonal."""
        seen, C = self._read(tracked)
        diagonal = spectrum = jnp.diag(seen.sigma)
        off = jnp.max(jnp.abs(seen.sigma - jnp.diag(diagonal)))
        if self.ritz:
            spectrum = jnp.linalg.svd(whiten_sigma(C.f, C.g, seen.sigma), compute_uv=False)
        return {
            "spectrum": spectrum,
            "sigma_mean": jnp.mean(spectrum),
            "sigma_diagonal": jnp.mean(diagonal),
            "off_diagonal": off,
        }

    def _read(self, tracked: TrackedStatistics) -> tuple[BatchStatistics, Correlations]:
        """The running means, corrected for their start at zero."""
        scale = 1.0 / jnp.maximum(tracked.running.weight, jnp.finfo(jnp.float32).tiny)
        return read_statistics(tracked.running), Correlations(
            *(scale * total for total in tracked.correlations)
        )
