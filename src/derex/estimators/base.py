"""What both estimators share: parameters, the statistics of a finished fit, the bonus and its novelty guard.

Running statistics lag behind networks that still move: at the end of a fit they are replaced by those of the final
networks, so that `transform` is standardised on the training data whatever the number of updates.

A guard tells how unlike the training data each row is (its excess): 0 for everything like it, whose bonus stays exactly
the norm, up to 1. It adds √2 · (largest bonus in training) · excess to the norm, so a wholly unseen row gets at least
√2 times the largest bonus: a floor, not a cap. That is the bonus of a state visited half as often as the rarest
one, because ‖f(s)‖ grows like d(s)^-½.

Shapes: n rows, k features.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from sklearn.base import BaseEstimator

from derex.decomposition.bonus import Support, compute_bonus, compute_excess, compute_unexplained_share
from derex.decomposition.objectives import Objective, make_objective
from derex.decomposition.statistics import (
    READING_EPSILON,
    BatchStatistics,
    Moments,
    RunningStatistics,
    read_statistics,
)
from derex.estimators import validation as check
from derex.estimators.data import map_rows
from derex.estimators.fitting import FitMetrics, FitState
from derex.networks.layers import iterate_blocks

MIN_DIRECTION = 1e-6  # relative to the largest: smaller singular values are rounding


# --- statistics ----------------------------------------------------------------------------------------------------


def compute_statistics(
    f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"], counts: Float[np.ndarray, " n"] | None = None
) -> RunningStatistics:
    """Computes the moments of f and g, and Σ between them, as converged running statistics.

    Args:
        f, g: outputs of the networks, (n, k).
        counts: how often each row counts, (n,); None: once.
    """
    weights = np.full(len(f), 1.0 / len(f)) if counts is None else counts / counts.sum()
    (f, f_moments), (g, g_moments) = (_standardise(side, weights) for side in (f, g))
    return RunningStatistics(
        BatchStatistics(f_moments, g_moments, jnp.asarray((f.T * weights) @ g)), jnp.ones(())
    )


def _standardise(
    z: Float[np.ndarray, "n k"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n k"], Moments]:
    """Computes `batch_normalise` in double precision, on the host."""
    mean = weights @ z
    variance = weights @ (z - mean) ** 2
    return (z - mean) / np.sqrt(variance + READING_EPSILON), Moments(jnp.asarray(mean), jnp.asarray(variance))


def squared_correlation(f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"]) -> float:
    """Computes ‖C_f^-½ Cov(f, g) C_g^-½‖²_F: the sum of squared canonical correlations (VAMP-2)."""
    bases = []
    for side in (f, g):
        left, sizes, _ = np.linalg.svd(side - side.mean(axis=0, dtype=np.float64), full_matrices=False)
        bases.append(left[:, sizes > MIN_DIRECTION * max(sizes[0], np.finfo(np.float64).tiny)])
    return float(np.sum((bases[0].T @ bases[1]) ** 2))


# --- novelty guards: their class names are part of the format of model files ---------------------------------------


class NoGuard(NamedTuple):
    """Nothing is known about the training data: every bonus is the norm."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return np.zeros(len(rows), np.float32)


class SeenIds(NamedTuple):
    """Which ids of a table were trained. Unseen ids have no representation, and an excess of 1."""

    seen: Bool[np.ndarray, " n_ids"]

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return (~self.seen[rows]).astype(np.float32)

    def including(self, rows: np.ndarray) -> SeenIds:
        """Returns the guard with these ids seen as well."""
        seen = self.seen.copy()
        for block in iterate_blocks(rows):
            seen[block] = True
        return SeenIds(seen)


class FeatureSpan(NamedTuple):
    """The span of the training rows' features; see `derex.decomposition.bonus`.

    The features are those of the network as `fit` left it: `partial_fit` changes the network, and what training rows'
    features spanned then says nothing about the changed one.
    """

    support: Support
    typical: Float[np.ndarray, "m k"]  # representations of training rows, for the largest bonus
    network: Any  # an eqx.Module with a `features` method

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        features = compute_features(self.network, rows, dtype)
        return compute_excess(compute_unexplained_share(features, self.support), self.support)


Guard = NoGuard | SeenIds | FeatureSpan


def compute_features(network: Any, rows: np.ndarray, dtype: str) -> Float[np.ndarray, "n h"]:
    """Computes the inputs of the network's last layer, as vectors; `dtype` is the one on the device."""
    return map_rows(network.features, rows, dtype).reshape(len(rows), -1)


# --- the estimator -------------------------------------------------------------------------------------------------


class DecompositionEstimator(BaseEstimator, metaclass=ABCMeta):
    """Base of the estimators: common parameters, the history of a fit and the norm of the bonus."""

    k: int
    objective: str
    lambda_r: float | str
    batch_size: int
    steps: int
    learning_rate: float | None
    weighted_bonus: bool
    sigma_floor: float

    objectives = ("derex", "nested", "laplacian")
    min_batch_size: int

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "singular_values_")

    @property
    def _n_features_out(self) -> int:
        return len(self.singular_values_)

    @property
    def history_(self) -> dict[str, Float[np.ndarray, " entries"]]:
        columns = np.asarray(self._history, np.float64).T
        return dict(zip(("step", "loss", "trace", "off_diagonal"), columns, strict=True))

    def _check_parameters(self) -> Objective:
        check.check_integer("k", self.k, 1)
        check.check_integer("batch_size", self.batch_size, self.min_batch_size)
        check.check_integer("steps", self.steps, 1)
        if self.learning_rate is not None:
            check.check_number("learning_rate", self.learning_rate, 0.0, inclusive=False)
        lambda_r = self.lambda_r
        if not isinstance(lambda_r, str):
            lambda_r = check.check_number("lambda_r", lambda_r, 0.0)
        check.check_choice("objective", self.objective, self.objectives)
        self._check_bonus_parameters()
        return make_objective(self.objective, int(self.k), lambda_r)

    def _check_bonus_parameters(self) -> None:
        check.check_flag("weighted_bonus", self.weighted_bonus)
        check.check_number("sigma_floor", self.sigma_floor, 0.0)

    @abstractmethod
    def _default_learning_rate(self) -> float:
        """Returns the learning rate used where none is given."""

    def _learning_rate(self) -> float:
        return self._default_learning_rate() if self.learning_rate is None else float(self.learning_rate)

    def _check_metrics(self, step: int, metrics: FitMetrics) -> tuple[float, ...]:
        """Returns an entry of the history; raises if training has diverged."""
        if not metrics.finite:
            raise FloatingPointError(
                f"Training diverged at update {step}: loss {float(metrics.loss)}. Lower learning_rate "
                f"(now {self._learning_rate():g}) or check the scale of the inputs."
            )
        return (float(step), float(metrics.loss), float(metrics.trace), float(metrics.off_diagonal))

    def _publish_state(
        self, state: FitState, history: list[tuple[float, ...]], names: tuple[str, ...]
    ) -> None:
        """Sets the fitted attributes; `names` are the parameters that the networks depend on."""
        self._state, self._history = state, history
        self._trained_as = {name: getattr(self, name) for name in names}
        sigma = np.asarray(read_statistics(state.running).sigma, np.float32)
        self._order = np.argsort(-np.diag(sigma), kind="stable")
        self.sigma_ = sigma[np.ix_(self._order, self._order)]
        self.singular_values_ = np.maximum(np.diag(self.sigma_), 0.0)
        self.n_iter_ = int(state.step)

    def _norm(self, f: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        """Computes ‖f‖_{Λ̃⁻¹} of each row."""
        sigma, floor, weighted = self.singular_values_, float(self.sigma_floor), bool(self.weighted_bonus)
        if weighted and floor == 0.0:  # Λ̃⁻¹ is then the pseudo-inverse
            f, sigma = f[:, sigma > 0.0], sigma[sigma > 0.0]
        function: Any = eqx.Partial(compute_bonus, sigma=sigma, weighted=weighted, sigma_floor=floor)
        return map_rows(function, f, "float32")
