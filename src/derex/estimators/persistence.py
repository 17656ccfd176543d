"""Models as files: named arrays and a JSON header in one archive. Reading one never runs code from it.

The archive is a NumPy `.npz` (a zip with a checksum of every member), so that other tools can read it as well.
"""

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from derex._version import __version__
from derex.decomposition.support import Support
from derex.estimators import validation as check
from derex.estimators.building import Sides, build_network
from derex.estimators.guards import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.training import Networks, TrainState, initial_state, starting_side
from derex.networks import InputSpec

FORMAT, VERSION = "derex-model", 1
HEADER = "header.json"
OWN = "own module"


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the fitted model beside its final place, then move it there: readers see all of it or none."""
    arrays = {f"state/{name}": value for name, value in _named_leaves(model._state)}
    arrays |= {f"guard/{name}": value for name, value in _guard_arrays(model._guard).items()}
    arrays["history"] = np.asarray(model._history, np.float64)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "derex": __version__,
        "parameters": _plain_parameters(model),
        "specs": [[list(spec.shape), spec.n_ids] for spec in model._specs],
        "features": getattr(model, "n_features_in_", None),
        "guard": type(model._guard).__name__,
    }
    arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = _read(Path(path))
    parameters = dict(header["parameters"])
    parameters["encoder"] = _encoder(parameters["encoder"], encoder, path)
    unknown = set(parameters) - set(cls._get_param_names())  # pyrefly: ignore[missing-attribute]
    if unknown:
        raise ValueError(f"{path}: unknown parameters {sorted(unknown)}; it was written by a newer derex.")
    model = cls(**parameters)
    model._specs = Sides(*(InputSpec(tuple(shape), n_ids) for shape, n_ids in header["specs"]))
    objective = model._check_parameters()
    skeleton = eqx.filter_eval_shape(_skeleton, parameters["encoder"], model._specs, model.k, objective.tied)
    model._state = _filled(skeleton, arrays, path)
    model._guard = _guard(header["guard"], arrays)
    model._history = [tuple(row) for row in arrays["history"]]
    if header["features"] is not None:
        model.n_features_in_ = header["features"]
    model._publish(model._state)
    return model


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays, every checksum verified."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or HEADER not in file.files:
                raise ValueError("no derex header")
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
        if header.get("format") != FORMAT:
            raise ValueError("no derex header")
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"{path} is not a derex model, or it is damaged ({error}). Save the model again, or restore the file."
        ) from error
    if header["version"] > VERSION:
        raise ValueError(
            f"{path} has format version {header['version']}; this derex reads up to {VERSION}. Upgrade derex."
        )
    return header, arrays


def _plain_parameters(model: Any) -> dict[str, Any]:
    """Constructor parameters as JSON values."""
    parameters = model.get_params(deep=False)
    sides = check.encoder_sides(parameters["encoder"])
    names = [side if isinstance(side, str) else OWN for side in sides]
    parameters["encoder"] = names if isinstance(parameters["encoder"], tuple | list) else names[0]
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None
    return {
        name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()
    }


def _encoder(stored: Any, given: Any, path: Any) -> Any:
    own = OWN in (stored if isinstance(stored, list) else [stored])
    if own and given is None:
        raise ValueError(
            f"encoder: {path} was trained with its own module, which a file does not hold. Pass the same kind of "
            "module: DeRex.load(path, encoder=...)."
        )
    if given is not None and not own:
        raise ValueError(f"encoder: {path} holds its own encoder, {stored!r}; load it without `encoder`.")
    return given if own else tuple(stored) if isinstance(stored, list) else stored


def _skeleton(encoder: Any, specs: Sides, k: int, tied: bool) -> TrainState:
    """A state of the right structure; its values do not matter."""
    sides = []
    for side, spec in list(zip(check.encoder_sides(encoder), specs, strict=True))[: 1 if tied else 2]:
        network = build_network(side, jax.random.key(0), spec, k)
        sides.append(starting_side(network, _blank_rows(spec, network)))
    return initial_state(Networks(sides[0], sides[1] if len(sides) == 2 else None), k)


def _blank_rows(spec: InputSpec, network: Any) -> Any:
    dtype = np.int32 if spec.n_ids else np.float32
    return jax.numpy.zeros((2, *spec.shape), dtype)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array_like))
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves]


def _filled(skeleton: Any, arrays: dict[str, np.ndarray], path: Any) -> Any:
    """The skeleton with its leaves read from the file, names and shapes checked first."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(skeleton)
    expected = {f"state/{jax.tree_util.keystr(p)}": leaf for p, leaf in leaves if hasattr(leaf, "shape")}
    stored = {name for name in arrays if name.startswith("state/")}
    wrong = sorted(
        name for name in stored | set(expected) if name not in stored or name not in expected
        or arrays[name].shape != expected[name].shape
    )  # fmt: skip
    if wrong:
        raise ValueError(
            f"{path}: its parameters do not fit the encoder (first difference: {wrong[0].removeprefix('state/')}). "
            "Pass the module it was trained with: DeRex.load(path, encoder=...)."
        )
    filled = [
        jax.numpy.asarray(arrays[f"state/{jax.tree_util.keystr(p)}"]) if hasattr(leaf, "shape") else leaf
        for p, leaf in leaves
    ]
    return jax.tree_util.tree_unflatten(structure, filled)


def _guard_arrays(guard: Guard) -> dict[str, np.ndarray]:
    if isinstance(guard, SeenIds):
        return {"seen": guard.seen, "largest": guard.largest}
    return dict(guard.support._asdict()) if isinstance(guard, FeatureSpan) else {}


def _guard(name: str, arrays: dict[str, np.ndarray]) -> Guard:
    parts = {key.removeprefix("guard/"): value for key, value in arrays.items() if key.startswith("guard/")}
    if name == "SeenIds":
        return SeenIds(parts["seen"], parts["largest"])
    return FeatureSpan(Support(**parts)) if name == "FeatureSpan" else NoGuard()
