"""From data to a fitted model, for both estimators: the optimiser loop, the final statistics, features and bonuses.

Fits of one shape are trained side by side in one program: it is compiled once, and small scans over time, which leave
most of an accelerator idle, cost little more than one.

Running statistics lag behind networks that still move. At the end of a fit they are replaced by those of the final
networks, so that `transform` is standardised on the training data whatever the number of updates.

Shapes: n rows, k features.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from derex.decomposition import ritz, statistics
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.decomposition.objectives import REFERENCE_LAMBDA_R, Objective, make_objective
from derex.estimators import diagnosis
from derex.estimators import validation as check
from derex.estimators.data import Source
from derex.estimators.networks import make_read_out, standardise_side
from derex.estimators.reading import Reading, read_functions
from derex.networks.layers import init_optimiser, run_gradient_steps, trainable_mask
from derex.progress import ProgressBar

Estimator = TypeVar("Estimator")
Watch = Callable[[int, float, float, float], None]  # updates done, loss, tr Σ̃, largest off-diagonal

CHECKPOINT_SECONDS = 60.0
LEARNING_RATE = 1e-3  # peak, where none is given
CLIP = 1.0  # global gradient norm
MIN_DIRECTION = 1e-6  # relative to the largest: smaller singular values are rounding


class FitState(NamedTuple):
    """Everything that training changes. Its field names are part of the format of model files."""

    networks: Any  # an eqx.Module with `f` and `g`: `Networks` of pairs, or `HistoryNetworks`
    optimiser: optax.OptState
    running: statistics.RunningStatistics
    step: Array


class FitMetrics(NamedTuple):
    """Metrics of a chunk of steps, reduced on the device."""

    loss: Float[Array, ""]  # mean over the chunk
    trace: Float[Array, ""]  # of the running Σ̃
    off_diagonal: Float[Array, ""]  # largest |Σ̃_ij|, i ≠ j
    finite: Bool[Array, ""]  # whether the above and all parameters are finite


def make_optimiser() -> optax.GradientTransformation:
    """Makes Adam on clipped gradients; the step applies the rate, so one compiled step serves every schedule.

    On one flat vector: a few operations instead of a few for every weight, faster to compile and to run.
    """
    return optax.flatten(optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam()))


@eqx.filter_jit
def init_fit_state(networks: eqx.Module, k: int) -> FitState:
    """Makes the state before the first step."""
    optimiser_state = init_optimiser(make_optimiser(), networks)
    return FitState(networks, optimiser_state, statistics.init_statistics(k), jnp.zeros((), jnp.int32))


@eqx.filter_jit
def train_chunk(
    objective: Objective, source: Source, state: FitState, items: Any, rates: Float[Array, " steps"]
) -> tuple[FitState, FitMetrics]:
    """Scans over `items`, one step each: take two halves, descend the objective, update the running statistics."""

    def loss(networks: Any, item: Any):
        estimate = objective(*source.halves(item, networks))
        return estimate.loss, (estimate.statistics, estimate.loss)

    networks, optimiser_state, running, losses = run_gradient_steps(
        loss,
        make_optimiser(),
        state.networks,
        state.optimiser,
        items,
        carry=state.running,
        update_carry=statistics.update_statistics,
        rates=rates,
    )
    params = eqx.filter(networks, trainable_mask(networks))
    sigma = statistics.read_statistics(running).sigma
    off = sigma - jnp.diag(jnp.diag(sigma))
    numbers = jnp.mean(losses), jnp.trace(sigma), jnp.max(jnp.abs(off))
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((numbers, params))]
    state = FitState(networks, optimiser_state, running, state.step + len(rates))
    return state, FitMetrics(*numbers, jnp.all(jnp.stack(finite)))


@dataclass
class Fit:
    """A fit in progress: a model, its data, and how far training has come."""

    model: Any  # a DecompositionEstimator
    objective: Objective
    data: Any  # PairData or StreamData: `source`, `chunk`, `items(start, steps)`, `encode_sample(networks)`
    state: FitState
    history: list[tuple[float, ...]]

    def measure(self) -> tuple[FitState, Reading | None]:
        """Returns the state with the statistics of its networks on the training data, and the functions they span.

        The baseline that is symmetric by construction is left as its objective has it: it has no singular functions.
        """
        f, g, counts = self.data.encode_sample(self.state.networks)
        state = self.state._replace(running=compute_statistics(f, g, counts))
        return state, None if self.objective.tied else read_functions(f, g, counts, int(self.model.k))


def run_updates(
    fits: Sequence[Fit], watch: Watch | None = None, save: Callable[[Any], None] | None = None
) -> None:
    """Runs the remaining updates of fits that one program can train, a chunk at a time.

    Args:
        fits: changed in place. All have done as many updates and have the same shapes.
        watch: called after each chunk with the mean metrics over the fits.
        save: called with each fit about every minute.
    """
    lead = fits[0]
    steps, done = int(lead.model.steps), int(lead.state.step)
    # Nearly equal chunks have at most two lengths, so two compilations.
    chunks = np.array_split(np.arange(1, steps + 1), -(-steps // lead.data.chunk))
    spans = list(pairwise([done, *(int(chunk[-1]) for chunk in chunks if chunk[-1] > done)]))
    if not spans:
        return

    def gather(start: int, end: int) -> list[Any]:
        return [fit.data.items(start, end - start) for fit in fits]

    items, saved = gather(*spans[0]), time.monotonic()
    shown = sys.stderr.isatty() if lead.model.verbose is None else bool(lead.model.verbose)
    with ProgressBar("fit", enabled=shown) as progress:
        progress.start()
        for number, (start, end) in enumerate(spans):
            rates = jnp.asarray(cosine_rates(start, end - start, steps, lead.model._learning_rate()))
            metrics = _advance(fits, items, rates)
            if end < spans[-1][1]:  # gathered while the device is busy
                items = gather(*spans[number + 1])
            for fit, its in zip(fits, metrics, strict=True):
                fit.history.append(fit.model._check_metrics(end, its))
            loss, trace, off_diagonal = np.mean([fit.history[-1][1:] for fit in fits], axis=0).tolist()
            news = f"loss {loss:+.4f}  tr Σ̃ {trace:.3f}  off-diagonal {off_diagonal:.3f}"
            progress.update(end, steps, news)
            if end == steps:
                progress.finish(f"{steps} steps  {news}")
            if watch is not None:
                watch(end, loss, trace, off_diagonal)
            if save is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                for fit in fits:
                    save(fit)
                saved = time.monotonic()


def _advance(fits: Sequence[Fit], items: list[Any], rates: Float[Array, " steps"]) -> list[FitMetrics]:
    """Runs one chunk of updates of each fit, side by side where there are several."""
    if len(fits) == 1:
        fit = fits[0]
        fit.state, metrics = train_chunk(fit.objective, fit.data.source, fit.state, items[0], rates)
        return [metrics]

    def stack(trees: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *z: jnp.stack(z) if eqx.is_array(z[0]) else z[0], *trees)

    def take(tree: Any, i: int) -> Any:
        return jax.tree.map(lambda z: z[i] if eqx.is_array(z) else z, tree)

    sources, states = stack([fit.data.source for fit in fits]), stack([fit.state for fit in fits])
    states, metrics = _train_side_by_side(fits[0].objective, sources, states, stack(items), rates)
    for i, fit in enumerate(fits):
        fit.state = take(states, i)
    return [take(metrics, i) for i in range(len(fits))]


@eqx.filter_jit
def _train_side_by_side(objective: Objective, source: Any, states: Any, items: Any, rates: Any) -> Any:
    mapped = eqx.if_array(0)
    train = eqx.filter_vmap(train_chunk, in_axes=(None, mapped, mapped, mapped, None))
    return train(objective, source, states, items, rates)


def cosine_rates(start: int, length: int, steps: int, peak: float) -> Float[np.ndarray, " length"]:
    """Computes peak · ½(1 + cos(π t / steps)) for t = start, …, start + length - 1."""
    t = np.arange(start, start + length)
    return (peak * 0.5 * (1.0 + np.cos(np.pi * t / steps))).astype(np.float32)


def compute_statistics(
    f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"], counts: Float[np.ndarray, " n"] | None = None
) -> statistics.RunningStatistics:
    """Computes the moments of f and g, and Σ between them, as converged running statistics.

    Args:
        f, g: outputs of the networks, (n, k).
        counts: how often each row counts, (n,); None: once.
    """
    weights = np.full(len(f), 1.0 / len(f)) if counts is None else counts / counts.sum()

    def standardise(z: np.ndarray) -> tuple[np.ndarray, statistics.Moments]:
        """Computes `batch_normalise` in double precision, on the host."""
        mean = weights @ z
        variance = weights @ (z - mean) ** 2
        z = (z - mean) / np.sqrt(variance + statistics.READING_EPSILON)
        return z, statistics.Moments(jnp.asarray(mean), jnp.asarray(variance))

    (f, f_moments), (g, g_moments) = standardise(f), standardise(g)
    sigma = jnp.asarray((f.T * weights) @ g)
    return statistics.RunningStatistics(statistics.BatchStatistics(f_moments, g_moments, sigma), jnp.ones(()))


def squared_correlation(f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"]) -> float:
    """Computes ‖C_f^-½ Cov(f, g) C_g^-½‖²_F: the sum of squared canonical correlations (VAMP-2)."""
    bases = []
    for side in (f, g):
        left, sizes, _ = np.linalg.svd(side - side.mean(axis=0, dtype=np.float64), full_matrices=False)
        bases.append(left[:, sizes > MIN_DIRECTION * max(sizes[0], np.finfo(np.float64).tiny)])
    return float(np.sum((bases[0].T @ bases[1]) ** 2))


@dataclass(eq=False, repr=False)
class DecompositionEstimator(BaseEstimator):
    """Base of the estimators: common parameters, and the path from the state of a fit to features and bonuses."""

    k: int = 16
    _: KW_ONLY
    objective: str = "derex"
    encoder: Any = None
    lambda_r: float | str = REFERENCE_LAMBDA_R
    batch_size: int = 0
    steps: int = 3000
    learning_rate: float | None = None
    weighted_bonus: bool = True
    sigma_floor: float = SIGMA_FLOOR
    random_state: Any = None
    verbose: bool | None = None

    min_batch_size: ClassVar[int]
    structural: ClassVar[tuple[str, ...]]  # parameters that the networks depend on
    file_format: ClassVar[str]
    bonus_parameters: ClassVar[dict[str, Any]] = {"weighted_bonus": bool, "sigma_floor": 0.0}
    """as `check_scalars` reads them; they may be changed after a fit"""
    __no_type_check__: ClassVar = True  # scikit-learn's rule: any value may be set, `fit` refuses it

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "singular_values_")

    @property
    def _n_features_out(self) -> int:
        return len(self.singular_values_)

    @property
    def history_(self) -> dict[str, Float[np.ndarray, " entries"]]:
        columns = np.asarray(self._history, np.float64).T
        return dict(zip(("step", "loss", "trace", "off_diagonal"), columns, strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fitted model to one file (no code in it), atomically."""
        from derex.estimators.files import save_model

        check_is_fitted(self)
        save_model(self, path)

    @classmethod
    def load(cls: type[Estimator], path: str | os.PathLike[str], *, encoder: Any = None) -> Estimator:
        """Reads a model written by `save`. Models with own modules need them again: `encoder=`."""
        from derex.estimators.files import load_model

        return load_model(cls, path, encoder)

    def _check_parameters(self) -> Objective:
        expected: dict[str, Any] = {"k": 1, "batch_size": self.min_batch_size, "steps": 1}
        if self.learning_rate is not None:
            expected["learning_rate"] = (0.0,)
        if not isinstance(self.lambda_r, str):
            expected["lambda_r"] = 0.0
        check.check_scalars(self, expected | self.bonus_parameters)
        check.check_choice("objective", self.objective, ("derex", "nested", "laplacian"))
        self._check_encoder()
        lambda_r = self.lambda_r if isinstance(self.lambda_r, str) else float(self.lambda_r)
        return make_objective(self.objective, int(self.k), lambda_r)

    def _check_encoder(self) -> None:
        raise NotImplementedError

    def _check_metrics(self, step: int, metrics: FitMetrics) -> tuple[float, ...]:
        """Returns an entry of the history; raises if training has diverged."""
        if not metrics.finite:
            raise FloatingPointError(
                f"Training diverged at update {step}: loss {float(metrics.loss)}. Lower learning_rate "
                f"(now {self._learning_rate():g}) or check the scale of the inputs."
            )
        return (float(step), float(metrics.loss), float(metrics.trace), float(metrics.off_diagonal))

    def _default_learning_rate(self) -> float:
        return LEARNING_RATE

    def _learning_rate(self) -> float:
        return self._default_learning_rate() if self.learning_rate is None else float(self.learning_rate)

    def _publish(
        self, state: FitState, history: list[tuple[float, ...]], reading: Reading | None = None
    ) -> None:
        """Sets the fitted attributes.

        Without a reading (an unfinished fit, a file of derex 0.1) the functions are the outputs, in order of σ.
        """
        self._state, self._history, self._reading = state, history, reading
        self.report_: diagnosis.FitReport | None = None  # of `fit`
        self._trained_as = {name: getattr(self, name) for name in self.structural}
        self.n_iter_ = int(state.step)
        sigma = np.asarray(statistics.read_statistics(state.running).sigma, np.float32)
        self._order = np.argsort(-np.diag(sigma), kind="stable")
        if reading is None:
            self.sigma_ = sigma[np.ix_(self._order, self._order)]
            self.singular_values_ = np.maximum(np.diag(self.sigma_), 0.0)
            self._learnt = np.ones(len(sigma), bool)
            return
        self.singular_values_ = reading.functions.singular_values.astype(np.float32)
        self.sigma_ = np.diag(self.singular_values_)
        self._learnt = diagnosis.find_learnt(
            reading.functions.singular_values, reading.errors, reading.confirmed
        )

    def _report(
        self,
        reading: Reading | None,
        rarity: diagnosis.RarityMeasure | None = None,
        bonus: Float[np.ndarray, " m"] | None = None,
    ) -> None:
        """Sets `report_`; `bonus` is that of the rows of `rarity`."""
        if reading is None:
            return
        sigma = reading.functions.singular_values
        weights = ritz.bonus_weights(sigma, self._learnt, float(self.sigma_floor))
        self.report_ = diagnosis.make_report(
            sigma,
            reading.errors,
            reading.confirmed,
            self._learnt,
            reading.energy,
            weights,
            rarity,
            bonus,
            self.steps,
        )

    def _warn(self) -> None:
        """Warns of what the report found; the last step of a fit, since a warning may be an error."""
        for message in () if self.report_ is None else self.report_.messages:
            warnings.warn(message, diagnosis.FitWarning, stacklevel=3)

    def _read(self, name: str) -> Any:
        """Returns the module that computes the singular functions f or g: mean 0 and variance 1 in training."""
        networks, moments = self._state.networks, statistics.read_statistics(self._state.running)
        side = networks.f if networks.g is None else getattr(networks, name)
        if self._reading is None:
            outputs = standardise_side(side, getattr(moments, name))
            return make_read_out(
                outputs, np.zeros(len(self._order)), np.eye(len(self._order))[:, self._order]
            )
        functions = self._reading.functions
        return make_read_out(side, getattr(functions, f"mean_{name}"), getattr(functions, name))

    def _norm(self, f: Float[np.ndarray, "*batch k"]) -> Float[np.ndarray, "*batch"]:
        """Computes ‖f‖_{Λ̃⁻¹} of each row of singular functions; those that were not learnt weigh nothing.

        At the start of a stream, when none is learnt yet, it is the plain norm of all.
        """
        weights = self._learnt.astype(np.float64) if self._learnt.any() else np.ones(len(self._learnt))
        if self.weighted_bonus and self._learnt.any():
            weights = ritz.bonus_weights(self.singular_values_, self._learnt, float(self.sigma_floor))
        return np.linalg.norm(np.asarray(f, np.float32) * weights.astype(np.float32), axis=-1)
