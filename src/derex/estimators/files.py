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
from derex.decomposition.ritz import FeatureMoments, RitzFunctions
from derex.estimators import diagnosis
from derex.estimators import validation as check
from derex.estimators.fitting import init_fit_state
from derex.estimators.networks import Networks, build_network, make_identity_side, make_networks
from derex.estimators.pairs import FeatureSpan, Guard, NoGuard, SeenIds
from derex.estimators.reading import Reading
from derex.estimators.trajectories import StreamSpec
from derex.estimators.validation import Sides
from derex.networks import InputSpec
from derex.networks.encoders import InputKind

HEADER = "header.json"
OWN = "own module"
VERSION = 2  # 1: without singular functions of their own
HISTORY_COLUMNS = 4
# Parameters that an interrupted fit may change before it resumes.
MAY_CHANGE = {"encoder", "verbose", "weighted_bonus", "sigma_floor", "random_state"}


class DamagedModelError(ValueError):
    """A model file that is truncated, changed or not a model file."""

    def __init__(self, what: str):
        super().__init__(f"{what} Save the model again, or restore the file.")
        self.what = what


def write_archive(path: Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Writes to a temporary file, then renames it: readers see all of the new file or the old one."""
    header = header | {"arrays": sorted(arrays)}
    text = json.dumps(header, default=lambda value: value.item())  # NumPy scalars
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


def read_archive(path: Path, form: "ModelFormat") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
            complete = header.keys() >= form.keys | {"arrays", "parameters"}
            if header["version"] <= VERSION and not (complete and header["arrays"] == sorted(arrays)):
                raise ValueError("its contents are not those of a model")
        except Exception as error:  # a damaged archive can fail in any way
            what = f"{type(error).__name__}: {error}"
            raise DamagedModelError(f"{path} is not a derex model, or it is damaged ({what}).") from error
    if header["version"] > VERSION:
        newer = f"format version {header['version']}; this derex reads up to {VERSION}"
        raise ValueError(f"{path} has {newer}. Upgrade derex.")
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
        fix = "Pass the module it was trained with: load(path, encoder=...)."
        raise ValueError(f"{path}: its parameters do not fit the encoder {first}. {fix}")

    def fill(place: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        return jnp.asarray(arrays[f"{prefix}{jax.tree_util.keystr(place)}"], leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, skeleton)


# --- models --------------------------------------------------------------------------------------------------------


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Writes a fitted estimator, all of it or nothing."""
    parameters = model.get_params(deep=False)
    parameters |= model._trained_as  # what `set_params` changed since then is not in the arrays
    encoder = parameters["encoder"]
    names = [side if isinstance(side, str) else OWN for side in check.both_sides("encoder", encoder)]
    parameters["encoder"] = names if isinstance(encoder, tuple | list) else names[0]
    if not isinstance(parameters["random_state"], int | np.integer | None):
        parameters["random_state"] = None  # a generator: its state is not the model's
    header = {"format": model.file_format, "version": VERSION, "derex": __version__, "parameters": parameters}
    arrays = make_storable(model._state, "state/") | {"history": np.asarray(model._history, np.float64)}
    header["report"] = None if model.report_ is None else diagnosis.describe_report(model.report_)
    if model._reading is not None:
        arrays |= {f"reading/{name}": np.asarray(value) for name, value in _flatten(model._reading).items()}
    more_header, more_arrays = FORMATS[model.file_format].describe(model)
    write_archive(Path(path), header | more_header, arrays | more_arrays)


def load_model(cls: Any, path: str | os.PathLike[str], encoder: Any) -> Any:
    """Reads a model of class `cls`; `encoder` stands in for own modules, which files do not hold."""
    if encoder is not None:
        cls(encoder=encoder)._check_encoder()
    form = FORMATS[cls.file_format]
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
        fix = f"Pass the same kind of module: {cls.__name__}.load(path, encoder=...)."
        raise ValueError(f"encoder: {path} was trained with its own module, which is not in it. {fix}")
    if encoder is not None and not own:
        raise ValueError(f"encoder: {path} holds its own encoder, {stored!r}; load it without `encoder`.")
    try:
        model = cls(**parameters | ({"encoder": encoder} if own else {}))
        tied, history = model._check_parameters().tied, arrays["history"]
        if history.size and history.shape[1:] != (HISTORY_COLUMNS,):
            raise ValueError(f"its history has shape {history.shape}")
        build = form.restore(model, header, tied)
    except Exception as error:
        raise _damaged(path, error) from error
    try:
        skeleton = eqx.filter_eval_shape(lambda: init_fit_state(build(), int(model.k)))
    except Exception as error:
        if own:  # the user's encoder is at fault
            raise
        raise _damaged(path, error) from error
    state = fill_arrays(skeleton, "state/", arrays, path, own)
    for name, value in name_arrays(state):
        if jnp.issubdtype(value.dtype, jnp.floating) and jnp.isnan(value).any():
            raise DamagedModelError(f"{path} is damaged: {name} contains NaN.")
    if form is PAIRS:
        networks = skeleton.networks.f.network, skeleton.networks.g_or_f.network
        sides = zip(header["guards"], "xy", networks, strict=True)
        model._guards = Sides(*(_read_guard(*side, arrays, path, own) for side in sides))
    model._publish(state, [tuple(row) for row in history.tolist()], _read_reading(header, arrays, path))
    try:
        model.report_ = diagnosis.read_report(header.get("report"))
    except Exception as error:  # a header can be wrong in any way
        raise _damaged(path, error) from error
    return model


def _flatten(reading: Reading) -> dict[str, Any]:
    """The arrays and numbers of a reading by name."""
    parts = {"functions": reading.functions, "moments": reading.moments}
    flat = {f"{part}.{name}": value for part, its in parts.items() for name, value in its._asdict().items()}
    return flat | {name: getattr(reading, name) for name in ("errors", "confirmed", "energy", "rows")}


def _read_reading(header: dict[str, Any], arrays: dict[str, np.ndarray], path: Any) -> Reading | None:
    """The reading that a file holds; None in files of derex 0.1 and of unfinished fits."""
    stored = {n.removeprefix("reading/"): a for n, a in arrays.items() if n.startswith("reading/")}
    if not stored:
        return None
    try:
        k, (p, _), (q, _) = (
            header["parameters"]["k"],
            stored["functions.f"].shape,
            stored["functions.g"].shape,
        )
        functions = RitzFunctions(*map(np.zeros, (p, q, (p, k), (q, k), k)))
        moments = FeatureMoments(0.0, *map(np.zeros, (k, k, (k, k), (k, k), (k, k))))
        expected = _flatten(Reading(functions, np.zeros(k), np.zeros(k), 0.0, moments, 0.0))
        if {n: np.shape(a) for n, a in expected.items()} != {n: a.shape for n, a in stored.items()}:
            raise ValueError("its singular functions have other shapes")
        if not all(a.dtype.kind == "f" and np.isfinite(a).all() for a in stored.values()):
            raise ValueError("its singular functions are not finite numbers")
    except Exception as error:  # as in the header
        raise _damaged(path, error) from error
    functions = RitzFunctions(*(stored[f"functions.{name}"] for name in RitzFunctions._fields))
    sums = (stored[f"moments.{name}"] for name in FeatureMoments._fields[1:])
    moments = FeatureMoments(float(stored["moments.weight"]), *sums)
    numbers = stored["errors"], stored["confirmed"], float(stored["energy"])
    return Reading(functions, *numbers, moments, float(stored["rows"]))


def _damaged(path: Any, error: Exception) -> DamagedModelError:
    what = f"{type(error).__name__}: {error}"
    return DamagedModelError(f"{path} is damaged: its header does not describe a model ({what}).")


def _read_input_spec(shape: Any, n_ids: Any, kind: Any, dtype: Any) -> InputSpec:
    if kind is not None:
        check.check_choice("kind", kind, get_args(InputKind))
    shape = tuple(check.check_integer("shape", size, 1) for size in shape)
    n_ids = check.check_integer("n_ids", n_ids, int(kind == "ids"))
    return InputSpec(shape, n_ids, kind, np.dtype(dtype).name)


# --- what is particular to an estimator ----------------------------------------------------------------------------


class ModelFormat(NamedTuple):
    """How an estimator is stored, beside what all estimators have in common."""

    name: str
    keys: frozenset[str]  # of the header
    describe: Callable[[Any], tuple[dict[str, Any], dict[str, np.ndarray]]]
    """model -> its header and arrays"""
    restore: Callable[[Any, dict[str, Any], bool], Callable[[], Any]]
    """(model, header, tied): checks and sets what the header says; returns a function that builds its networks"""


def _describe_pairs(model: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
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
    return header, arrays


def _restore_pairs(model: Any, header: dict[str, Any], tied: bool) -> Callable[[], Any]:
    model._specs = specs = Sides(*(_read_input_spec(**spec) for spec in header["specs"]))
    if header["n_features_in_"] is not None:
        model.n_features_in_ = header["n_features_in_"]
    if header["feature_names_in_"]:
        model.feature_names_in_ = np.asarray(header["feature_names_in_"], object)
    encoders, k = check.both_sides("encoder", model.encoder), int(model.k)

    def build() -> Networks:
        f, g = (
            make_identity_side(build_network(encoder, jax.random.key(0), spec, k), k)
            for encoder, spec in zip(encoders, specs, strict=True)
        )
        return Networks(f, None if tied else g)

    return build


def _read_guard(
    name: str, side: str, network: Any, arrays: dict[str, np.ndarray], path: Any, own: bool
) -> Guard:
    prefix = f"guard/{side}/"
    if name == "SeenIds":
        return SeenIds(arrays[f"{prefix}seen"])
    if name != "FeatureSpan":
        return NoGuard()
    support = Support(*(arrays[f"{prefix}support/{field}"] for field in Support._fields))
    network = fill_arrays(network, f"{prefix}network/", arrays, path, own)
    return FeatureSpan(support, arrays[f"{prefix}typical"], network)


def _describe_histories(model: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    header = {
        "spec": model._spec._asdict() | {"parts": [part._asdict() for part in model._spec.parts]},
        "tied": model._state.networks.reverse is None,
        "fingerprint": model._fingerprint,
        "seed": model._seed,  # as drawn: an interrupted fit resumes with it, whatever random_state was
    }
    return header, {}


def _restore_histories(model: Any, header: dict[str, Any], tied: bool) -> Callable[[], Any]:
    values, tied = header["spec"], check.check_flag("tied", header["tied"])
    parts = tuple(_read_input_spec(**part) for part in values["parts"])
    choices = check.check_integer("choices", values["choices"], 1)
    model._spec = spec = StreamSpec(**(values | {"parts": parts, "choices": choices}))
    spec.observation(list(range(len(parts))))  # as many as the outline says
    check.check_choice("actions", spec.actions, ("ids", "vectors"))
    model._fingerprint = check.check_integer("fingerprint", header["fingerprint"], 0)
    seed = header.get("seed")
    model._seed = None if seed is None else check.check_integer("seed", seed, 0)
    sizes = int(model.width), int(model.k)
    return lambda: make_networks(model.encoder, spec, *sizes, tied, model.test_actions, jax.random.key(0))


PAIR_KEYS = frozenset({"specs", "n_features_in_", "feature_names_in_", "guards"})
HISTORY_KEYS = frozenset({"spec", "tied", "fingerprint"})
PAIRS = ModelFormat("derex-model", PAIR_KEYS, _describe_pairs, _restore_pairs)
HISTORIES = ModelFormat("derex-history-model", HISTORY_KEYS, _describe_histories, _restore_histories)
FORMATS = {form.name: form for form in (PAIRS, HISTORIES)}


def load_checkpoint(model: Any, path: Any, fingerprint: int, name: str) -> Any:
    """Loads the model that an interrupted fit of this model to this data has saved; None if there is none."""
    if not check_path(name, path).exists():
        return None
    try:
        before = load_model(type(model), path, None if isinstance(model.encoder, str) else model.encoder)
    except DamagedModelError as error:
        raise ValueError(f"{name}: {error.what} If it is a checkpoint, remove it to start again.") from error
    except ValueError as error:
        fix = "Remove it to start again, or choose another file."
        raise ValueError(f"{name}: cannot resume from {path}: {error} {fix}") from error
    seeded = isinstance(model.random_state, int | np.integer)  # else any seed will do
    ignored = MAY_CHANGE - {"random_state"} if seeded else MAY_CHANGE
    different = sorted(find_differences(model, before) - ignored)
    if different or before._fingerprint != fingerprint:
        what = f"parameters {different}" if different else "data"
        raise ValueError(f"{name}: {path} is of a fit with other {what}. Remove the file, or choose another.")
    return before


def find_differences(model: Any, other: Any) -> set[str]:
    """Finds the parameters in which two estimators of one class differ."""
    mine, its = model.get_params(), other.get_params()
    return {name for name in mine if mine[name] is not its[name] and mine[name] != its[name]}


def check_path(name: str, path: Any) -> Path:
    """Checks for a path where a file is, or can be written."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name}: expected the name of a file, got {path!r} of type {type(path).__name__}.")
    path = Path(path)
    if path.is_dir():
        example = path / "model.npz"
        raise IsADirectoryError(f"{name}: {path} is a folder; name a file in it, such as {example}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name}: the folder {path.parent} does not exist. Create it first.")
    return path
