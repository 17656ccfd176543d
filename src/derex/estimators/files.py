"""Named arrays and a JSON header in one file. Reading one never runs code from it.

The archive is a NumPy `.npz` (a zip with a checksum of every member), so that other tools can read it as well.

Models of pairs as files (`derex.estimators.files`).

Models of histories as files (`derex.estimators.files`).
"""

import io
import json
import os
import uuid
import zipfile
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex._version import __version__
from derex.decomposition.bonus import Support
from derex.estimators import validation as check
from derex.estimators.base import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.building import Sides, build_network, check_encoder, skeleton
from derex.estimators.fitting import Networks, TrainState, initial_state, plain_side
from derex.estimators.trajectories import StreamSpec
from derex.networks import InputSpec
from derex.networks.encoders import InputKind

HEADER = "header.json"


class DamagedError(ValueError):
    """A file that is not what its writer wrote."""

    def __init__(self, what: str):
        super().__init__(f"{what} Save the model again, or restore the file.")
        self.what = what


def storable(value: Any) -> np.ndarray:
    """As a type that NumPy's files know: bfloat16 and its like in single precision, cast back on load."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def write(target: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Beside its final place first, then moved there: readers see all of it or none."""
    text = json.dumps(
        header | {"arrays": sorted(arrays)}, default=lambda value: value.item()
    )  # NumPy's scalars
    members = {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}
    if not target.parent.is_dir():
        raise FileNotFoundError(f"path: the folder {target.parent} does not exist. Create it first.")
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def read(
    path: Path, format_: str, version: int, keys: set[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file of that format, at most of that version; every checksum verified."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                # Whole members: their checksums are compared at their ends.
                members = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
                for name, member in members.items()
            }
            header = json.loads(arrays.pop(HEADER).tobytes())
            if header["format"] != format_:
                raise ValueError(f"its format is {header['format']!r}, expected {format_!r}")
            known = header["version"] > version or header.keys() >= keys | {"arrays"}
            if not known or (header["version"] <= version and header["arrays"] != sorted(arrays)):
                raise ValueError("its contents are not those of a model")
        except Exception as error:  # a damaged archive can fail in any way
            raise DamagedError(
                f"{path} is not a derex model, or it is damaged ({type(error).__name__}: {error})."
            ) from error
    if header["version"] > version:
        raise ValueError(
            f"{path} has format version {header['version']}; this derex reads up to {version}. Upgrade derex."
        )
    return header, arrays


def named_arrays(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if hasattr(leaf, "shape")]


def filled(
    skeleton: Any, start: str, arrays: dict[str, np.ndarray], path: Any, own_encoder: bool = True
) -> Any:
    """The skeleton with the arrays whose names have that start, names and shapes checked first.

    Where they do not fit, the user's own encoder is to blame, if the skeleton has one; else the file.
    """
    expected = {f"{start}{name}": leaf.shape for name, leaf in named_arrays(skeleton)}
    stored = {name: array.shape for name, array in arrays.items() if name.startswith(start)}
    wrong = sorted(name for name in stored.keys() | expected if stored.get(name) != expected.get(name))
    if wrong and not own_encoder:
        raise DamagedError(
            f"{path} is damaged: its arrays do not fit its header (first difference: {wrong[0].removeprefix(start)})."
        )
    if wrong:
        raise ValueError(
            f"{path}: its parameters do not fit the encoder (first difference: {wrong[0].removeprefix(start)}). "
            "Pass the module it was trained with: load(path, encoder=...)."
        )

    def fill(place: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return jax.numpy.asarray(arrays[f"{start}{jax.tree_util.keystr(place)}"], leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, skeleton)


PAIR_FORMAT, PAIR_VERSION = "derex-model", 1
PAIR_OWN = "own module"
PAIR_KEYS = {"parameters", "specs", "n_features_in_", "feature_names_in_", "guards"}  # of the header


def save_pairs(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the fitted model, all of it or nothing."""
    arrays = {f"state/{name}": storable(value) for name, value in named_arrays(model._state)}
    for side, guard in model._guards._asdict().items():
        arrays |= {f"guard/{side}/{name}": value for name, value in _guard_arrays(guard).items()}
    arrays["history"] = np.asarray(model._history, np.float64)
    header = {
        "format": PAIR_FORMAT,
        "version": PAIR_VERSION,
        "derex": __version__,
        "parameters": _plain_parameters(model),
        "specs": [spec._asdict() for spec in model._specs],
        "n_features_in_": getattr(model, "n_features_in_", None),
        "feature_names_in_": list(getattr(model, "feature_names_in_", [])),
        "guards": [type(guard).__name__ for guard in model._guards],
    }
    write(Path(path), header, arrays)


def load_pairs(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = read(Path(path), PAIR_FORMAT, PAIR_VERSION, PAIR_KEYS)
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
    names = [side if isinstance(side, str) else PAIR_OWN for side in sides]
    parameters["encoder"] = names if isinstance(parameters["encoder"], tuple | list) else names[0]
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    return parameters


def _encoder(stored: Any, given: Any, path: Any) -> Any:
    own = PAIR_OWN in (stored if isinstance(stored, tuple) else [stored])
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


HISTORY_FORMAT, HISTORY_VERSION = "derex-history-model", 1
HISTORY_OWN = "own module"
HISTORY_KEYS = {"parameters", "spec", "tied", "fingerprint"}  # of the header
COLUMNS = 4  # of the history
IRRELEVANT = {
    "encoder",
    "verbose",
    "weighted_bonus",
    "sigma_floor",
    "random_state",
}  # to what a fit goes on from


def save_histories(model: Any, path: str | os.PathLike[str]) -> None:
    """Write the fitted model, all of it or nothing."""
    arrays = {f"state/{name}": storable(value) for name, value in named_arrays(model._state)}
    arrays["history"] = np.asarray(model._history, np.float64)
    parameters = model.get_params(deep=False) | model._trained_as
    if not isinstance(parameters["encoder"], str):
        parameters["encoder"] = HISTORY_OWN
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    spec = model._spec._asdict() | {"parts": [part._asdict() for part in model._spec.parts]}
    header = {
        "format": HISTORY_FORMAT,
        "version": HISTORY_VERSION,
        "derex": __version__,
        "parameters": parameters,
        "spec": spec,
        "tied": model._state.networks.reverse is None,
        "fingerprint": model._fingerprint,
        "seed": model._seed,  # as drawn: an interrupted fit goes on from it, whatever random_state was
    }
    write(Path(path), header, arrays)


def load_histories(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """A model of class `cls` from a file; `encoder` stands in for own modules, which files do not hold."""
    header, arrays = read(Path(path), HISTORY_FORMAT, HISTORY_VERSION, HISTORY_KEYS)
    try:
        parameters = dict(header["parameters"])
        own = parameters["encoder"] == HISTORY_OWN
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
        before = load_histories(
            type(model), checkpoint, None if isinstance(model.encoder, str) else model.encoder
        )
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
