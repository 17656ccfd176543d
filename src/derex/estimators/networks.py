"""Networks of both estimators: built from encoders, and scaled to the training data before training starts.

Shapes: n rows, k features.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.decomposition.statistics import EPSILON, Moments
from derex.estimators import validation as check
from derex.estimators.data import StreamData, map_rows, sample_indices
from derex.estimators.trajectories import StreamSpec, sample_observations
from derex.estimators.validation import Sides
from derex.networks import ENCODERS, InputSpec
from derex.networks.histories import Embedding, Head, HistoryNetworks
from derex.networks.inputs import make_encoder
from derex.networks.layers import Fixed
from derex.networks.recurrent import LSTM
from derex.types import Trajectories

MIN_VARIANCE = 1e-12
CALIBRATION_ROWS = 4096  # that set the initial scales
CALIBRATION_STRIDE = 4  # every fourth observation suffices for the scale of an embedding's outputs
CALIBRATION_STREAMS = 64  # that set the initial scales of f and g
# Of f and g before training, where the objective does not set their scale itself: from small values the strongest
# correlations grow first, whereas large random outputs have to be undone before anything is learnt.
INITIAL_DEVIATION = 0.1


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


class ReadOut(eqx.Module):
    """Linear functions of features: x -> (features(x) - mean) @ directions."""

    features: Any  # an eqx.Module: one observation -> (p,)
    mean: Float[Array, " p"]
    directions: Float[Array, "p k"]

    def __call__(self, x: Array) -> Float[Array, " k"]:
        return jnp.matmul(self.features(x) - self.mean, self.directions, precision="highest")


def make_read_out(features: Any, mean: np.ndarray, directions: np.ndarray) -> ReadOut:
    """Makes a `ReadOut` in the precision of the device."""
    dtype = jnp.zeros(()).dtype
    return ReadOut(features, jnp.asarray(mean, dtype), jnp.asarray(directions, dtype))


def call_encoder(encoder: Any, signature: str, *arguments: Any) -> eqx.Module:
    """Returns the user's module, or the module that the user's function returns for these arguments."""
    if isinstance(encoder, eqx.Module):
        return encoder
    try:
        network = encoder(*arguments)
    except TypeError as error:
        called = f"encoder: a function is called as encoder({signature})"
        raise TypeError(f"{called} and failed: {error}.") from error
    if not isinstance(network, eqx.Module):
        raise TypeError(f"encoder: the function must return an Equinox module, got {network!r}.")
    return network


# --- pairs ---------------------------------------------------------------------------------------------------------


class Networks(eqx.Module):
    """f and g of pairs; a tied objective has g = f and stores it once."""

    f: Side
    g: Side | None

    @property
    def g_or_f(self) -> Side:
        return self.f if self.g is None else self.g


def make_input_specs(rows: Sides, kinds: Sides, n_states: Any, tied: bool) -> Sides:
    """Makes the `InputSpec`s of both sides; a tied objective needs them to be the same."""
    sizes = check.both_sides("n_states", n_states)
    x, y = (check.make_spec(*side) for side in zip("XY", rows, kinds, sizes, strict=True))
    if not tied:
        return Sides(x, y)
    if kinds.x != kinds.y or x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(
            "objective: 'laplacian' has one network for X and Y, so both need the same encoder and rows of the same "
            f"shape and type; got {x.shape} {x.dtype} and {y.shape} {y.dtype}."
        )
    shared = x._replace(n_ids=max(x.n_ids, y.n_ids))
    return Sides(shared, shared)


def build_network(encoder: Any, key: PRNGKeyArray, spec: InputSpec, k: int) -> eqx.Module:
    """Builds an untrained network: a named encoder, the user's module, or the module made by the user's function."""
    if isinstance(encoder, str):
        return ENCODERS[encoder].build(key, spec, k)
    return call_encoder(encoder, "key, shape, k", key, spec.shape, k)


def build_networks(
    encoder: Any, key: PRNGKeyArray, specs: Sides, k: int, tied: bool, rows: Sides, rng: np.random.Generator
) -> Networks:
    """Builds f and g for pairs; input scales and output scales are set from the training rows."""
    sample = sample_indices(rng, len(rows.x), CALIBRATION_ROWS)
    encoders, keys = check.both_sides("encoder", encoder), jax.random.split(key)
    sides: list[Side] = []
    for i in range(1 if tied else 2):
        network = build_network(encoders[i], keys[i], specs[i], k)
        check.check_network(f"encoder (for {'XY'[i]})", network, specs[i], k)
        if hasattr(network, "prepared"):
            network = network.prepared(rows[i])
        outputs = map_rows(make_identity_side(network, k), rows[i], specs[i].dtype, sample)
        sides.append(calibrate_side(network, outputs))
    return Networks(sides[0], None if tied else sides[1])


# --- trajectories --------------------------------------------------------------------------------------------------


def make_networks(
    encoder: Any, spec: StreamSpec, width: int, k: int, tied: bool, test_actions: bool, key: PRNGKeyArray
) -> HistoryNetworks:
    """Makes untrained networks; no scales are set from data yet."""
    keys = jax.random.split(key, 6)
    example = spec.observation([jax.ShapeDtypeStruct(part.shape, part.dtype) for part in spec.parts])
    if isinstance(encoder, str):
        network = make_encoder(list(spec.parts), width, key=keys[0])
        out = eqx.filter_eval_shape(network, example)
    else:
        network: Any = call_encoder(encoder, "key, width", keys[0], width)
        unit = "observations, without stream and time axes"
        out = check.eval_network("encoder", network, example, f"with parts {spec.parts}", unit)
        if len(getattr(out, "shape", ())) != 1 or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(f"encoder: the module must return a vector of floats, got {out}.")
    embedding = Embedding(network, out.shape[0], spec.choices, width, key=keys[1])
    forward, reverse = (LSTM(width, width, key=k) for k in keys[2:4])
    f, g = (make_identity_side(Head(width, k, key=head_key), k) for head_key in keys[4:6])
    if tied:
        return HistoryNetworks(embedding, forward, None, f, None, bool(test_actions))
    return HistoryNetworks(embedding, forward, reverse, f, g, bool(test_actions))


def build_history_networks(
    model: Any, spec: StreamSpec, tied: bool, X: Trajectories, data: StreamData, seed: int
) -> HistoryNetworks:
    """Builds networks for this data: inputs rescaled to it, f and g of mean 0 and small variance on some of it."""
    sizes, key = (int(model.width), int(model.k)), jax.random.key(seed)
    networks = make_networks(model.encoder, spec, *sizes, tied, model.test_actions, key)
    rows = sample_observations(X, CALIBRATION_ROWS, np.random.default_rng(seed))
    embedding = networks.embedding
    if hasattr(embedding.encoder, "prepared"):
        embedding = eqx.tree_at(lambda e: e.encoder, embedding, embedding.encoder.prepared(rows))
    leaves = zip(jax.tree.leaves(rows), spec.parts, strict=True)
    few = [jnp.asarray(leaf[::CALIBRATION_STRIDE], part.dtype) for leaf, part in leaves]
    embedding = eqx.filter_jit(embedding.calibrate)(spec.observation(few))
    networks = eqx.tree_at(lambda n: n.embedding, networks, embedding)
    outputs = data.encode_sample(networks, CALIBRATION_STREAMS)[:2]
    sides = [
        None if side is None else calibrate_side(side.network, out, INITIAL_DEVIATION)
        for side, out in zip((networks.f, networks.g), outputs, strict=True)
    ]
    return eqx.tree_at(lambda n: (n.f, n.g), networks, tuple(sides), is_leaf=lambda x: x is None)
