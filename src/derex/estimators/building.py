"""From a model's parameters and its data's shapes to untrained networks."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from derex.decomposition.objectives import Objective
from derex.estimators import validation as check
from derex.estimators.data import map_rows, sample_rows
from derex.estimators.training import Networks, Side, plain_side, starting_side
from derex.networks import ENCODERS, InputSpec
from derex.networks.encoders import InputKind

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
