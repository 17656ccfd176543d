"""Model files: named arrays and a JSON header in one archive. Reading one never runs code from it.

The archive is a NumPy `.npz` (a zip with a checksum of every member), so that other tools can read it as well.
Names of arrays are paths in `FitState`.
"""

import io
import json
import os
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex._version import __version__
from derex.decomposition.bonus import Support
from derex.estimators import validation as check
from derex.estimators.base import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.fitting import FitState, Networks, build_network, init_fit_state, make_identity_side
from derex.estimators.streams import check_encoder, make_networks
from derex.estimators.trajectories import StreamSpec
from derex.estimators.validation import Sides
from derex.networks import InputSpec
from derex.networks.encoders import InputKind

HEADER = "header.json"
OWN = "own module"
VERSION = 1
HISTORY_COLUMNS = 4
# Parameters that an interrupted fit may change before it resumes.
MAY_CHANGE = {"encoder", "verbose", "weighted_bonus", "sigma_floor", "random_state"}


class ModelFormat(NamedTuple):
    """The name of an estimator's format and the keys of its header, beside those that all have."""

    name: str
    keys: frozenset[str]


PAIRS = ModelFormat("derex-model", frozenset({"specs", "n_features_in_", "feature_names_in_", "guards"}))
HISTORIES = ModelFormat("derex-history-model", frozenset({"spec", "tied", "fingerprint"}))


class DamagedModelError(ValueError):
    """A model file that is truncated, changed or not a model file."""

    def __init__(self, what: str):
        super().__init__(f"{what} Save the model again, or restore the file.")
        self.what = what


# --- archives ------------------------------------------------------------------------------------------------------


def write_archive(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes to a temporary file, then renames it: readers see all of the new file or the old one."""
    text = json.dumps(
        header | {"arrays": sorted(arrays)}, default=lambda value: value.item()
    )  # NumPy scalars
    members = {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: the folder {path.parent} does not exist. Create it first.")
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **members)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_archive(path: Path, form: ModelFormat) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads header and arrays of a file of that format, at most of our version; verifies every checksum."""
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
            if header["format"] != form.name:
                raise ValueError(f"its format is {header['format']!r}, expected {form.name!r}")
            if header["version"] <= VERSION and not (
                header.keys() >= form.keys | {"arrays", "parameters"} and header["arrays"] == sorted(arrays)
            ):
                raise ValueError("its contents are not those of a model")
        except Exception as error:  # a damaged archive can fail in any way
            raise DamagedModelError(
                f"{path} is not a derex model, or it is damaged ({type(error).__name__}: {error})."
            ) from error
    if header["version"] > VERSION:
        raise ValueError(
            f"{path} has format version {header['version']}; this derex reads up to {VERSION}. Upgrade derex."
        )
    return header, arrays


def name_arrays(tree: Any) -> list[tuple[str, Any]]:
    """Lists the arrays of a tree with their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if hasattr(leaf, "shape")]


def make_storable(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Makes named NumPy arrays of a tree; bfloat16 and the like in single precision, cast back on load."""
    arrays = {f"{prefix}{name}": np.asarray(value) for name, value in name_arrays(tree)}
    return {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in arrays.items()}


def fill_arrays(skeleton: Any, prefix: str, arrays: dict[str, np.ndarray], path: Any, own: bool) -> Any:
    """Fills the skeleton with the arrays whose names have that prefix; checks names and shapes first.

    Where they do not fit, the user's own encoder is at fault, if the skeleton has one; else the file.
    """
    expected = {f"{prefix}{name}": leaf.shape for name, leaf in name_arrays(skeleton)}
    stored = {name: array.shape for name, array in arrays.items() if name.startswith(prefix)}
    wrong = sorted(name for name in stored.keys() | expected if stored.get(name) != expected.get(name))
    if wrong:
        first = f"(first difference: {wrong[0].removeprefix(prefix)})"
        if not own:
            raise DamagedModelError(f"{path} is damaged: its arrays do not fit its header {first}.")
        raise ValueError(
            f"{path}: its parameters do not fit the encoder {first}. Pass the module it was trained with: "
            "load(path, encoder=...)."
        )

    def fill(place: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return jnp.asarray(arrays[f"{prefix}{jax.tree_util.keystr(place)}"], leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, skeleton)


# --- models of both estimators -------------------------------------------------------------------------------------


def _save(
    model: Any, path: Any, form: ModelFormat, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Writes the parameters and the state of a fitted model with what its estimator adds."""
    parameters = model.get_params(deep=False)
    parameters |= model._trained_as  # what `set_params` changed since then is not in the arrays
    encoder = parameters["encoder"]
    names = [side if isinstance(side, str) else OWN for side in check.encoder_sides(encoder)]
    parameters["encoder"] = names if isinstance(encoder, tuple | list) else names[0]
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    common = {"format": form.name, "version": VERSION, "derex": __version__, "parameters": parameters}
    history = {"history": np.asarray(model._history, np.float64)}
    write_archive(Path(path), common | header, make_storable(model._state, "state/") | arrays | history)


class StoredModel(NamedTuple):
    """What a file says about a model, checked."""

    model: Any  # not fitted yet
    state: FitState
    history: list[tuple[float, ...]]
    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    skeleton: FitState
    own: bool  # whether the user's own modules are part of it


def _load(
    cls: Any,
    path: Any,
    form: ModelFormat,
    encoder: Any,
    plan: Callable[[Any, dict[str, Any]], Callable[[], FitState]],
) -> StoredModel:
    """Reads the parameters and the state of a model; `encoder` stands in for own modules, which files do not hold.

    Args:
        plan: checks the header; returns a function that makes a state of the right structure, whatever its values.
    """
    header, arrays = read_archive(Path(path), form)
    try:
        parameters = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in dict(header["parameters"]).items()
        }
        stored = parameters["encoder"]
    except Exception as error:  # a header can be wrong in any way
        raise _damaged(path, error) from error
    unknown = set(parameters) - set(cls._get_param_names())
    if unknown:
        raise ValueError(f"{path}: unknown parameters {sorted(unknown)}; it was written by a newer derex.")
    own = OWN in (stored if isinstance(stored, tuple) else [stored])
    if own and encoder is None:
        raise ValueError(
            f"encoder: {path} was trained with its own module, which a file does not hold. Pass the same kind of "
            f"module: {cls.__name__}.load(path, encoder=...)."
        )
    if encoder is not None and not own:
        raise ValueError(f"encoder: {path} holds its own encoder, {stored!r}; load it without `encoder`.")
    if own:
        parameters["encoder"] = encoder
    try:
        model = cls(**parameters)
        model._check_parameters()
        history = arrays["history"]
        if history.size and history.shape[1:] != (HISTORY_COLUMNS,):
            raise ValueError(f"its history has shape {history.shape}")
        make_state = plan(model, header)
    except Exception as error:
        raise _damaged(path, error) from error
    try:
        skeleton = eqx.filter_eval_shape(make_state)
    except Exception as error:
        if own:  # the user's encoder is at fault
            raise
        raise _damaged(path, error) from error
    state = fill_arrays(skeleton, "state/", arrays, path, own)
    for name, value in name_arrays(state):
        if jnp.issubdtype(value.dtype, jnp.floating) and jnp.isnan(value).any():
            raise DamagedModelError(f"{path} is damaged: {name} contains NaN.")
    return StoredModel(model, state, [tuple(row) for row in history.tolist()], header, arrays, skeleton, own)


def _damaged(path: Any, error: Exception) -> DamagedModelError:
    return DamagedModelError(
        f"{path} is damaged: its header does not describe a model ({type(error).__name__}: {error})."
    )


def _make_input_spec(shape: Any, n_ids: Any, kind: Any, dtype: Any) -> InputSpec:
    if kind is not None:
        check.check_choice("kind", kind, get_args(InputKind))
    shape = tuple(check.check_integer("shape", size, 1) for size in shape)
    n_ids = check.check_integer("n_ids", n_ids, int(kind == "ids"))
    return InputSpec(shape, n_ids, kind, np.dtype(dtype).name)


# --- models of pairs -----------------------------------------------------------------------------------------------


def save_pairs(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes a fitted `DeRex`, all of it or nothing."""
    arrays = {}
    for side, guard in model._guards._asdict().items():
        prefix = f"guard/{side}/"
        if isinstance(guard, SeenIds):
            arrays[f"{prefix}seen"] = guard.seen
        elif isinstance(guard, FeatureSpan):
            arrays |= {f"{prefix}support/{name}": value for name, value in guard.support._asdict().items()}
            arrays[f"{prefix}typical"] = guard.typical
            arrays |= make_storable(guard.network, f"{prefix}network/")
    header = {
        "specs": [spec._asdict() for spec in model._specs],
        "n_features_in_": getattr(model, "n_features_in_", None),
        "feature_names_in_": list(getattr(model, "feature_names_in_", [])),
        "guards": [type(guard).__name__ for guard in model._guards],
    }
    _save(model, path, PAIRS, header, arrays)


def load_pairs(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """Reads a model of class `cls`, a `DeRex`."""
    stored = _load(cls, path, PAIRS, encoder, _plan_pairs)
    networks = stored.skeleton.networks
    sides = zip(stored.header["guards"], "xy", (networks.f.network, networks.g_or_f.network), strict=True)
    guards = Sides(*(_load_guard(*each, stored, path) for each in sides))
    model, names = stored.model, stored.header["feature_names_in_"]
    model._publish(_make_specs(stored.header), stored.state, stored.history, guards)
    if stored.header["n_features_in_"] is not None:
        model.n_features_in_ = stored.header["n_features_in_"]
    if names:
        model.feature_names_in_ = np.asarray(names, object)
    return model


def _make_specs(header: dict[str, Any]) -> Sides:
    x, y = (_make_input_spec(**spec) for spec in header["specs"])
    return Sides(x, y)


def _plan_pairs(model: Any, header: dict[str, Any]) -> Callable[[], FitState]:
    specs, k, tied = _make_specs(header), int(model.k), model._check_parameters().tied

    def make() -> FitState:
        sides = [
            make_identity_side(build_network(side, jax.random.key(0), spec, k), k)
            for side, spec in zip(check.encoder_sides(model.encoder), specs, strict=True)
        ]
        return init_fit_state(Networks(sides[0], None if tied else sides[1]), k)

    return make


def _load_guard(name: str, side: str, network: Any, stored: StoredModel, path: Any) -> Guard:
    prefix, arrays = f"guard/{side}/", stored.arrays
    if name == "SeenIds":
        return SeenIds(arrays[f"{prefix}seen"])
    if name != "FeatureSpan":
        return NoGuard()
    support = Support(*(arrays[f"{prefix}support/{field}"] for field in Support._fields))
    network = fill_arrays(network, f"{prefix}network/", arrays, path, stored.own)
    return FeatureSpan(support, arrays[f"{prefix}typical"], network)


# --- models of histories -------------------------------------------------------------------------------------------


def save_histories(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes a fitted `HistoryDeRex`, all of it or nothing."""
    header = {
        "spec": model._spec._asdict() | {"parts": [part._asdict() for part in model._spec.parts]},
        "tied": model._state.networks.reverse is None,
        "fingerprint": model._fingerprint,
        "seed": model._seed,  # as drawn: an interrupted fit resumes with it, whatever random_state was
    }
    _save(model, path, HISTORIES, header, {})


def load_histories(cls: type, path: str | os.PathLike[str], encoder: Any) -> Any:
    """Reads a model of class `cls`, a `HistoryDeRex`."""
    if encoder is not None:
        check_encoder(encoder)
    stored = _load(cls, path, HISTORIES, encoder, _plan_histories)
    header = stored.header
    spec = _make_stream_spec(header["spec"])
    stored.model._publish(spec, stored.state, stored.history, header["fingerprint"], header.get("seed"))
    return stored.model


def _make_stream_spec(values: dict[str, Any]) -> StreamSpec:
    parts = tuple(_make_input_spec(**part) for part in values["parts"])
    choices = check.check_integer("choices", values["choices"], 1)
    spec = StreamSpec(**(values | {"parts": parts, "choices": choices}))
    spec.observation(list(range(len(parts))))  # as many as the outline says
    check.check_choice("actions", spec.actions, ("ids", "vectors"))
    return spec


def _plan_histories(model: Any, header: dict[str, Any]) -> Callable[[], FitState]:
    spec, tied = _make_stream_spec(header["spec"]), check.check_flag("tied", header["tied"])
    check.check_integer("fingerprint", header["fingerprint"], 0)
    if header.get("seed") is not None:
        check.check_integer("seed", header["seed"], 0)
    width, k, actions = int(model.width), int(model.k), model.test_actions

    def make() -> FitState:
        networks = make_networks(model.encoder, spec, width, k, tied, actions, jax.random.key(0))
        return init_fit_state(networks, k)

    return make


def load_checkpoint(model: Any, path: Any, fingerprint: int, name: str) -> Any:
    """Loads the model that an interrupted fit of this model to this data has saved; None if there is none."""
    if not check_path(name, path).exists():
        return None
    try:
        before = load_histories(type(model), path, None if isinstance(model.encoder, str) else model.encoder)
    except DamagedModelError as error:
        raise ValueError(f"{name}: {error.what} If it is a checkpoint, remove it to start again.") from error
    except ValueError as error:
        raise ValueError(
            f"{name}: cannot resume from {path}: {error} Remove it to start again, or choose another file."
        ) from error
    mine, its = (m.get_params() for m in (model, before))
    compared = set(mine) - MAY_CHANGE
    if isinstance(model.random_state, int | np.integer):  # else any seed will do
        compared.add("random_state")
    different = sorted(each for each in compared if mine[each] != its[each])
    if different or before._fingerprint != fingerprint:
        what = f"parameters {different}" if different else "data"
        raise ValueError(f"{name}: {path} is of a fit with other {what}. Remove the file, or choose another.")
    return before


def check_path(name: str, path: Any) -> Path:
    """Checks for a path where a file is, or can be written."""
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
