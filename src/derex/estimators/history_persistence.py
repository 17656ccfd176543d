"""Models of histories as files (`derex.estimators.archive`)."""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from derex._version import __version__
from derex.estimators.archive import filled, named_arrays, read, storable, write
from derex.estimators.history_building import skeleton
from derex.estimators.training import TrainState, initial_state
from derex.estimators.trajectories import StreamSpec
from derex.networks import InputSpec

FORMAT, VERSION = "derex-history-model", 1
OWN = "own module"
KEYS = {"parameters", "spec", "tied", "fingerprint"}  # of the header


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
    }
    write(Path(path), header, arrays)


def load(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = read(Path(path), FORMAT, VERSION, KEYS)
    parameters = dict(header["parameters"])
    unknown = set(parameters) - set(cls._get_param_names())  # pyrefly: ignore[missing-attribute]
    if unknown:
        raise ValueError(f"{path}: unknown parameters {sorted(unknown)}; it was written by a newer derex.")
    own = parameters["encoder"] == OWN
    if own != (encoder is not None):
        raise ValueError(
            f"encoder: {path} was trained with its own module, which a file does not hold. Pass the same kind of "
            "module: HistoryDeRex.load(path, encoder=...)."
            if own
            else f"encoder: {path} holds its own encoder; load it without `encoder`."
        )
    parameters["encoder"] = encoder if own else parameters["encoder"]
    model = cls(**parameters)
    try:
        model._check_parameters()
        spec = _spec(header["spec"])
        shapes = eqx.filter_eval_shape(_state, parameters, spec, bool(header["tied"]))
        history = [tuple(row) for row in arrays["history"].tolist()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its header does not describe a model ({error}).") from error
    model._publish(spec, filled(shapes, "state/", arrays, path), history, int(header["fingerprint"]))
    return model


def _state(parameters: dict[str, Any], spec: StreamSpec, tied: bool) -> TrainState:
    """A state of the right structure; its values do not matter."""
    width, k = int(parameters["width"]), int(parameters["k"])
    key = jax.random.key(0)
    networks = skeleton(parameters["encoder"], spec, width, k, tied, parameters["test_actions"], key)
    return initial_state(networks, k)


def _spec(values: dict[str, Any]) -> StreamSpec:
    parts = tuple(InputSpec(**(part | {"shape": tuple(part["shape"])})) for part in values["parts"])
    return StreamSpec(**(values | {"parts": parts}))
