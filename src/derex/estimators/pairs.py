"""The decomposition as a scikit-learn estimator on pairs (state, next state)."""

from __future__ import annotations

import os
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data  # pyrefly: ignore[missing-module-attribute]

from derex.decomposition.bonus import SIGMA_FLOOR, raise_bonus
from derex.decomposition.objectives import REFERENCE_LAMBDA_R, Objective
from derex.decomposition.statistics import read_statistics
from derex.estimators import validation as check
from derex.estimators.base import (
    Decomposition,
    Guard,
    NoGuard,
    SeenIds,
    describe_progress,
    feature_span,
    measure,
    squared_correlation,
)
from derex.estimators.building import (
    CALIBRATION_ROWS,
    Sides,
    build_networks,
    default_learning_rate,
    input_specs,
    kinds_of,
)
from derex.estimators.data import GivenRows, PairData, is_memory_mapped, map_rows, on_device
from derex.estimators.fitting import (
    TrainState,
    chunk_lengths,
    cosine_rates,
    initial_state,
    reading_side,
    train_chunk,
)
from derex.progress import ProgressBar

OBJECTIVES = ("derex", "nested", "laplacian")


class DeRex(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Decomposition):
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
        novelty: give inputs unlike anything that `fit` saw the largest bonus (see `bonus`).
        n_states: size of the table for encoder="tabular", or a pair for X and Y; None: one past the largest id.
        random_state: seed; the same seed and data give the same result.
        verbose: show a progress bar.

    Attributes:
        singular_values_: (k,), descending: diag Σ.
        sigma_: (k, k), Σ over the training pairs; after `partial_fit`, the running mean of Σ̂.
        history_: dict of arrays `step`, `loss`, `trace`, `off_diagonal`, one entry a chunk of updates.
        n_iter_: updates so far.

    Example:
        >>> model = DeRex(k=2, encoder="tabular").fit(states, next_states)  # doctest: +SKIP
        >>> model.transform(states).shape, model.bonus(states).shape  # doctest: +SKIP
    """

    objectives = OBJECTIVES
    fewest = check.FEWEST_ROWS

    @no_type_check  # scikit-learn's rule: any value may be set, `fit` refuses it
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
        n_states: int | tuple[int | None, int | None] | None = None,
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
        kinds = kinds_of(self.encoder)
        rows = self._check_pairs(X, y, kinds, reset=True)
        specs = input_specs(rows, kinds, self.n_states, objective.tied)
        check.check_k(int(self.k), int(self.batch_size) // 2, zip("XY", rows, specs, strict=True))
        state, draws, rng = self._untrained(objective, rows, specs)
        data = PairData(*rows, (specs.x.dtype, specs.y.dtype), int(self.batch_size), rng)
        state, history = self._train(objective, data, state, draws)
        state = state._replace(running=measure(state.networks, data))
        self._publish(specs, state, history, self._seen(specs, rows, objective.tied))
        if self.novelty and isinstance(self._guards.x, NoGuard):
            self._guards = self._guards._replace(x=self._feature_span(data))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> DeRex:
        """One update on a fresh batch: its first half of rows against its second, at a constant learning rate.

        For streams. The halves must be independent: let them come from different episodes.
        """
        objective = self._check_parameters()
        first = not self.__sklearn_is_fitted__()
        kinds = kinds_of(self.encoder) if first else Sides(*(spec.kind for spec in self._specs))
        if not first:
            self._check_unchanged(objective)
        rows = self._check_pairs(X, y, kinds, reset=first)
        if first:
            specs = input_specs(rows, kinds, self.n_states, objective.tied)
            check.check_table_k(int(self.k), specs)
            state, *_ = self._untrained(objective, rows, specs)
            guards, history = self._seen(specs, rows, objective.tied), []
        else:
            specs, state, history = self._specs, self._state, self._history
            guards = self._seen(specs, rows, objective.tied, self._guards)
        items = tuple(on_device(side, spec.dtype)[None] for side, spec in zip(rows, specs, strict=True))
        rates = jnp.full(1, self._learning_rate(), jnp.float32)
        state, seen = train_chunk(objective, GivenRows(), state, items, rates)
        history.append(self._checked(int(state.step), seen))
        self._publish(specs, state, history, guards)
        return self

    # --- reading -------------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Float[np.ndarray, "n k"]:
        """f(x) for each row: mean 0 and variance 1 over the training data, components in order of σ.

        Ids that a tabular model never saw have no representation: their rows are 0.
        """
        check_is_fitted(self)
        return self._represent(0, self._check_x(X))

    def transform_y(self, Y: Any) -> Float[np.ndarray, "n k"]:
        """g(y) for each row, standardised and ordered like `transform`."""
        check_is_fitted(self)
        y = check.check_rows("Y", check.in_numpy_types(Y), self._specs.y.kind)
        check.check_like_fitted("Y", y, self._specs.y, type(self).__name__)
        return self._represent(1, y)

    def bonus(self, X: Any) -> Float[np.ndarray, " n"]:
        """‖f(x)‖_{Λ̃⁻¹} for each row (Section 4): large where the training data is rare.

        A network's norm says nothing about inputs unlike any it was trained on. With `novelty=True` such inputs are
        recognised (by ids never seen, or features that training does not span: `derex.decomposition.bonus`) and
        raised: an input unlike all training data gets at least √2 times the largest training bonus. Every other bonus,
        at least 99 % of the training visits among them, is exactly the norm. The user's own modules
        take part if they have a `features` method. `partial_fit` remembers ids; for networks what an earlier `fit` saw
        stays known, and a stream alone has no guard.
        """
        check_is_fitted(self)
        self._check_bonus_parameters()
        x = self._check_x(X)
        plain = self._norm(self._represent(0, x))
        if not self.novelty:
            return plain
        excess = self._guards.x.excess(x, check.device_dtype(x.dtype, self._specs.x.kind))
        return raise_bonus(plain, excess, self._largest_bonus()) if excess.any() else plain

    def score(self, X: Any, y: Any = None) -> float:
        """Squared correlation captured on these pairs: ‖C_f^-½ Σ C_g^-½‖²_F, at most the sum of k squared σ.

        The VAMP-2 score: invariant to mixing features, so it can compare models on held-out pairs.
        """
        check.check_given(y, type(self).__name__)
        f, g = self.transform(X), self.transform_y(y)
        check.check_lengths(f, g)
        return squared_correlation(f, g)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (no code in it), atomically."""
        from derex.estimators.files import save_pairs

        check_is_fitted(self)
        save_pairs(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: Any = None) -> DeRex:
        """Read a model written by `save`. Models with own modules need them again: `encoder=`."""
        from derex.estimators.files import load_pairs

        return load_pairs(cls, path, encoder)

    # --- scikit-learn --------------------------------------------------------------------------------------------

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # pyrefly: ignore[missing-attribute]
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        tags.non_deterministic = False
        return tags

    # --- inside --------------------------------------------------------------------------------------------------

    def _check_parameters(self) -> Objective:
        objective = super()._check_parameters()
        check.check_n_states(self.n_states, kinds_of(self.encoder))
        return objective

    def _check_bonus_parameters(self) -> None:
        super()._check_bonus_parameters()
        check.check_flag("novelty", self.novelty)

    def _check_unchanged(self, objective: Objective) -> None:
        """What `partial_fit` continues is the same model."""
        if self.k != len(self.singular_values_):
            raise ValueError(
                f"k: changed from {len(self.singular_values_)} to {self.k} since the first batch. Set it back, or "
                "start reset_metrics: sklearn.base.clone(model)."
            )
        if objective.tied != (self._state.networks.g is None):
            raise ValueError(
                f"objective: {self.objective!r} needs other networks than the model has. Set it back, or start anew: "
                "sklearn.base.clone(model)."
            )

    def _check_pairs(self, X: Any, y: Any, kinds: Sides, reset: bool) -> Sides:
        check.check_given(y, type(self).__name__)
        X, y = check.in_numpy_types(X), check.in_numpy_types(y)
        if kinds == ("vectors", "vectors"):
            options = {"reset": reset, "ensure_min_samples": check.FEWEST_ROWS}
            checked = validate_data(self, X, y, multi_output=True, y_numeric=True, **options)
            X, y = (a if is_memory_mapped(a) else b for a, b in zip((X, y), checked, strict=True))
        rows = Sides(check.check_rows("X", X, kinds.x), check.check_rows("Y", y, kinds.y))
        check.check_pairs(rows.x, rows.y, int(self.k))
        for name, side, kind in zip("XY", rows, kinds, strict=True):
            if reset and kind == "vectors":
                check.check_precision(name, side)
        if not reset:
            check.check_like_fitted("X", rows.x, self._specs.x, type(self).__name__)
            check.check_like_fitted("Y", rows.y, self._specs.y, type(self).__name__)
        return rows

    def _check_x(self, X: Any) -> np.ndarray:
        spec, X = self._specs.x, check.in_numpy_types(X)
        if spec.kind == self._specs.y.kind == "vectors" and not is_memory_mapped(X):
            X = validate_data(self, X, reset=False)
        x = check.check_rows("X", X, spec.kind)
        check.check_like_fitted("X", x, spec, type(self).__name__)
        return x

    def _untrained(
        self, objective: Objective, rows: Sides, specs: Sides
    ) -> tuple[TrainState, PRNGKeyArray, np.random.Generator]:
        """Fresh networks for this data, and what the rest of the fit draws from."""
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        build, draws = jax.random.split(jax.random.key(seed))
        rng, k = np.random.default_rng(seed), int(self.k)
        networks = build_networks(self.encoder, build, specs, k, objective, rows, rng)
        return initial_state(networks, k), draws, rng

    def _train(
        self, objective: Objective, data: PairData, state: TrainState, draws: PRNGKeyArray
    ) -> tuple[TrainState, list[tuple[float, ...]]]:
        """All updates of a fit, a chunk at a time."""
        history, done, steps = [], 0, int(self.steps)
        lengths = chunk_lengths(steps, data.chunk)
        items = data.items(draws, 0, lengths[0])
        with ProgressBar("fit", enabled=bool(self.verbose)) as progress:
            progress.start()
            for length, following in zip(lengths, [*lengths[1:], 0], strict=True):
                rates = jnp.asarray(cosine_rates(done, length, steps, self._learning_rate()))
                state, seen = train_chunk(objective, data.source, state, items, rates)
                done += length
                if following:  # gathered while the device is busy
                    items = data.items(draws, done, following)
                history.append(self._checked(done, seen))
                progress.update(done, steps, describe_progress(*history[-1][1:]))
            progress.finish(f"{steps} steps  {describe_progress(*history[-1][1:])}")
        return state, history

    def _default_rate(self) -> float:
        return default_learning_rate(self.encoder)

    def _publish(
        self, specs: Sides, state: TrainState, history: list[tuple[float, ...]], guards: Sides
    ) -> None:
        """Set everything that makes a model fitted."""
        self._specs, self._guards = specs, guards
        self._trained_as = {
            name: getattr(self, name) for name in ("k", "objective", "encoder", "n_states", "lambda_r")
        }
        self._publish_state(state, history)

    def _represent(self, side: int, rows: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Standardised, ordered outputs of f (side 0) or g (side 1); 0 for ids never seen."""
        networks, seen = self._state.networks, read_statistics(self._state.running)
        network, moments = [(networks.f, seen.f), (networks.g_or_f, seen.g)][side]
        dtype = check.device_dtype(rows.dtype, self._specs[side].kind)
        values = map_rows(reading_side(network, moments), rows, dtype)[:, self._order]
        guard = self._guards[side]
        return values * guard.seen[rows][:, None] if isinstance(guard, SeenIds) else values

    def _largest_bonus(self) -> float:
        """Of what training saw."""
        guard = self._guards.x
        if isinstance(guard, SeenIds):
            return float(self._norm(self._represent(0, np.flatnonzero(guard.seen))).max())
        return float(self._norm(guard.typical).max())

    def _seen(self, specs: Sides, rows: Sides, tied: bool, before: Sides | None = None) -> Sides:
        """Which ids training saw; one network for both sides has seen both."""
        guards: list[Guard] = []
        for i, spec in enumerate(specs):
            if spec.kind != "ids":  # what an earlier fit saw stays known
                guards.append(NoGuard() if before is None else before[i])
                continue
            guard = SeenIds(np.zeros(spec.n_ids, bool)) if before is None else before[i]
            guards.append(guard.including(rows[i]).including(rows[1 - i if tied else i]))
        return Sides(*guards)

    def _feature_span(self, data: PairData) -> Guard:
        """What the features of a fit's data span, for the bonus of what they do not."""
        network = self._state.networks.f.network
        if not callable(getattr(network, "features", None)):
            return NoGuard()
        rows, counts = data.calibration(CALIBRATION_ROWS)
        return feature_span(network, rows, counts, data.dtypes[0], self._represent(0, rows))
