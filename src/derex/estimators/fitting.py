"""The optimiser loop of both estimators: networks with scaled outputs, the state of a fit, its jitted step.

Fits of one shape are trained side by side in one program: it is compiled once, and small scans over time, which leave
most of an accelerator idle, cost little more than one.

Shapes: n rows, k features.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex.decomposition.objectives import Objective
from derex.decomposition.statistics import (
    EPSILON,
    Moments,
    RunningStatistics,
    init_statistics,
    read_statistics,
    update_statistics,
)
from derex.estimators import validation as check
from derex.estimators.data import Source, map_rows, sample_indices
from derex.estimators.validation import Sides
from derex.networks import ENCODERS, InputSpec
from derex.networks.layers import Fixed, init_optimiser, run_gradient_steps, trainable_mask
from derex.progress import ProgressBar

Watch = Callable[[int, float, float, float], None]  # updates done, loss, tr Σ̃, largest off-diagonal

CLIP = 1.0  # global gradient norm
MIN_VARIANCE = 1e-12
CALIBRATION_ROWS = 4096  # that set the initial scales


# --- networks ------------------------------------------------------------------------------------------------------


class Side(eqx.Module):
    """One of the two networks, followed by a fixed affine map.

    The map is set once, before training, so that training starts from outputs of mean 0 and variance 1 whatever the
    network's initialisation.
    """

    network: Any  # an eqx.Module: one observation -> (k,)
    mean: Fixed
    spread: Fixed

    def __call__(self, x: Array) -> Float[Array, " k"]:
        return (self.network(x) - self.mean.value) / self.spread.value


def make_identity_side(network: Any, k: int) -> Side:
    """Makes a side with the network's outputs as they are."""
    return Side(network, Fixed(jnp.zeros(k)), Fixed(jnp.ones(k)))


def calibrate_side(network: Any, outputs: Float[np.ndarray, "n k"], deviation: float = 1.0) -> Side:
    """Makes a side whose outputs have mean 0 and that deviation on the rows where the network gave `outputs`."""
    variance = outputs.var(axis=0, dtype=np.float64)
    # An output that does not vary yet (a dead unit) keeps its scale rather than being blown up.
    spread = np.sqrt(np.where(variance > MIN_VARIANCE, variance, 1.0))
    return _make_side(network, outputs.mean(axis=0, dtype=np.float64), spread / deviation)


def standardise_side(side: Side, moments: Moments) -> Side:
    """Makes x -> standardise(side(x), moments), again as one network and one affine map."""
    mean, spread = (np.asarray(fixed.value, np.float64) for fixed in (side.mean, side.spread))
    deviation = np.sqrt(np.asarray(moments.variance, np.float64) + EPSILON)
    return _make_side(side.network, mean + spread * np.asarray(moments.mean), spread * deviation)


def _make_side(network: Any, mean: np.ndarray, spread: np.ndarray) -> Side:
    dtype = jnp.zeros(()).dtype
    return Side(network, Fixed(jnp.asarray(mean, dtype)), Fixed(jnp.asarray(spread, dtype)))


class Networks(eqx.Module):
    """f and g of pairs; a tied objective has g = f and stores it once."""

    f: Side
    g: Side | None

    @property
    def g_or_f(self) -> Side:
        return self.f if self.g is None else self.g


def build_network(encoder: Any, key: PRNGKeyArray, spec: InputSpec, k: int) -> eqx.Module:
    """Builds an untrained network: a named encoder, the user's module, or the module made by the user's function."""
    if isinstance(encoder, str):
        return ENCODERS[encoder].build(key, spec, k)
    return call_encoder(encoder, "key, shape, k", key, spec.shape, k)


def call_encoder(encoder: Any, signature: str, *arguments: Any) -> eqx.Module:
    """Returns the user's module, or the module that the user's function returns for these arguments."""
    if isinstance(encoder, eqx.Module):
        return encoder
    try:
        network = encoder(*arguments)
    except TypeError as error:
        raise TypeError(
            f"encoder: a function is called as encoder({signature}) and failed: {error}."
        ) from error
    if not isinstance(network, eqx.Module):
        raise TypeError(f"encoder: the function must return an Equinox module, got {network!r}.")
    return network


def build_networks(
    encoder: Any,
    key: PRNGKeyArray,
    specs: Sides,
    k: int,
    objective: Objective,
    rows: Sides,
    rng: np.random.Generator,
) -> Networks:
    """Builds f and g for pairs; input scales and output scales are set from the training rows."""
    sample = sample_indices(rng, len(rows.x), CALIBRATION_ROWS)
    encoders, keys = check.encoder_sides(encoder), jax.random.split(key)
    sides: list[Side] = []
    for i in range(1 if objective.tied else 2):
        network = build_network(encoders[i], keys[i], specs[i], k)
        check.check_network(f"encoder (for {'XY'[i]})", network, specs[i], k)
        if hasattr(network, "prepared"):
            network = network.prepared(rows[i])
        outputs = map_rows(make_identity_side(network, k), rows[i], specs[i].dtype, sample)
        sides.append(calibrate_side(network, outputs))
    return Networks(sides[0], sides[1] if len(sides) == 2 else None)


# --- the training step ---------------------------------------------------------------------------------------------


class FitState(NamedTuple):
    """Everything that training changes. Its field names are part of the format of model files."""

    networks: Any  # an eqx.Module: `Networks` of pairs, or `HistoryNetworks`
    optimiser: optax.OptState
    running: RunningStatistics
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
    return FitState(networks, optimiser_state, init_statistics(k), jnp.zeros((), jnp.int32))


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
        update_carry=update_statistics,
        rates=rates,
    )
    params = eqx.filter(networks, trainable_mask(networks))
    sigma = read_statistics(running).sigma
    off = sigma - jnp.diag(jnp.diag(sigma))
    numbers = jnp.mean(losses), jnp.trace(sigma), jnp.max(jnp.abs(off))
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((numbers, params))]
    state = FitState(networks, optimiser_state, running, state.step + len(rates))
    return state, FitMetrics(*numbers, jnp.all(jnp.stack(finite)))


# --- the loop ------------------------------------------------------------------------------------------------------


@dataclass
class Fit:
    """A fit in progress: a model, its data, and how far training has come."""

    model: Any  # a DecompositionEstimator
    objective: Objective
    data: Any  # PairData or StreamData: `source`, `chunk` and `items(start, steps)`
    state: FitState
    history: list[tuple[float, ...]]


def run_updates(
    fits: Sequence[Fit], watch: Watch | None = None, save: Callable[[], None] | None = None
) -> None:
    """Runs the remaining updates of fits that one program can train, a chunk at a time.

    Args:
        fits: changed in place. All have done as many updates and have the same shapes.
        watch: called after each chunk with the mean metrics over the fits.
        save: called after each chunk.
    """
    lead = fits[0]
    steps, done = int(lead.model.steps), int(lead.state.step)
    ends = np.cumsum(chunk_lengths(steps, lead.data.chunk)).tolist()
    spans = list(pairwise([done, *(end for end in ends if end > done)]))
    if not spans:
        return

    def gather(start: int, end: int) -> list[Any]:
        return [fit.data.items(start, end - start) for fit in fits]

    items = gather(*spans[0])
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
            means = np.mean([fit.history[-1][1:] for fit in fits], axis=0).tolist()
            loss, trace, off_diagonal = means
            news = f"loss {loss:+.4f}  tr Σ̃ {trace:.3f}  off-diagonal {off_diagonal:.3f}"
            progress.update(end, steps, news)
            if end == steps:
                progress.finish(f"{steps} steps  {news}")
            if watch is not None:
                watch(end, *means)
            if save is not None:
                save()


def _advance(fits: Sequence[Fit], items: list[Any], rates: Float[Array, " steps"]) -> list[FitMetrics]:
    """Runs one chunk of updates of each fit, side by side where there are several."""
    if len(fits) == 1:
        fit = fits[0]
        fit.state, metrics = train_chunk(fit.objective, fit.data.source, fit.state, items[0], rates)
        return [metrics]
    sources, states = [fit.data.source for fit in fits], [fit.state for fit in fits]
    states, metrics = _train_side_by_side(
        fits[0].objective, _stack(sources), _stack(states), _stack(items), rates
    )
    for number, fit in enumerate(fits):
        fit.state = _take(states, number)
    return [_take(metrics, number) for number in range(len(fits))]


@eqx.filter_jit
def _train_side_by_side(objective: Objective, source: Any, states: Any, items: Any, rates: Any) -> Any:
    mapped = eqx.if_array(0)
    train = eqx.filter_vmap(train_chunk, in_axes=(None, mapped, mapped, mapped, None))
    return train(objective, source, states, items, rates)


def _stack(trees: Sequence[Any]) -> Any:
    """Stacks trees of one structure, with a leading axis for every array."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)


def _take(tree: Any, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, tree)


def chunk_lengths(steps: int, longest: int) -> list[int]:
    """Cuts `steps` into nearly equal parts of at most `longest`: at most two lengths, so two compilations."""
    parts = -(-steps // longest)
    return [steps // parts + (i < steps % parts) for i in range(parts)]


def cosine_rates(start: int, length: int, steps: int, peak: float) -> Float[np.ndarray, " length"]:
    """Computes peak · ½(1 + cos(π t / steps)) for t = start, …, start + length - 1."""
    t = np.arange(start, start + length)
    return (peak * 0.5 * (1.0 + np.cos(np.pi * t / steps))).astype(np.float32)
