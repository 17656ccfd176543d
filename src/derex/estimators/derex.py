"""The decomposition as a scikit-learn estimator on pairs (state, next state)."""

from __future__ import annotations

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]

from derex.decomposition.bonus import SIGMA_FLOOR
from derex.decomposition.bonus import bonus as bonus_of
from derex.decomposition.normalisation import Moments, read_statistics, standardise
from derex.decomposition.objectives import REFERENCE_LAMBDA_R, Objective, make_objective
from derex.decomposition.support import fit_support
from derex.estimators import validation as check
from derex.estimators.building import (
    CALIBRATION_ROWS,
    Sides,
    build_networks,
    default_learning_rate,
    input_specs,
    kinds_of,
)
from derex.estimators.data import PairData, is_memory_mapped, on_device, row_blocks
from derex.estimators.guards import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.progress import FitProgress
from derex.estimators.sources import GivenRows
from derex.estimators.training import (
    Side,
    TrainState,
    chunk_lengths,
    cosine_rates,
    initial_state,
    train_chunk,
)

BLOCK_ROWS = 4096  # encoded at a time by transform
OBJECTIVES = ("derex", "nested", "laplacian")


class DeRex(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Top-k singular functions of the dynamics, learnt from paired samples; bonuses off their norm.

    f reads states (or state-action rows, or anything else), g reads what followed. Training makes
    Σ(θ) = E[f(x) g(y)ᵀ] diagonal with the largest possible entries, f and g standardised (Section 4): the singular
    value decomposition of D^½ P D'^-½ without its constant mode. P is never formed.

    Args:
        k: number of singular functions.
        objective: "derex" (the paper's loss), "nested" (a true, ordered decomposition, for large k) or "laplacian"
            (graph drawing, the paper's baseline; symmetric by construction, so X and Y must look alike).
        encoder: "tabular" (integer ids), "linear", "mlp" (vectors), "conv" (images n × height × width × channels), an
            Equinox module mapping one observation to k numbers, a function (key, shape, k) -> module, or a pair of
            any of these for X and Y.
        lambda_r: weight of the off-diagonal penalty, or "grow" for 10 (k-1)/15. The paper uses 10 (1 in Figure 3).
        batch_size: pairs in one update, half of them for each of the two independent estimates.
        steps: updates in `fit`.
        learning_rate: Adam's, with a cosine decay in `fit`; None takes the encoder's default.
        weighted_bonus: weights Σ̃⁻² in the bonus (the paper's); False is the plain norm.
        sigma_floor: smaller singular values count as this much in the weights.
        novelty: give inputs unlike anything in training the largest bonus (see `bonus`).
        n_states: size of the table for encoder="tabular", or a pair for X and Y; None: one past the largest id.
        random_state: seed; the same seed and data give the same result.
        verbose: show a progress bar.

    Attributes:
        singular_values_: (k,), descending: the running mean of diag Σ̂.
        sigma_: (k, k), the running mean of Σ̂ in the same order.
        history_: dict of arrays `step`, `loss`, `trace`, `off_diagonal`, one entry a chunk of updates.
        n_iter_: updates so far.

    Example:
        >>> model = DeRex(k=2, encoder="tabular").fit(states, next_states)  # doctest: +SKIP
        >>> model.transform(states).shape, model.bonus(states).shape  # doctest: +SKIP
    """

    def __init__(
        self,
        k: int = 16,
        *,
        objective: str = "derex",
        encoder: Any = "mlp",
        lambda_r: float | str = REFERENCE_LAMBDA_R,
        batch_size: int = 2048,
        steps: int = 3000,
        learning_rate: float | None = None,
        weighted_bonus: bool = True,
        sigma_floor: float = SIGMA_FLOOR,
        novelty: bool = True,
        n_states: int | tuple[int, int] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.k = k
        self.objective = objective
        self.encoder = encoder
        self.lambda_r = lambda_r
        self.batch_size = batch_size
        self.steps = steps
        self.learning_rate = learning_rate
        self.weighted_bonus = weighted_bonus
        self.sigma_floor = sigma_floor
        self.novelty = novelty
        self.n_states = n_states
        self.random_state = random_state
        self.verbose = verbose

    # --- training ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> DeRex:
        """Learn from pairs: row i of `y` followed row i of `X`.

        Memory-mapped arrays are read batch by batch and never loaded whole.
        """
        objective = self._check_parameters()
        rows = self._check_pairs(X, y, reset=True)
        check.check_k(self.k, self.batch_size // 2, zip("XY", rows, self._kinds, strict=True))
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        state = self._untrained(objective, rows, seed)
        data = PairData(*rows, self.batch_size)
        draws = jax.random.fold_in(jax.random.key(seed), 1)
        done, rate = 0, self._learning_rate()
        with FitProgress(self.steps, enabled=self.verbose) as progress:
            for length in chunk_lengths(self.steps, data.chunk):
                items = data.items(jax.random.split(jax.random.fold_in(draws, done), length))
                rates = jnp.asarray(cosine_rates(done, length, self.steps, rate))
                state, seen = train_chunk(objective, data.source, state, items, rates)
                done += length
                self._record(done, seen)
                progress.update(done, *self._history[-1][1:])
        self._publish(state)
        self._guard = self._seen_in(data)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> DeRex:
        """One update on a fresh batch: its first half of rows against its second, at a constant learning rate.

        For streams. The halves must be independent: let them come from different episodes.
        """
        objective = self._check_parameters()
        first = not hasattr(self, "_state")
        rows = self._check_pairs(X, y, reset=first)
        half = len(rows.x) // 2
        if self.k >= half:
            raise ValueError(
                f"X: partial_fit needs more than 2 k + 1 = {2 * self.k + 1} rows in each batch, so that either half "
                f"has more than k; got {len(rows.x)}. Use larger batches or a smaller k."
            )
        if first:
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            self._state = self._untrained(objective, rows, seed)
        items = tuple(on_device(side)[None] for side in rows)
        rates = jnp.full(1, self._learning_rate(), jnp.float32)
        state, seen = train_chunk(objective, GivenRows(half), self._state, items, rates)
        self._record(int(state.step), seen)
        self._publish(state)
        if isinstance(self._guard, SeenIds):
            self._guard = self._with_seen(self._guard.seen, rows.x)
        return self

    # --- reading -------------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Float[np.ndarray, "n k"]:
        """f(x) for each row: mean 0 and variance 1 over the training data, components in order of σ.

        Ids that a tabular model never saw have no representation: their rows are 0.
        """
        check_is_fitted(self)
        return self._represent(self._check_x(X))

    def transform_y(self, Y: Any) -> Float[np.ndarray, "n k"]:
        """g(y) for each row, standardised and ordered like `transform`."""
        check_is_fitted(self)
        y = check.check_rows("Y", Y, self._kinds.y)
        check.check_like_fitted("Y", y, self._specs.y, type(self).__name__)
        statistics = read_statistics(self._state.running)
        return self._encode(self._state.networks.g_or_f, statistics.g, y)

    def bonus(self, X: Any) -> Float[np.ndarray, " n"]:
        """‖f(x)‖_{Λ̃⁻¹} for each row (Section 4): large where the training data is rare.

        A network's norm says nothing about inputs unlike any it was trained on. With `novelty=True` such inputs are
        recognised (by ids never seen, or features that training does not span: `derex.decomposition.support`) and
        raised towards √2 times the largest bonus in training; every other bonus is exactly the norm. The user's own
        modules take part if they have a `features` method; after `partial_fit` alone only ids are remembered.
        """
        check_is_fitted(self)
        x = self._check_x(X)
        plain = self._norm(self._represent(x))
        if not self.novelty:
            return plain
        features = self._features(x) if self._guard.needs_features else None
        return self._guard(x, features, plain)

    def score(self, X: Any, y: Any) -> float:
        """Squared correlation captured on these pairs: ‖C_f^-½ Σ C_g^-½‖²_F, at most the sum of k squared σ.

        The VAMP-2 score: invariant to mixing features, so it can compare models on held-out pairs.
        """
        f, g = self.transform(X).astype(np.float64), self.transform_y(y).astype(np.float64)
        f, g = f - f.mean(axis=0), g - g.mean(axis=0)
        f_basis, g_basis = (_orthonormal(side) for side in (f, g))
        return float(np.sum((f_basis.T @ g_basis) ** 2))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (no code in it), atomically."""
        from derex.estimators.persistence import save

        check_is_fitted(self)
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: Any = None) -> DeRex:
        """Read a model written by `save`. Models with own modules need them again: `encoder=`."""
        from derex.estimators.persistence import load

        return load(cls, path, encoder)

    # --- scikit-learn --------------------------------------------------------------------------------------------

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.non_deterministic = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "singular_values_")

    @property
    def _n_features_out(self) -> int:
        return self.k

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> Objective:
        check.check_integer("k", self.k, 1)
        check.check_integer("batch_size", self.batch_size, check.FEWEST_ROWS)
        check.check_integer("steps", self.steps, 1)
        check.check_number("sigma_floor", self.sigma_floor, 0.0)
        if self.learning_rate is not None:
            check.check_number("learning_rate", self.learning_rate, 0.0, inclusive=False)
        check.check_choice("objective", self.objective, OBJECTIVES)
        self._kinds = kinds_of(self.encoder)
        return make_objective(self.objective, self.k, self.lambda_r)

    def _check_pairs(self, X: Any, y: Any, reset: bool) -> Sides:
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None: row i of y "
                "is what followed row i of X."
            )
        if self._kinds == ("vectors", "vectors"):
            options = {"reset": reset, "ensure_min_samples": check.FEWEST_ROWS}
            checked = validate_data(self, X, y, multi_output=True, y_numeric=True, **options)
            X, y = (a if is_memory_mapped(a) else b for a, b in zip((X, y), checked, strict=True))
        rows = Sides(check.check_rows("X", X, self._kinds.x), check.check_rows("Y", y, self._kinds.y))
        check.check_pairs(rows.x, rows.y)
        if not reset:
            check.check_like_fitted("X", rows.x, self._specs.x, type(self).__name__)
            check.check_like_fitted("Y", rows.y, self._specs.y, type(self).__name__)
        return rows

    def _check_x(self, X: Any) -> np.ndarray:
        if self._kinds == ("vectors", "vectors") and not is_memory_mapped(X):
            X = validate_data(self, X, reset=False)
        x = check.check_rows("X", X, self._kinds.x)
        check.check_like_fitted("X", x, self._specs.x, type(self).__name__)
        return x

    def _untrained(self, objective: Objective, rows: Sides, seed: int) -> TrainState:
        """Fresh networks for this data."""
        self._specs = input_specs(rows, self._kinds, self.n_states, objective.tied)
        key, rng = jax.random.key(seed), np.random.default_rng(seed)
        networks = build_networks(self.encoder, key, self._specs, self.k, objective, rows, rng)
        self._history: list[tuple[float, ...]] = []
        self._guard = self._fresh_guard()
        return initial_state(networks, self.k)

    def _learning_rate(self) -> float:
        return (
            default_learning_rate(self.encoder) if self.learning_rate is None else float(self.learning_rate)
        )

    def _record(self, step: int, seen: Any) -> None:
        values = tuple(float(value) for value in seen)
        if not np.all(np.isfinite(values)):
            raise FloatingPointError(
                f"Training diverged at update {step}: loss {values[0]}. Lower learning_rate "
                f"(now {self._learning_rate():g}) or check the scale of the inputs."
            )
        self._history.append((float(step), *values))

    def _publish(self, state: TrainState) -> None:
        """Set the fitted attributes from the training state."""
        self._state = state
        sigma = np.asarray(read_statistics(state.running).sigma)
        self._order = np.argsort(-np.diag(sigma), kind="stable")
        self.sigma_ = sigma[np.ix_(self._order, self._order)]
        self.singular_values_ = np.maximum(np.diag(self.sigma_), 0.0)
        self.n_iter_ = int(state.step)
        columns = np.asarray(self._history, np.float64).T
        self.history_ = dict(zip(("step", "loss", "trace", "off_diagonal"), columns, strict=True))

    def _represent(self, x: np.ndarray) -> Float[np.ndarray, "n k"]:
        statistics = read_statistics(self._state.running)
        f = self._encode(self._state.networks.f, statistics.f, x)
        return f * self._guard.seen[x][:, None] if isinstance(self._guard, SeenIds) else f

    def _encode(self, side: Side, statistics: Moments, rows: np.ndarray) -> Float[np.ndarray, "n k"]:
        parts = [
            np.asarray(_standardised(side, statistics, block))[:n]
            for block, n in row_blocks(rows, BLOCK_ROWS)
        ]
        return np.concatenate(parts)[:, self._order]

    def _features(self, rows: np.ndarray) -> np.ndarray:
        f = self._state.networks.f
        return np.concatenate(
            [np.asarray(_features(f, block))[:n] for block, n in row_blocks(rows, BLOCK_ROWS)]
        )

    def _norm(self, f: np.ndarray) -> Float[np.ndarray, " n"]:
        return np.asarray(
            bonus_of(
                jnp.asarray(f), jnp.asarray(self.singular_values_), self.weighted_bonus, self.sigma_floor
            )
        )

    def _fresh_guard(self) -> Guard:
        if self._kinds[0] != "ids":
            return NoGuard()
        return SeenIds(np.zeros(self._specs.x.n_ids, bool), np.zeros((), np.float32))

    def _with_seen(self, seen: np.ndarray, x: np.ndarray) -> SeenIds:
        seen = seen.copy()
        seen[x] = True
        self._guard = SeenIds(seen, np.zeros((), np.float32))
        largest = self._norm(self._represent(np.flatnonzero(seen).astype(np.int32))).max()
        return SeenIds(seen, np.asarray(largest, np.float32))

    def _seen_in(self, data: PairData) -> Guard:
        """What a fit saw, for the bonus of what it did not."""
        if isinstance(self._guard, SeenIds):
            return self._with_seen(self._guard.seen, data.x)
        if not self.novelty or not hasattr(self._state.networks.f.network, "features"):
            return NoGuard()
        rows, counts = data.calibration(CALIBRATION_ROWS)
        largest = self._norm(self._represent(rows)).max()
        return FeatureSpan(fit_support(self._features(rows), counts, float(largest)))


@eqx.filter_jit
def _standardised(side: Side, statistics: Moments, rows: Any) -> Any:
    return standardise(jax.vmap(side)(rows), statistics)


@eqx.filter_jit
def _features(side: Side, rows: Any) -> Any:
    return jax.vmap(side.network.features)(rows)


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns' span."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > 1e-6 * max(sizes[0], np.finfo(float).tiny)]
