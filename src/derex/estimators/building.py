"""From a model's parameters and its data's shapes to untrained networks.

From a history model's parameters and its data to untrained networks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from derex.decomposition.objectives import Objective
from derex.estimators import validation as check
from derex.estimators.data import map_rows, sample_rows
from derex.estimators.fitting import Networks, Side, plain_side, starting_side
from derex.estimators.streams import StreamData, counted_rows
from derex.estimators.trajectories import StreamSpec, sample_observations
from derex.networks import ENCODERS, InputSpec
from derex.networks.encoders import InputKind
from derex.networks.histories import Embedding, Head, HistoryNetworks
from derex.networks.inputs import make_encoder
from derex.networks.layers import trainable_mask
from derex.networks.recurrent import LSTM
from derex.types import Trajectories

OWN_LEARNING_RATE = 1e-3  # default for the user's own modules
CALIBRATION_ROWS = 4096  # that set the initial scales


class Sides(NamedTuple):
    """One of something for X and one for Y."""

    x: Any
    y: Any


def kinds_of(encoder: Any) -> Sides:
    """What each side's encoder reads."""
    return Sides(*map(check.input_kind, check.encoder_sides(encoder)))


def default_learning_rate(encoder: Any) -> float:
    """The smaller of the two encoders' defaults."""
    named = [ENCODERS[side].learning_rate for side in check.encoder_sides(encoder) if isinstance(side, str)]
    return min(named, default=OWN_LEARNING_RATE)


def input_specs(rows: Sides, kinds: Sides, n_states: Any, tied: bool) -> Sides:
    """Shapes, types and table sizes of both sides; a tied objective needs them to be the same."""
    pair = n_states if isinstance(n_states, tuple | list) else (n_states, n_states)
    declared = [None if size is None else int(size) for size in pair]
    specs = [_spec(*each) for each in zip("XY", rows, kinds, declared, strict=True)]
    if not tied:
        return Sides(*specs)
    if kinds.x != kinds.y or specs[0].shape != specs[1].shape or specs[0].dtype != specs[1].dtype:
        raise ValueError(
            "objective: 'laplacian' has one network for X and Y, so both need the same encoder and rows of the same "
            f"shape and type; got {specs[0].shape} {specs[0].dtype} and {specs[1].shape} {specs[1].dtype}."
        )
    shared = specs[0]._replace(n_ids=max(spec.n_ids for spec in specs))
    return Sides(shared, shared)


def _spec(name: str, rows: np.ndarray, kind: InputKind | None, declared: int | None) -> InputSpec:
    dtype = check.device_dtype(rows.dtype, kind)
    if kind != "ids":
        return InputSpec(tuple(rows.shape[1:]), 0, kind, dtype)
    return InputSpec((), check.table_size(name, rows, declared), kind, dtype)


def build_network(encoder: Any, key: PRNGKeyArray, spec: InputSpec, k: int) -> eqx.Module:
    """An untrained network: a named encoder, the user's module as it is, or what the user's function makes."""
    if isinstance(encoder, str):
        return ENCODERS[encoder].build(key, spec, k)
    if isinstance(encoder, eqx.Module):
        return encoder
    try:
        network = encoder(key, spec.shape, k)
    except TypeError as error:
        raise TypeError(
            f"encoder: a function is called as encoder(key, shape, k) and failed: {error}."
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
    """f and g, their fixed parts set from the training rows."""
    sample = sample_rows(rng, len(rows.x), CALIBRATION_ROWS)
    encoders, keys = check.encoder_sides(encoder), jax.random.split(key)
    sides: list[Side] = []
    for i in range(1 if objective.tied else 2):
        network = build_network(encoders[i], keys[i], specs[i], k)
        check.check_network(f"encoder (for {'XY'[i]})", network, specs[i], k)
        if hasattr(network, "prepared"):
            network = network.prepared(rows[i])
        outputs = map_rows(plain_side(network, k), rows[i], specs[i].dtype, sample)
        sides.append(starting_side(network, outputs))
    return Networks(sides[0], sides[1] if len(sides) == 2 else None)


CALIBRATION_OBSERVATIONS = 4096  # that set the scales of encoders
CALIBRATION_STRIDE = 4  # every fourth of them suffices for the scale of what comes out
# Of f and g before training, where the objective does not set their scale itself: from small values the strongest
# correlations grow first, whereas large random outputs have to be taken back before anything is learnt.
STARTING_DEVIATION = 0.1
CALIBRATION_STREAMS = 64  # that set the initial scales of f and g


def check_encoder(encoder: Any) -> None:
    """ "auto", a module, or a function that makes one."""
    if isinstance(encoder, str):
        check.check_choice("encoder", encoder, ("auto",))
    elif not (isinstance(encoder, eqx.Module) or callable(encoder)):
        raise TypeError(
            f"encoder: expected 'auto', an Equinox module or a function (key, width) -> module; got {encoder!r}."
        )


def skeleton(
    encoder: Any, spec: StreamSpec, width: int, k: int, tied: bool, test_actions: bool, key: PRNGKeyArray
) -> HistoryNetworks:
    """Untrained networks, nothing of them set from data yet."""
    keys = jax.random.split(key, 6)
    network = own_encoder(encoder, keys[0], spec, width)
    example = _example(spec)
    size = eqx.filter_eval_shape(network, example).shape[0]
    embedding = Embedding(network, size, spec.choices, width, key=keys[1])
    forward, reverse = (LSTM(width, width, key=k) for k in keys[2:4])
    f, g = (plain_side(Head(width, k, key=head_key), k) for head_key in keys[4:6])
    return HistoryNetworks(
        embedding, forward, None if tied else reverse, f, None if tied else g, bool(test_actions)
    )


def build_history_networks(
    model: Any, spec: StreamSpec, objective: Objective, X: Trajectories, data: StreamData, seed: int
) -> HistoryNetworks:
    """Networks for this data: inputs rescaled to it, f and g of mean 0 and small variance on some of it."""
    width, k = int(model.width), int(model.k)
    key = jax.random.key(seed)
    networks = skeleton(model.encoder, spec, width, k, objective.tied, model.test_actions, key)
    networks = eqx.tree_at(lambda n: n.embedding, networks, _set_by(X, networks.embedding, spec, seed))
    outputs = counted_rows(data.source, data.sample(CALIBRATION_STREAMS), networks)
    sides = [
        None if side is None else starting_side(side.network, out, STARTING_DEVIATION)
        for side, out in zip((networks.f, networks.g), outputs, strict=True)
    ]
    return eqx.tree_at(lambda n: (n.f, n.g), networks, tuple(sides), is_leaf=lambda x: x is None)


def _set_by(X: Trajectories, embedding: Embedding, spec: StreamSpec, seed: int) -> Embedding:
    """F₁ with the scales of its inputs set from some observations."""
    rows = sample_observations(X, CALIBRATION_OBSERVATIONS, np.random.default_rng(seed))
    if hasattr(embedding.encoder, "prepared"):
        embedding = eqx.tree_at(lambda e: e.encoder, embedding, embedding.encoder.prepared(rows))
    leaves = zip(jax.tree.leaves(rows), spec.parts, strict=True)
    few = [jnp.asarray(leaf[::CALIBRATION_STRIDE], part.dtype) for leaf, part in leaves]
    return _calibrated(embedding, spec.observation(few))


@eqx.filter_jit
def _calibrated(embedding: Embedding, observations: Any) -> Embedding:
    return embedding.calibrate(observations)


def own_encoder(encoder: Any, key: PRNGKeyArray, spec: StreamSpec, width: int) -> Any:
    """The encoder of observations: by their parts, the user's module as it is, or what the user's function makes."""
    if isinstance(encoder, str):
        return make_encoder(list(spec.parts), width, key=key)
    network = _made(encoder, key, width)
    try:
        out = eqx.filter_eval_shape(network, _example(spec))
    except Exception as error:
        raise ValueError(
            f"encoder: the module failed on one observation with parts {spec.parts}: {error}. It is called on single "
            "observations, without stream and time axes."
        ) from error
    if len(getattr(out, "shape", ())) != 1 or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"encoder: the module must return a vector of floats, got {out}.")
    if not any(jax.tree.leaves(trainable_mask(network))):
        raise ValueError("encoder: the module has no floating-point arrays, so there is nothing to train.")
    return network


def _made(encoder: Any, key: PRNGKeyArray, width: int) -> Any:
    if isinstance(encoder, eqx.Module):
        return encoder
    try:
        network = encoder(key, width)
    except TypeError as error:
        raise ValueError(
            f"encoder: a function is called as encoder(key, width) and failed: {error}."
        ) from error
    if isinstance(network, eqx.Module):
        return network
    raise TypeError(f"encoder: the function must return an Equinox module, got {network!r}.")


def _example(spec: StreamSpec) -> Any:
    """One observation, as shapes: in the user's structure where it is known."""
    leaves = [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in spec.parts]
    return spec.observation(leaves)
