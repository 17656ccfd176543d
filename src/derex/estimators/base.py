"""What trained networks show on their training data.

Running statistics lag behind networks that still move: at the end of a fit they are replaced by those of the final
networks, so that `transform` is standardised on the training data whatever the number of updates.

Shapes: n pairs, k features.

What a fitted model remembers of what it has seen, so that the unseen gets the largest bonus.

A guard says by how much each row is unlike the training data: 0 for all that is like it, whose bonus stays exactly as
it is, up to 1, which adds √2 times the largest bonus of what was seen. That is the bonus of a state visited half as
often as the rarest one: ‖f(s)‖ grows like d(s)^-½.

A progress bar for fits.

What every estimator of a decomposition shares: parameters, the history of a fit, and the bonus.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from sklearn.base import BaseEstimator

from derex.decomposition.bonus import (
    Support,
    compute_bonus,
    compute_excess,
    compute_unexplained_share,
    fit_support,
)
from derex.decomposition.objectives import Objective, make_objective
from derex.decomposition.statistics import (
    READING_EPSILON,
    BatchStatistics,
    Moments,
    RunningStatistics,
    read_statistics,
)
from derex.estimators import validation as check
from derex.estimators.data import PairData, map_rows
from derex.estimators.fitting import Networks, Progress, TrainState
from derex.networks.layers import iterate_blocks

MEASURED_PAIRS = 1 << 16  # at most; fewer where the distinct pairs are known
SMALLEST_DIRECTION = 1e-6  # relative to the largest: below it there is only rounding


def measure(networks: Networks, data: PairData) -> RunningStatistics:
    """Moments of f and g, and Σ between them, over the training pairs: as running statistics that have settled."""
    numbers, counts = data.pairs(MEASURED_PAIRS)
    f, g = (
        map_rows(side, rows, dtype, numbers)
        for side, rows, dtype in zip(
            (networks.f, networks.g_or_f), (data.x, data.y), data.dtypes, strict=True
        )
    )
    return settled_statistics(f, g, counts)


def settled_statistics(
    f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"], counts: Float[np.ndarray, " n"] | None = None
) -> RunningStatistics:
    """Moments of f and g, and Σ between them, as running statistics that have settled; row i counts counts[i] times."""
    weights = np.full(len(f), 1.0 / len(f)) if counts is None else counts / counts.sum()
    (f, f_moments), (g, g_moments) = (_standardised(side, weights) for side in (f, g))
    return RunningStatistics(
        BatchStatistics(f_moments, g_moments, jnp.asarray((f.T * weights) @ g)), jnp.ones(())
    )


def squared_correlation(f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"]) -> float:
    """‖C_f^-½ Cov(f, g) C_g^-½‖²_F: the sum of squared canonical correlations (VAMP-2)."""
    f_basis, g_basis = (_orthonormal(side - side.mean(axis=0, dtype=np.float64)) for side in (f, g))
    return float(np.sum((f_basis.T @ g_basis) ** 2))


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns' span."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > SMALLEST_DIRECTION * max(sizes[0], np.finfo(np.float64).tiny)]


def _standardised(
    z: Float[np.ndarray, "n k"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n k"], Moments]:
    """`batch_normalise` in double precision, on the host."""
    mean = weights @ z
    variance = weights @ (z - mean) ** 2
    return (z - mean) / np.sqrt(variance + READING_EPSILON), Moments(jnp.asarray(mean), jnp.asarray(variance))


@runtime_checkable
class Guard(Protocol):
    """Tells rows apart from the training data; `dtype` is the one in which networks see them."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]: ...


class NoGuard(NamedTuple):
    """Nothing is known about what was seen: every bonus is the norm."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return np.zeros(len(rows), np.float32)


class SeenIds(NamedTuple):
    """Which ids of a table were trained. Those never seen have no representation, and are in excess by 1."""

    seen: Bool[np.ndarray, " n_ids"]

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return (~self.seen[rows]).astype(np.float32)

    def including(self, rows: np.ndarray) -> SeenIds:
        """The same with these ids seen as well."""
        seen = self.seen.copy()
        for block in iterate_blocks(rows):
            seen[block] = True
        return SeenIds(seen)


class FeatureSpan(NamedTuple):
    """Features of the rows that a fit saw; see `derex.decomposition.bonus`.

    They are those of the network as the fit left it: `partial_fit` moves on, and what training rows' features spanned
    then says nothing about a network that has changed.
    """

    support: Support
    typical: Float[np.ndarray, "m k"]  # representations of training rows, whose largest bonus is the measure
    network: Any  # an eqx.Module with a `features` method

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return compute_excess(
            compute_unexplained_share(features_of(self.network, rows, dtype), self.support), self.support
        )


def features_of(network: Any, rows: np.ndarray, dtype: str) -> Float[np.ndarray, "n h"]:
    """What the network's last layer reads, as vectors."""
    return map_rows(network.features, rows, dtype).reshape(len(rows), -1)


def feature_span(
    network: Any, rows: np.ndarray, counts: Float[np.ndarray, " m"], dtype: str, typical: np.ndarray
) -> FeatureSpan:
    """What the features of these rows span, row i seen counts[i] times."""
    return FeatureSpan(fit_support(features_of(network, rows, dtype), counts), typical, network)


def describe_progress(loss: float, trace: float, off_diagonal: float) -> str:
    """The text of a fit's progress bar."""
    return f"loss {loss:+.4f}  tr Σ̃ {trace:.3f}  off-diagonal {off_diagonal:.3f}"


class Decomposition(BaseEstimator, metaclass=ABCMeta):
    """An estimator with the parameters of a decomposition; subclasses say what is decomposed, and how it is read."""

    k: int
    objective: str
    lambda_r: float | str
    batch_size: int
    steps: int
    learning_rate: float | None
    weighted_bonus: bool
    sigma_floor: float

    objectives: tuple[str, ...]  # that a subclass can train
    fewest: int  # smallest batch

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
        check.check_integer("batch_size", self.batch_size, self.fewest)
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
    def _default_rate(self) -> float:
        """Learning rate where none is given."""

    def _learning_rate(self) -> float:
        return self._default_rate() if self.learning_rate is None else float(self.learning_rate)

    def _checked(self, step: int, seen: Progress) -> tuple[float, ...]:
        """An entry of the history, if training still makes sense."""
        if not seen.finite:
            raise FloatingPointError(
                f"Training diverged at update {step}: loss {float(seen.loss)}. Lower learning_rate "
                f"(now {self._learning_rate():g}) or check the scale of the inputs."
            )
        return (float(step), float(seen.loss), float(seen.trace), float(seen.off_diagonal))

    def _publish_state(self, state: TrainState, history: list[tuple[float, ...]]) -> None:
        """Set what can be read off the state of a fit."""
        self._state, self._history = state, history
        sigma = np.asarray(read_statistics(state.running).sigma, np.float32)
        self._order = np.argsort(-np.diag(sigma), kind="stable")
        self.sigma_ = sigma[np.ix_(self._order, self._order)]
        self.singular_values_ = np.maximum(np.diag(self.sigma_), 0.0)
        self.n_iter_ = int(state.step)

    def _norm(self, f: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        """‖f‖_{Λ̃⁻¹} of each row."""
        sigma, floor, weighted = self.singular_values_, float(self.sigma_floor), bool(self.weighted_bonus)
        if weighted and floor == 0.0:  # Λ̃⁻¹ is then the pseudo-inverse
            f, sigma = f[:, sigma > 0.0], sigma[sigma > 0.0]
        function: Any = eqx.Partial(compute_bonus, sigma=sigma, weighted=weighted, sigma_floor=floor)
        return map_rows(function, f, "float32")
