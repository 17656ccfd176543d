"""Models of histories as files (`derex.estimators.archive`)."""

import os
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex._version import __version__
from derex.estimators import validation as check
from derex.estimators.archive import DamagedError, filled, named_arrays, read, storable, write
from derex.estimators.history_building import check_encoder, skeleton
from derex.estimators.training import TrainState, initial_state
from derex.estimators.trajectories import StreamSpec
from derex.networks import InputSpec
from derex.networks.encoders import InputKind

FORMAT, VERSION = "derex-history-model", 1
OWN = "own module"
KEYS = {"parameters", "spec", "tied", "fingerprint"}  # of the header
COLUMNS = 4  # of the history
IRRELEVANT = {
    "encoder",
    "verbose",
    "weighted_bonus",
    "sigma_floor",
    "random_state",
}  # to what a fit goes on from


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the fitted model, all of it or nothing."""
    arrays = {f"state/{name}": storable(value) for name, value in named_arrays(model._state)}
    arrays["history"] = np.asarray(model._history, np.float64)
    parameters = model.get_params(deep=False) | model._trained_as
    if not isinstance(parameters["encoder"], str):
        parameters["encoder"] = OWN
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    spec = model._spec._asdict() | {"parts": [part._asdict() for part in model._spec.parts]}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "derex": __version__,
        "parameters": parameters,
        "spec": spec,
        "tied": model._state.networks.reverse is None,
        "fingerprint": model._fingerprint,
        "seed": model._seed,  # as drawn: an interrupted fit goes on from it, whatever random_state was
    }
    write(Path(path), header, arrays)


def load(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = read(Path(path), FORMAT, VERSION, KEYS)
    try:
        parameters = dict(header["parameters"])
        own = parameters["encoder"] == OWN
    except Exception as error:  # a header can be wrong in any way
        raise _damaged(path, error) from error
    unknown = set(parameters) - set(cls._get_param_names())  # pyrefly: ignore[missing-attribute]
    if unknown:
        raise ValueError(f"{path}: unknown parameters {sorted(unknown)}; it was written by a newer derex.")
    if own != (encoder is not None):
        raise ValueError(
            f"encoder: {path} was trained with its own module, which a file does not hold. Pass the same kind of "
            "module: HistoryDeRex.load(path, encoder=...)."
            if own
            else f"encoder: {path} holds its own encoder; load it without `encoder`."
        )
    if own:
        check_encoder(encoder)  # the user's mistake, not the file's
        parameters["encoder"] = encoder
    try:
        model = cls(**parameters)
        model._check_parameters()
        spec, tied = _spec(header["spec"]), check.check_flag("tied", header["tied"])
        history = _history(arrays["history"])
        code = check.check_integer("fingerprint", header["fingerprint"], 0)
        seed = None if header.get("seed") is None else check.check_integer("seed", header["seed"], 0)
        shapes = None if own else eqx.filter_eval_shape(_state, parameters, spec, tied)
    except Exception as error:
        raise _damaged(path, error) from error
    if own:
        shapes = eqx.filter_eval_shape(_state, parameters, spec, tied)
    state = filled(shapes, "state/", arrays, path, own)
    _check_numbers(path, state)
    model._publish(spec, state, history, code, seed)
    return model


def resumable(model: Any, checkpoint: Any, code: int, name: str) -> Any:
    """The model that an interrupted fit of this model to this data left; None if there was none."""
    if not check_file(name, checkpoint).exists():
        return None
    try:
        before = load(type(model), checkpoint, None if isinstance(model.encoder, str) else model.encoder)
    except DamagedError as error:
        raise ValueError(f"{name}: {error.what} If it is a checkpoint, remove it to start again.") from error
    except ValueError as error:
        raise ValueError(
            f"{name}: cannot go on from {checkpoint}: {error} Remove it to start again, or choose another file."
        ) from error
    mine, its = (m.get_params() for m in (model, before))
    compared = set(mine) - IRRELEVANT
    if isinstance(model.random_state, int | np.integer):  # else any seed will do
        compared.add("random_state")
    different = sorted(each for each in compared if mine[each] != its[each])
    if different or before._fingerprint != code:
        what = f"parameters {different}" if different else "data"
        raise ValueError(
            f"{name}: {checkpoint} is of a fit with other {what}. Remove the file, or choose another."
        )
    return before


def check_file(name: str, path: Any) -> Path:
    """A path at which a file is, or can be written."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name}: expected the name of a file, got {path!r} of type {type(path).__name__}.")
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"{name}: {path} is a folder; name a file in it, such as {path / 'model.npz'}."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name}: the folder {path.parent} does not exist. Create it first.")
    return path


def _damaged(path: Any, error: Exception) -> DamagedError:
    return DamagedError(
        f"{path} is damaged: its header does not describe a model ({type(error).__name__}: {error})."
    )


def _state(parameters: dict[str, Any], spec: StreamSpec, tied: bool) -> TrainState:
    """A state of the right structure; its values do not matter."""
    width, k = int(parameters["width"]), int(parameters["k"])
    key = jax.random.key(0)
    networks = skeleton(parameters["encoder"], spec, width, k, tied, parameters["test_actions"], key)
    return initial_state(networks, k)


def _spec(values: dict[str, Any]) -> StreamSpec:
    parts = tuple(_part(**part) for part in values["parts"])
    spec = StreamSpec(
        **(values | {"parts": parts, "choices": check.check_integer("choices", values["choices"], 1)})
    )
    spec.observation(list(range(len(parts))))  # as many as the outline says
    check.check_choice("actions", spec.actions, ("ids", "vectors"))
    return spec


def _part(shape: Any, n_ids: Any, kind: Any, dtype: Any) -> InputSpec:
    check.check_choice("kind", kind, get_args(InputKind))
    shape = tuple(check.check_integer("shape", size, 1) for size in shape)
    return InputSpec(
        shape, check.check_integer("n_ids", n_ids, int(kind == "ids")), kind, np.dtype(dtype).name
    )


def _history(entries: np.ndarray) -> list[tuple[float, ...]]:
    if entries.size and entries.shape[1:] != (COLUMNS,):
        raise ValueError(f"its history has shape {entries.shape}")
    return [tuple(row) for row in entries.tolist()]


def _check_numbers(path: Any, state: TrainState) -> None:
    for name, value in named_arrays(state):
        if jnp.issubdtype(value.dtype, jnp.floating) and jnp.isnan(value).any():
            raise DamagedError(f"{path} is damaged: {name} is not a number.")
