"""The state of a fit and its jitted training step."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, PyTree

from derex.decomposition.objectives import Objective
from derex.decomposition.statistics import (
    EPSILON,
    Moments,
    RunningStatistics,
    init_statistics,
    read_statistics,
    update_statistics,
)
from derex.estimators.data import Source
from derex.networks.layers import Fixed, trainable_mask
from derex.networks.optimisation import init_optimiser, run_gradient_steps

CLIP = 1.0  # global gradient norm
SMALLEST_VARIANCE = 1e-12


class Side(eqx.Module):
    """One of the two networks with a fixed affine map behind it.

    The map is set once, before training, so that training starts from outputs of mean 0 and variance 1 whatever the
    network's initialisation.
    """

    network: Any  # an eqx.Module: one observation -> (k,)
    mean: Fixed
    spread: Fixed

    def __call__(self, x: Array) -> Float[Array, " k"]:
        return (self.network(x) - self.mean.value) / self.spread.value


def plain_side(network: Any, k: int) -> Side:
    """The network with its outputs as they are."""
    return Side(network, Fixed(jnp.zeros(k)), Fixed(jnp.ones(k)))


def starting_side(network: Any, outputs: Float[np.ndarray, "n k"], deviation: float = 1.0) -> Side:
    """The network, its outputs rescaled to mean 0 and that deviation on the rows where it gave `outputs`."""
    variance = outputs.var(axis=0, dtype=np.float64)
    # An output that does not vary yet (a dead unit) keeps its scale rather than being blown up.
    spread = np.sqrt(np.where(variance > SMALLEST_VARIANCE, variance, 1.0))
    return _rescaled(network, outputs.mean(axis=0, dtype=np.float64), spread / deviation)


def reading_side(side: Side, seen: Moments) -> Side:
    """x -> standardise(side(x), seen), again as one network and one affine map."""
    mean, spread = (np.asarray(fixed.value, np.float64) for fixed in (side.mean, side.spread))
    deviation = np.sqrt(np.asarray(seen.variance, np.float64) + EPSILON)
    return _rescaled(side.network, mean + spread * np.asarray(seen.mean), spread * deviation)


def _rescaled(network: Any, mean: np.ndarray, spread: np.ndarray) -> Side:
    dtype = jnp.zeros(()).dtype
    return Side(network, Fixed(jnp.asarray(mean, dtype)), Fixed(jnp.asarray(spread, dtype)))


class Networks(eqx.Module):
    """f and g; a tied objective has g = f and stores it once."""

    f: Side
    g: Side | None

    @property
    def g_or_f(self) -> Side:
        return self.f if self.g is None else self.g


class TrainState(NamedTuple):
    """Everything that training changes."""

    networks: Any  # an eqx.Module: `Networks` of pairs, or those of histories
    optimiser: optax.OptState
    running: RunningStatistics
    step: Array


class Progress(NamedTuple):
    """What a chunk of steps has to say, reduced on the device."""

    loss: Float[Array, ""]  # mean over the chunk
    trace: Float[Array, ""]  # of the running Σ̃
    off_diagonal: Float[Array, ""]  # largest |Σ̃_ij|, i ≠ j
    finite: Bool[Array, ""]  # whether all of it, and all parameters, are


def optimiser() -> optax.GradientTransformation:
    """Adam on clipped gradients; the rate is applied by the step, so one compiled step serves every schedule.

    On one flat vector: a few operations instead of a few for every weight, faster to compile and to run.
    """
    return optax.flatten(optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam()))


@eqx.filter_jit
def initial_state(networks: eqx.Module, k: int) -> TrainState:
    """Before the first step."""
    optimiser_state = init_optimiser(optimiser(), networks)
    return TrainState(networks, optimiser_state, init_statistics(k), jnp.zeros((), jnp.int32))


@eqx.filter_jit
def train_chunk(
    objective: Objective, source: Source, state: TrainState, items: Any, rates: Float[Array, " steps"]
) -> tuple[TrainState, Progress]:
    """Scan over `items`, one step each: take two halves, descend the objective, update the running statistics."""

    def loss(networks: Any, item: Any):
        estimate = objective(*source.halves(item, networks))
        return estimate.loss, (estimate.statistics, estimate.loss)

    networks, optimiser_state, running, losses = run_gradient_steps(
        loss,
        optimiser(),
        state.networks,
        state.optimiser,
        items,
        carry=state.running,
        update_carry=update_statistics,
        rates=rates,
    )
    state = TrainState(networks, optimiser_state, running, state.step + len(rates))
    return state, _progress(losses, running, eqx.filter(networks, trainable_mask(networks)))


def _progress(losses: Float[Array, " steps"], running: RunningStatistics, params: PyTree) -> Progress:
    sigma = read_statistics(running).sigma
    off = sigma - jnp.diag(jnp.diag(sigma))
    seen = jnp.mean(losses), jnp.trace(sigma), jnp.max(jnp.abs(off))
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((seen, params))]
    return Progress(*seen, jnp.all(jnp.stack(finite)))


def chunk_lengths(steps: int, longest: int) -> list[int]:
    """`steps` in nearly equal parts of at most `longest`: two lengths at most, so two compilations at most."""
    parts = -(-steps // longest)
    return [steps // parts + (i < steps % parts) for i in range(parts)]


def cosine_rates(start: int, length: int, steps: int, peak: float) -> Float[np.ndarray, " length"]:
    """peak · ½(1 + cos(π t / steps)) for t = start, …, start + length - 1."""
    t = np.arange(start, start + length)
    return (peak * 0.5 * (1.0 + np.cos(np.pi * t / steps))).astype(np.float32)
