"""Decompositions in an agent: options, tracked statistics, the bonus (Section 4, exploration), and its episodic factor.

The norm of De-Rex is large for what is rare in all experience. Where every episode has a new world, that is not enough:
an agent that finds a rare observation may stay there and is paid at every step. With `episodic`, each stream keeps the
features of its episode, M = r I + Σ f fᵀ, and the bonus is multiplied by the share of f that they do not explain,

    new(h_t) = r f(h_t)ᵀ M⁻¹ f(h_t) / ‖f(h_t)‖²,

which is 1 if f(h_t) is orthogonal to all before, and 1 / (1 + n ‖f‖² / r) if only f(h_t) was seen, n times. f is
whitened over all experience, so that all directions have equal weight. Not in the paper; the elliptical episodic bonus
of Henaff et al. (2022) is fᵀ M⁻¹ f alone, on features of inverse dynamics.

Shapes: B streams, S steps of a rollout, t pairs of each stream, k features.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex._text import check_ranges, require
from derex.decomposition import statistics
from derex.decomposition.bonus import compute_bonus, compute_ritz_bonus, whiten, whiten_sigma
from derex.decomposition.objectives import Objective, make_objective
from derex.decomposition.statistics import BatchStatistics, RunningStatistics, sigma_hat
from derex.networks import histories
from derex.networks.histories import Pairs
from derex.representations import base
from derex.representations.base import RepresentationState, RolloutView, Sizes, StateAndBonus
from derex.types import Trajectories

SMALLEST = 1e-6  # lower bound on the ‖f‖² that is divided by


def init_episodes(streams: int, k: int) -> Float[Array, "B k k"]:
    """r M⁻¹ of every stream before its first step."""
    return jnp.broadcast_to(jnp.eye(k), (streams, k, k))


def compute_episodic_novelty(
    features: Float[Array, "B S k"], first: Bool[Array, "B S"], kept: Float[Array, "B k k"], ridge: float
) -> tuple[Float[Array, "B S"], Float[Array, "B k k"]]:
    """new(h_t) of every step, and r M⁻¹ before the last step, which is the first of the next rollout.

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


AGENT_SIGMA_FLOOR = 0.5  # some of 64 features are always untrained: their noise would dominate the bonus
LIMIT = 6.0  # a stream that stays where no other is has 32 rows of 4096 in a half: 6² 32 / 4096 = 0.3 of Σ̂


class Correlations(NamedTuple):
    """Correlations of features with each other."""

    f: Float[Array, "k k"]
    g: Float[Array, "k k"]


class TrackedStatistics(NamedTuple):
    """Running means of the statistics of pairs; divide by `running.weight`."""

    running: RunningStatistics
    correlations: Correlations


@dataclass(frozen=True)
class DecompositionConfig:
    """Objective and bonus, shared by all forms of De-Rex and by graph drawing."""

    k: int = 64
    objective: str = "derex"
    """derex (the paper's loss), nested, or laplacian (graph drawing: g = f)"""
    lambda_r: float | str = 10.0
    """weight of the off-diagonal penalty, or "grow" """
    ritz: bool = True
    """compute the singular functions within the span of f (Ritz); False takes each f_i as one, as in the paper"""
    weighted: bool = True
    """weigh the norm by Σ̃⁻² as in the paper"""
    sigma_floor: float = AGENT_SIGMA_FLOOR
    """ε_σ, limits the weight of small σ in the norm: σ² + ε_σ² (a ridge) in place of σ²; without `ritz` max(σ, ε_σ)²"""
    limit: float = LIMIT
    """standardised features are clipped to ± this: about 1/√d of the rarest states that matter"""
    statistics_decay: float = 0.0
    """decay of Σ̃ and the other statistics between rollouts; 0: statistics of the current networks alone. Networks
    change: with statistics of earlier ones the bonus shows that change, not what is rare"""
    episodic: float = 0.0
    """above 0: multiply the bonus by the share of f that is new in its episode, for worlds that differ between
    episodes. The value is r/k, r the ridge of that share: the smaller, the less is left of what was seen once"""

    def __post_init__(self) -> None:
        weights, shares = ("sigma_floor", "episodic"), ("statistics_decay",)
        prefix = "representation.decomposition."
        check_ranges(self, prefix, counts=("k",), weights=weights, shares=shares)
        require(self.limit > 0.0, f"{prefix}limit", "a number above 0, or inf", self.limit)
        with base.prefix_errors("decomposition."):  # unknown objectives and penalties
            _ = self.loss

    @property
    def loss(self) -> Objective:
        """The objective."""
        return make_objective(self.objective, self.k, self.lambda_r, self.limit)

    @property
    def tied(self) -> bool:
        """Whether g is f."""
        return self.loss.tied

    def init_tracked(self) -> TrackedStatistics:
        """Statistics before the first rollout."""
        none = jnp.zeros((self.k, self.k))
        return TrackedStatistics(statistics.init_statistics(self.k), Correlations(none, none))

    def init_episodes(self, streams: int) -> Float[Array, "B k k"] | None:
        """r M⁻¹ of every stream before its first step; None without `episodic`."""
        return init_episodes(streams, self.k) if self.episodic else None

    def compute_loss(self, pairs: Pairs) -> Float[Array, ""]:
        """The loss on pairs of outputs, the streams split into two halves."""
        return self.loss(*histories.split_halves(*pairs)).loss

    def track(self, tracked: TrackedStatistics, pairs: Pairs) -> TrackedStatistics:
        """Updates Σ̃, moments and correlations; all from the same rows, or σ could exceed 1."""
        decay, weights = self.statistics_decay, pairs.counted.reshape(-1)
        (f, f_moments), (g, g_moments) = (
            statistics.batch_normalise(z.reshape(-1, self.k), weights, statistics.READING_EPSILON)
            for z in (pairs.f, pairs.g)
        )
        seen = BatchStatistics(f_moments, g_moments, sigma_hat(f, g, weights))
        new = Correlations(sigma_hat(f, f, weights), sigma_hat(g, g, weights))
        mixed = jax.tree.map(lambda a, b: decay * a + (1.0 - decay) * b, tracked.correlations, new)
        return TrackedStatistics(statistics.update_statistics(tracked.running, seen, decay), mixed)

    def compute_bonuses(
        self,
        f: Float[Array, "B S k"],
        tracked: TrackedStatistics,
        first: Bool[Array, "B S"],
        episodes: Float[Array, "B k k"] | None,
    ) -> tuple[Float[Array, "B S"], Float[Array, "B k k"] | None]:
        """‖f‖ of the standardised features of every step, weighted by Σ̃⁻², with its episodic factor.

        Also returns r M⁻¹ for the next rollout.
        """
        seen, C = _read(tracked)
        features = statistics.clip_outputs(statistics.standardise(f, seen.f), self.limit)
        if self.ritz:
            rare = compute_ritz_bonus(features, C.f, C.g, seen.sigma, self.weighted, self.sigma_floor)
        else:
            rare = compute_bonus(features, jnp.diag(seen.sigma), self.weighted, self.sigma_floor)
        if episodes is None:
            return rare, None
        new, episodes = compute_episodic_novelty(whiten(C.f, features), first, episodes, self.episodic)
        return rare * new, episodes

    def report(self, state: RepresentationState) -> dict[str, Array]:
        """Metrics: the spectrum within the span, its mean, the mean of diag Σ̃, and the largest off-diagonal |Σ̃_ij|."""
        seen, C = _read(state.tracked)
        diagonal = spectrum = jnp.diag(seen.sigma)
        off = jnp.max(jnp.abs(seen.sigma - jnp.diag(diagonal)))
        if self.ritz:
            spectrum = jnp.linalg.svd(whiten_sigma(C.f, C.g, seen.sigma), compute_uv=False)
        mean = {"sigma_mean": jnp.mean(spectrum), "sigma_diagonal": jnp.mean(diagonal)}
        return {"spectrum": spectrum, **mean, "off_diagonal": off}


def _read(tracked: TrackedStatistics) -> tuple[BatchStatistics, Correlations]:
    """The running means, corrected for their start at zero."""
    scale = 1.0 / jnp.maximum(tracked.running.weight, jnp.finfo(jnp.float32).tiny)
    return statistics.read_statistics(tracked.running), Correlations(
        *(scale * total for total in tracked.correlations)
    )


@dataclass(frozen=True)
class DecomposedConfig:
    """Options of all representations that learn a decomposition."""

    decomposition: DecompositionConfig = field(default_factory=DecompositionConfig)
    lambda_b: float = base.LAMBDA_B
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the rollout's mean from the bonus"""

    _auxiliary = staticmethod(base.no_auxiliary)

    @abstractmethod
    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState: ...

    @abstractmethod
    def _observe(self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus: ...

    def build(self) -> base.Representation:
        """Builds the record."""
        use, report = base.BonusUse(self.lambda_b, self.centre_bonus), self.decomposition.report
        return base.Representation(
            self._init, self._auxiliary, base.track_nothing, self._observe, report, use
        )


class FuturesConfig(DecomposedConfig):
    """What the forms on histories share: h_t is paired with the future that their option `tests` describes."""

    @property
    @abstractmethod
    def tests(self) -> int | str: ...

    def future(self) -> histories.Future:
        """The futures that histories are paired with; an error if `tests` describes none."""
        with base.prefix_errors(""):
            return histories.make_future(self.tests, self.decomposition.tied)

    @property
    def shortest_unroll(self) -> int:
        """Least number of transitions of a rollout in which any history counts."""
        return self.future().needs

    def read_tests(
        self,
        networks: histories.PairNetworks,
        embedded: histories.Embedded,
        beliefs: Float[Array, "B S H"],
        trajectories: Trajectories,
        key: PRNGKeyArray,
    ) -> Pairs:
        """f(h_t) and g(τ_t); `key` draws where tests end."""
        phase = self.future().draw(key, *trajectories.shape)
        return histories.read_pairs(networks, self.future(), embedded, beliefs, trajectories, phase)
