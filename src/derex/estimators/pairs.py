"""`DeRex`: the decomposition as a scikit-learn estimator on pairs (state, next state)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]

from derex.decomposition.bonus import (
    Support,
    compute_excess,
    compute_unexplained_share,
    fit_support,
    raise_bonus,
)
from derex.decomposition.objectives import Objective
from derex.estimators import diagnosis, fitting
from derex.estimators import validation as check
from derex.estimators.data import GivenRows, PairData, is_memory_mapped, map_rows, to_device
from derex.estimators.networks import CALIBRATION_ROWS, build_networks, make_input_specs
from derex.estimators.reading import update_reading
from derex.estimators.validation import Sides
from derex.networks import ENCODERS
from derex.networks.layers import iterate_blocks


class NoGuard(NamedTuple):  # the names of the three guards are part of the format of model files
    """Nothing is known about the training data: every bonus is the norm."""

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return np.zeros(len(rows), np.float32)


class SeenIds(NamedTuple):
    """Which ids of a table were trained. Unseen ids have no representation, and an excess of 1."""

    seen: Bool[np.ndarray, " n_ids"]

    def excess(self, rows: np.ndarray, dtype: str) -> Float[np.ndarray, " n"]:
        return (~self.seen[rows]).astype(np.float32)


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


@dataclass(eq=False, repr=False, kw_only=True)
class DeRex(ClassNamePrefixFeaturesOutMixin, TransformerMixin, fitting.DecompositionEstimator):
    """Top-k singular functions of the dynamics, learnt from paired samples; bonuses from their norm.

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
        batch_size: pairs per update, half of them for each of the two independent estimates.
        steps: updates in `fit`.
        learning_rate: Adam's, with a cosine decay in `fit`; None: the encoder's default.
        weighted_bonus: weights Σ̃⁻² in the bonus (the paper's); False: the plain norm.
        sigma_floor: smaller singular values count as this much in the weights.
        novelty: raise the bonus of inputs unlike anything that `fit` saw above all others (see `bonus`).
        n_states: size of the table for encoder="tabular", or a pair for X and Y; None: one past the largest id.
        random_state: seed; the same seed and data give the same result.
        verbose: whether to show a progress bar; None: where stderr is a terminal.

    Attributes:
        singular_values_: (k,), descending: diag Σ.
        sigma_: (k, k), Σ over the training pairs; after `partial_fit`, the running mean of Σ̂.
        history_: dict of arrays `step`, `loss`, `trace`, `off_diagonal`, one entry per chunk of updates.
        n_iter_: updates so far.
    """

    encoder: Any = "mlp"
    batch_size: int = 2048
    novelty: bool = True
    n_states: int | tuple[int | None, int | None] | None = None

    min_batch_size = check.MIN_ROWS
    structural = ("k", "objective", "encoder", "n_states", "lambda_r")
    file_format = "derex-model"
    bonus_parameters = fitting.DecompositionEstimator.bonus_parameters | {"novelty": bool}

    def fit(self, X: Any, y: Any = None) -> DeRex:
        """Learns from pairs: row i of `y` followed row i of `X`.

        Memory-mapped arrays are read batch by batch and never loaded whole.
        """
        objective = self._check_parameters()
        rows, specs, state, key, rng = self._start(X, y, objective, int(self.batch_size) // 2)
        dtypes = specs.x.dtype, specs.y.dtype
        data = PairData(*rows, dtypes, int(self.batch_size), rng, key)
        fit = fitting.Fit(self, objective, data, state, [])
        fitting.run_updates([fit])
        state, reading = fit.measure()
        self._specs, self._guards = specs, _remember_ids(specs, rows, objective.tied)
        self._publish(state, fit.history, reading)
        network = state.networks.f.network
        if self.novelty and specs.x.kind != "ids" and callable(getattr(network, "features", None)):
            x, counts = data.sample_x(CALIBRATION_ROWS)
            support = fit_support(compute_features(network, x, dtypes[0]), counts)
            self._guards = self._guards._replace(x=FeatureSpan(support, self._represent("X", x), network))
        measured = diagnosis.measure_rarity(rows.x, rng)
        bonus = None if measured is None else self._norm(self._represent("X", rows.x[measured.indices]))
        self._report(reading, measured, bonus)
        self._warn()
        return self

    def partial_fit(self, X: Any, y: Any = None) -> DeRex:
        """Makes one update on a fresh batch: its first half of rows against its second, at a constant rate.

        For streams. The halves must be independent: let them come from different episodes.
        """
        objective = self._check_parameters()
        if not self.__sklearn_is_fitted__():
            rows, specs, state, *_ = self._start(X, y, objective, None)
            history, guards, before = [], None, None
        else:
            self._check_unchanged(objective)
            specs, state, history, guards = self._specs, self._state, self._history, self._guards
            before = self._reading
            rows = self._check_pairs(X, y, Sides(specs.x.kind, specs.y.kind), reset=False)
        guards = _remember_ids(specs, rows, objective.tied, guards)
        items = tuple(to_device(side, spec.dtype)[None] for side, spec in zip(rows, specs, strict=True))
        rates = jnp.full(1, self._learning_rate(), jnp.float32)
        state, metrics = fitting.train_chunk(objective, GivenRows(), state, items, rates)
        history.append(self._check_metrics(int(state.step), metrics))
        reading = None
        if not objective.tied:
            sides = zip((state.networks.f, state.networks.g), rows, specs, strict=True)
            reading = update_reading(before, *(map_rows(f, its, spec.dtype) for f, its, spec in sides))
        self._specs, self._guards = specs, guards
        self._publish(state, history, reading)
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "n k"]:
        """Computes f(x) for each row: mean 0 and variance 1 over the training data, components in order of σ.

        Ids that a tabular model never saw have no representation: their rows are 0.
        """
        check_is_fitted(self)
        return self._represent("X", self._check_like_fitted("X", X))

    def transform_y(self, Y: Any) -> Float[np.ndarray, "n k"]:
        """Computes g(y) for each row, standardised and ordered like `transform`."""
        check_is_fitted(self)
        return self._represent("Y", self._check_like_fitted("Y", Y))

    def bonus(self, X: Any) -> Float[np.ndarray, " n"]:
        """Computes ‖f(x)‖_{Λ̃⁻¹} for each row (Section 4): large where the training data is rare.

        A network's norm says nothing about inputs unlike any it was trained on. With `novelty=True` such inputs are
        recognised (by unseen ids, or features that training does not span: `derex.decomposition.bonus`), and up to √2
        times the largest bonus in training is added to their norm, so that a wholly unseen input gets at least that
        much. Every other bonus, of at least 99 % of the training visits among them, is exactly the norm.

        The user's own modules take part if they have a `features` method. `partial_fit` remembers ids; for networks
        the guard of an earlier `fit` is kept, and a stream alone has no guard.
        """
        check_is_fitted(self)
        check.check_scalars(self, self.bonus_parameters)
        x = self._check_like_fitted("X", X)
        plain, guard = self._norm(self._represent("X", x)), self._guards.x
        if not self.novelty:
            return plain
        excess = guard.excess(x, check.device_dtype(x.dtype, self._specs.x.kind))
        if not excess.any():
            return plain
        seen = (
            self._represent("X", np.flatnonzero(guard.seen)) if isinstance(guard, SeenIds) else guard.typical
        )
        return raise_bonus(plain, excess, float(self._norm(seen).max()))

    def score(self, X: Any, y: Any = None) -> float:
        """Computes the squared correlation on these pairs: ‖C_f^-½ Σ C_g^-½‖²_F, at most the sum of k squared σ.

        The VAMP-2 score: invariant to mixing features, so it can compare models on held-out pairs.
        """
        check.check_given(y, type(self).__name__)
        f, g = self.transform(X), self.transform_y(y)
        check.check_lengths(f, g)
        return fitting.squared_correlation(f, g)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.non_deterministic = False
        return tags

    def _check_encoder(self) -> None:
        check.check_n_states(self.n_states, check.input_kinds(self.encoder))

    def _check_unchanged(self, objective: Objective) -> None:
        """Checks that `partial_fit` continues the same model."""
        fix = "Set it back, or start a new model: sklearn.base.clone(model)."
        if self.k != len(self.singular_values_):
            before = len(self.singular_values_)
            raise ValueError(f"k: changed from {before} to {self.k} since the first batch. {fix}")
        if objective.tied != (self._state.networks.g is None):
            raise ValueError(f"objective: {self.objective!r} needs other networks than the model has. {fix}")

    def _check_pairs(self, X: Any, y: Any, kinds: Sides, reset: bool) -> Sides:
        check.check_given(y, type(self).__name__)
        X, y = check.convert_rows("X", X), check.convert_rows("Y", y)
        if kinds == ("vectors", "vectors"):
            # Our own check of finite values: scikit-learn's advises other estimators.
            options = {"reset": reset, "ensure_min_samples": check.MIN_ROWS, "ensure_all_finite": False}
            if np.asarray(y).dtype.kind == "f":
                check.check_finite("Y", np.asarray(y))
            checked = validate_data(self, X, y, multi_output=True, y_numeric=True, **options)
            X, y = (a if is_memory_mapped(a) else b for a, b in zip((X, y), checked, strict=True))
        rows = Sides(check.check_rows("X", X, kinds.x), check.check_rows("Y", y, kinds.y))
        check.check_pairs(rows.x, rows.y, int(self.k))
        for name, side, kind in zip("XY", rows, kinds, strict=True):
            if not reset:
                self._check_spec(name, side)
            elif kind == "vectors":
                check.check_precision(name, side)
        return rows

    def _check_like_fitted(self, name: str, rows: Any) -> np.ndarray:
        """Returns rows of X or Y that a fitted model can read."""
        kind, rows = self._specs["XY".index(name)].kind, check.convert_rows(name, rows)
        vectors = name == "X" and self._specs.x.kind == self._specs.y.kind == "vectors"
        if vectors and not is_memory_mapped(rows):
            rows = validate_data(self, rows, reset=False, ensure_all_finite=False)
        rows = check.check_rows(name, rows, kind)
        self._check_spec(name, rows)
        return rows

    def _check_spec(self, name: str, rows: np.ndarray) -> None:
        spec = self._specs["XY".index(name)]
        now = check.make_spec(name, rows, spec.kind, spec.n_ids)
        if spec.kind == "vectors":
            now = now._replace(dtype=spec.dtype)  # vectors are rescaled by their values, whatever their type
            if now.shape != spec.shape:  # in scikit-learn's words
                expected = f"{type(self).__name__} is expecting {spec.shape[0]} features as input"
                raise ValueError(f"{name} has {now.shape[0]} features, but {expected}.")
        check.check_same_spec(name, now, spec, "as in fit")

    def _start(
        self, X: Any, y: Any, objective: Objective, half: int | None
    ) -> tuple[Sides, Sides, fitting.FitState, PRNGKeyArray, np.random.Generator]:
        """Returns checked rows, their specifications, a new state, and the key and generator of the rest of a fit."""
        kinds, k = check.input_kinds(self.encoder), int(self.k)
        rows = self._check_pairs(X, y, kinds, reset=True)
        specs = make_input_specs(rows, kinds, self.n_states, objective.tied)
        check.check_k(k, half, rows, specs)
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        build, draws = jax.random.split(jax.random.key(seed))
        rng = np.random.default_rng(seed)
        networks = build_networks(self.encoder, build, specs, k, objective.tied, rows, rng)
        return rows, specs, fitting.init_fit_state(networks, k), draws, rng

    def _default_learning_rate(self) -> float:
        """Returns the smaller of the two encoders' defaults."""
        sides = check.both_sides("encoder", self.encoder)
        named = [ENCODERS[side].learning_rate for side in sides if isinstance(side, str)]
        return min(named, default=super()._default_learning_rate())

    def _represent(self, name: str, rows: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Computes the singular functions of checked rows of X or Y; 0 for unseen ids."""
        side = "XY".index(name)
        dtype, guard = check.device_dtype(rows.dtype, self._specs[side].kind), self._guards[side]
        values = map_rows(self._read("fg"[side]), rows, dtype)
        return values * guard.seen[rows][:, None] if isinstance(guard, SeenIds) else values


def _remember_ids(specs: Sides, rows: Sides, tied: bool, before: Sides | None = None) -> Sides:
    """Makes the guards with these ids seen as well; one network for both sides has seen both."""
    guards: list[Guard] = []
    for i, spec in enumerate(specs):
        if spec.kind != "ids":  # the guard of an earlier fit is kept
            guards.append(NoGuard() if before is None else before[i])
            continue
        seen = np.zeros(spec.n_ids, bool) if before is None else before[i].seen.copy()
        for side in rows if tied else rows[i : i + 1]:
            for block in iterate_blocks(side):
                seen[block] = True
        guards.append(SeenIds(seen))
    return Sides(*guards)
