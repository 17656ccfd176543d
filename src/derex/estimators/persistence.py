"""Models of pairs as files (`derex.estimators.archive`)."""

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from derex._version import __version__
from derex.decomposition.support import Support
from derex.estimators import validation as check
from derex.estimators.archive import filled, named_arrays, read, storable, write
from derex.estimators.building import Sides, build_network
from derex.estimators.guards import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.training import Networks, TrainState, initial_state, plain_side
from derex.networks import InputSpec

FORMAT, VERSION = "derex-model", 1
OWN = "own module"
KEYS = {"parameters", "specs", "n_features_in_", "feature_names_in_", "guards"}  # of the header


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the fitted model, all of it or nothing."""
    arrays = {f"state/{name}": storable(value) for name, value in named_arrays(model._state)}
    for side, guard in model._guards._asdict().items():
        arrays |= {f"guard/{side}/{name}": value for name, value in _guard_arrays(guard).items()}
    arrays["history"] = np.asarray(model._history, np.float64)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "derex": __version__,
        "parameters": _plain_parameters(model),
        "specs": [spec._asdict() for spec in model._specs],
        "n_features_in_": getattr(model, "n_features_in_", None),
        "feature_names_in_": list(getattr(model, "feature_names_in_", [])),
        "guards": [type(guard).__name__ for guard in model._guards],
    }
    write(Path(path), header, arrays)


def load(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = read(Path(path), FORMAT, VERSION, KEYS)
    try:
        parameters, specs = _described(header)
        k = arrays["state/.running.total.sigma"].shape[0]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its header does not describe a model ({error}).") from error
    parameters["encoder"] = _encoder(parameters["encoder"], encoder, path)
    unknown = set(parameters) - set(cls._get_param_names())  # pyrefly: ignore[missing-attribute]
    if unknown:
        raise ValueError(f"{path}: unknown parameters {sorted(unknown)}; it was written by a newer derex.")
    model = cls(**parameters)
    objective = model._check_parameters()
    skeleton = eqx.filter_eval_shape(_skeleton, parameters["encoder"], specs, k, objective.tied)
    state = filled(skeleton, "state/", arrays, path)
    networks = Sides(skeleton.networks.f.network, skeleton.networks.g_or_f.network)
    guards = Sides(
        *(_guard(*each, arrays, path) for each in zip(header["guards"], "xy", networks, strict=True))
    )
    model._publish(specs, state, [tuple(row) for row in arrays["history"].tolist()], guards)
    if header["n_features_in_"] is not None:
        model.n_features_in_ = header["n_features_in_"]
    if header["feature_names_in_"]:
        model.feature_names_in_ = np.asarray(header["feature_names_in_"], object)
    return model


def _described(header: dict[str, Any]) -> tuple[dict[str, Any], Sides]:
    """Constructor parameters and input specifications in a header."""
    parameters = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in header["parameters"].items()
    }
    x, y = (
        InputSpec(tuple(spec["shape"]), spec["n_ids"], spec["kind"], spec["dtype"])
        for spec in header["specs"]
    )
    return parameters, Sides(x, y)


def _plain_parameters(model: Any) -> dict[str, Any]:
    """Constructor parameters as JSON values."""
    parameters = model.get_params(deep=False)
    parameters |= model._trained_as  # what `set_params` changed since then is not in the arrays
    sides = check.encoder_sides(parameters["encoder"])
    names = [side if isinstance(side, str) else OWN for side in sides]
    parameters["encoder"] = names if isinstance(parameters["encoder"], tuple | list) else names[0]
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    return parameters


def _encoder(stored: Any, given: Any, path: Any) -> Any:
    own = OWN in (stored if isinstance(stored, tuple) else [stored])
    if own and given is None:
        raise ValueError(
            f"encoder: {path} was trained with its own module, which a file does not hold. Pass the same kind of "
            "module: DeRex.load(path, encoder=...)."
        )
    if given is not None and not own:
        raise ValueError(f"encoder: {path} holds its own encoder, {stored!r}; load it without `encoder`.")
    return given if own else stored


def _skeleton(encoder: Any, specs: Sides, k: int, tied: bool) -> TrainState:
    """A state of the right structure; its values do not matter."""
    sides = [
        plain_side(build_network(side, jax.random.key(0), spec, k), k)
        for side, spec in zip(check.encoder_sides(encoder), specs, strict=True)
    ]
    return initial_state(Networks(sides[0], None if tied else sides[1]), k)


def _guard_arrays(guard: Guard) -> dict[str, np.ndarray]:
    if isinstance(guard, SeenIds):
        return {"seen": guard.seen}
    if not isinstance(guard, FeatureSpan):
        return {}
    network = {f"network/{name}": storable(value) for name, value in named_arrays(guard.network)}
    return {
        **{f"support/{name}": value for name, value in guard.support._asdict().items()},
        "typical": guard.typical,
        **network,
    }


def _guard(name: str, side: str, network: Any, arrays: dict[str, np.ndarray], path: Any) -> Guard:
    start = f"guard/{side}/"
    if name == "SeenIds":
        return SeenIds(arrays[f"{start}seen"])
    if name != "FeatureSpan":
        return NoGuard()
    support = Support(*(arrays[f"{start}support/{field}"] for field in Support._fields))
    return FeatureSpan(support, arrays[f"{start}typical"], filled(network, f"{start}network/", arrays, path))
