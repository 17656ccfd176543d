"""Checks of parameters and arrays before training starts: errors name the argument, what came and how to fix it."""

import numbers
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from derex._text import hint
from derex.networks import ENCODERS, InputSpec
from derex.networks.encoders import InputKind, count_ids
from derex.networks.layers import iterate_blocks, trainable_mask

MIN_REACH, MIN_RELATIVE_REACH = 1e-30, 1e-5  # least variation of a column: absolute, and relative to its mean
MIN_ROWS = 4  # two halves of two
MAX_INTEGER = 2**31 - 1
MAX_TABLE = 2**24  # largest table made without being asked for


class Sides(NamedTuple):
    """One value for X and one for Y."""

    x: Any
    y: Any


# --- parameters ----------------------------------------------------------------------------------------------------


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Checks that `value` is one of `choices`; the error suggests the closest one."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return value
    expected = ", ".join(map(repr, choices))
    raise ValueError(f"{name}: expected one of {expected}; got {value!r}.{hint(str(value), choices)}")


def check_integer(name: str, value: Any, least: int) -> int:
    """Checks for an integer (not a bool) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}.")
    return int(value)


def check_number(name: str, value: Any, least: float, inclusive: bool = True) -> float:
    """Checks for a finite real number above (or at) `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {value!r} of type {type(value).__name__}.")
    value = float(value)
    if not np.isfinite(value) or value < least or (value == least and not inclusive):
        raise ValueError(f"{name}: expected a number {'>=' if inclusive else '>'} {least}, got {value}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Checks for True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r} of type {type(value).__name__}.")
    return bool(value)


def check_scalars(parameters: Any, expected: dict[str, Any]) -> None:
    """Checks attributes of an estimator.

    Args:
        parameters: the estimator.
        expected: for each name bool, the least integer, or the least float; a tuple of a float alone: more than that.
    """
    for name, least in expected.items():
        value = getattr(parameters, name)
        if least is bool:
            check_flag(name, value)
        elif isinstance(least, int):
            check_integer(name, value, least)
        elif isinstance(least, tuple):
            check_number(name, value, least[0], inclusive=False)
        else:
            check_number(name, value, least)


def check_seed(name: str, value: Any) -> None:
    """Checks for None, an integer or a RandomState, as in scikit-learn."""
    if value is None or value is np.random or isinstance(value, np.random.RandomState):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name}: expected None, an integer or a numpy.random.RandomState; got {value!r} of type "
            f"{type(value).__name__}. With a numpy.random.Generator: {name}=int(generator.integers(2**31))."
        )
    if not 0 <= int(value) < 2**32:
        raise ValueError(f"{name}: expected an integer from 0 to 2**32 - 1, got {value}.")


def both_sides(name: str, value: Any) -> Sides:
    """Returns the members of a pair, else the same value for X and Y."""
    if not isinstance(value, tuple | list):
        return Sides(value, value)
    if len(value) != 2:
        raise ValueError(f"{name}: a pair (for X, for Y) has two members; got {len(value)}.")
    return Sides(*value)


def check_n_states(n_states: Any, kinds: Iterable[InputKind | None]) -> None:
    """Checks for None, a table size, or a pair of them; only tables have one."""
    if n_states is not None and "ids" not in kinds:
        raise ValueError("n_states: only encoder='tabular' has a table of states; leave n_states out.")
    for size in both_sides("n_states", n_states):
        if size is not None:
            check_integer("n_states", size, 2)


def input_kinds(encoder: Any) -> Sides:
    """Returns what the encoders of X and Y read; None (anything) for the user's own."""
    kinds: list[InputKind | None] = []
    for side in both_sides("encoder", encoder):
        if isinstance(side, str):
            kinds.append(ENCODERS[check_choice("encoder", side, ENCODERS)].inputs)
        elif isinstance(side, eqx.Module) or callable(side):
            kinds.append(None)
        else:
            raise TypeError(
                f"encoder: expected one of {', '.join(map(repr, ENCODERS))}, an Equinox module, a function "
                f"(key, shape, k) -> module, or a pair of these; got {side!r}."
            )
    return Sides(*kinds)


def check_network(name: str, network: Any, spec: InputSpec, k: int) -> None:
    """Checks that the user's module maps one observation to k floats and can be trained."""
    example = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
    described = f"of shape {example.shape} and type {example.dtype}"
    out = eval_network(name, network, example, described, "rows, without a batch axis")
    if getattr(out, "shape", None) != (k,) or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(f"{name}: the module must return k = {k} floats, shape ({k},); got {out}.")


def eval_network(name: str, network: Any, example: Any, described: str, unit: str) -> Any:
    """Returns the shape of the user's module's output for one observation; there must be something to train."""
    try:
        out = eqx.filter_eval_shape(network, example)
    except Exception as error:
        failed = f"{name}: the module failed on one observation {described}: {error}"
        raise ValueError(f"{failed}. It is called on single {unit}.") from error
    if not any(jax.tree.leaves(trainable_mask(network))):
        raise ValueError(f"{name}: the module has no floating-point arrays, so there is nothing to train.")
    return out


# --- arrays --------------------------------------------------------------------------------------------------------


def convert_rows(name: str, rows: Any) -> Any:
    """Converts what NumPy cannot read: tensors that require gradients are detached, bfloat16 becomes float32.

    Strings are refused. Everything else is returned as it is.
    """
    if hasattr(rows, "detach") and hasattr(rows, "requires_grad"):  # torch need not be installed
        rows = rows.detach()
        rows = np.asarray(rows.cpu() if hasattr(rows, "cpu") else rows)
    dtype = getattr(rows, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "V" and jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(rows).astype(np.float32)
    kind = getattr(dtype, "kind", "O")
    if kind in "USTO" and not scipy.sparse.issparse(rows) and _has_strings(rows):
        fix = f"np.unique({name}, return_inverse=True)[1] (DeRex reads ids with encoder='tabular')"
        raise ValueError(f"{name}: strings are not supported. Encode them as integer ids: {fix}.")
    return rows


def _has_strings(rows: Any) -> bool:
    try:
        array = np.asarray(rows)
    except ValueError:  # ragged: refused later, with its name
        return False
    return array.dtype.kind in "UST" or (
        array.dtype.kind == "O" and any(isinstance(value, str | bytes) for value in array.flat)
    )


def check_rows(name: str, rows: Any, kind: InputKind | None) -> np.ndarray:
    """Checks for an array of observations with finite values and the rank its encoder reads; copies no memory map."""
    if scipy.sparse.issparse(rows):
        raise TypeError(f"{name}: sparse matrices are not supported; pass a dense array: {name}.toarray().")
    array = check_numeric(name, rows)
    if array.ndim == 0 or array.size == 0:
        raise ValueError(f"{name}: expected at least one row with some value, got shape {array.shape}.")
    checked = CHECKS[kind](name, array)
    if checked.dtype.kind == "f":
        check_finite(name, checked)
    return checked


def check_numeric(name: str, rows: Any) -> np.ndarray:
    """Checks for an array of booleans, integers or floats."""
    array = rows if isinstance(rows, np.ndarray) else np.asarray(rows)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected numbers, got an array of dtype {array.dtype}.")
    return array


def _check_ids(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        fix = "For vectors use encoder='mlp', for images encoder='conv'."
        raise ValueError(
            f"{name}: encoder='tabular' reads integer ids of shape (n,), got {array.shape}. {fix}"
        )
    if array.dtype.kind == "f":
        check_finite(name, array)
        broken = np.flatnonzero((array != np.round(array)) | (np.abs(array) > MAX_INTEGER))
        if len(broken):
            came = f"{array[broken[0]]} in row {broken[0]}"
            raise ValueError(f"{name}: encoder='tabular' reads integer ids, got {came}. For vectors: 'mlp'.")
    return array if array.dtype.kind in "iu" else array.astype(np.int64)


def _check_vectors(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        fix = f"For images use encoder='conv', or flatten: {name}.reshape(len({name}), -1)."
        raise ValueError(f"{name}: expected vectors of shape (n, features), got shape {array.shape}. {fix}")
    return array


def _check_images(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim != 4:
        expected = "encoder='conv' reads images of shape (n, height, width, channels)"
        raise ValueError(f"{name}: {expected}, got {array.shape}. For grey images: {name}[..., None].")
    return array


def check_32_bits(name: str, array: np.ndarray) -> np.ndarray:
    """Checks that no integer is too large for 32 bits."""
    least, largest = min_max(array) if array.dtype.kind in "iu" else (0, 0)
    if least < -MAX_INTEGER or largest > MAX_INTEGER:
        came = f"integers are read in 32 bits, got values from {least} to {largest}"
        raise ValueError(f"{name}: {came}. Rescale them, or pass floats: {name}.astype(np.float32).")
    return array


CHECKS: dict[InputKind | None, Callable[[str, np.ndarray], np.ndarray]] = {
    "ids": _check_ids,
    "vectors": _check_vectors,
    "images": _check_images,
    None: check_32_bits,
}


def min_max(array: np.ndarray) -> tuple[Any, Any]:
    """Computes the smallest and largest value in one pass."""
    found = [(block.min(), block.max()) for block in iterate_blocks(array)]
    return min(least for least, _ in found), max(largest for _, largest in found)


def check_finite(name: str, array: np.ndarray) -> None:
    """Checks that no value is NaN or infinite, in the array or in single precision; the error counts them."""
    start, first, nan, infinite, largest = 0, (), 0, 0, np.finfo(np.float32).max
    for block in iterate_blocks(array):
        if not (block.min() >= -largest and block.max() <= largest):  # NaN compares false
            bad = ~(np.abs(block) <= largest)
            if not first:
                row, *rest = map(int, np.argwhere(bad)[0])
                first = (start + row, *rest)
            nan += int(np.isnan(block).sum())
            infinite += int(bad.sum()) - int(np.isnan(block).sum())
        start += len(block)
    if first:
        counts = {"NaN": nan, "infinity or values too large for single precision": infinite}
        found = " and ".join(f"{what} ({n} of {array.size} values)" for what, n in counts.items() if n)
        place = f"row {first[0]}" + (f", column {first[1]}" if len(first) == 2 else "")
        raise ValueError(f"{name}: Input contains {found}, first in {place}. Remove, impute or rescale them.")


def check_precision(name: str, array: np.ndarray) -> None:
    """Checks that single precision can hold the variation of each column (not of time stamps in seconds)."""
    total = sum(block.sum(axis=0, dtype=np.float64) for block in iterate_blocks(array))
    mean = np.asarray(total) / len(array)
    reach = np.max([np.abs(block - mean).max(axis=0) for block in iterate_blocks(array)], axis=0)
    lost = (reach > 0.0) & ((reach < MIN_REACH) | (reach < MIN_RELATIVE_REACH * np.abs(mean)))
    if lost.any():
        column = int(np.argmax(lost))
        raise ValueError(
            f"{name}: column {column} varies by {reach[column]:.3g} around {mean[column]:.3g}, which single precision "
            f"cannot hold. Centre and scale it first: ({name} - {name}.mean(axis=0)) / {name}.std(axis=0)."
        )


def check_given(y: Any, estimator: str) -> None:
    """Checks that there is a second array."""
    if y is None:  # in scikit-learn's words
        what = f"This {estimator} estimator requires y to be passed, but the target y is None"
        raise ValueError(f"{what}: row i of y is what followed row i of X.")


def check_lengths(x: np.ndarray, y: np.ndarray) -> None:
    """Checks that X and Y have as many rows."""
    if len(x) != len(y):
        came = f"{len(x)} and {len(y)}"
        raise ValueError(f"X and Y: row i of Y followed row i of X, so they need equal lengths; got {came}.")


def check_pairs(x: np.ndarray, y: np.ndarray, k: int) -> None:
    """Checks for as many rows on both sides, enough for two halves, and not all the same."""
    check_lengths(x, y)
    least = max(2 * k + 2, MIN_ROWS)
    if not least <= len(x) < 2**31:
        raise ValueError(
            f"X: got n_samples={len(x)}; two disjoint halves with more than k = {k} rows each need at least "
            f"{least} (and fewer than 2**31). Collect more transitions or use a smaller k."
        )
    for name, array in zip("XY", (x, y), strict=True):
        first = np.asarray(array[:1])
        if all(np.all(block == first) for block in iterate_blocks(array)):
            raise ValueError(f"{name}: every row is the same; a decomposition needs two that differ.")


def check_k(k: int, half: int | None, rows: Sides, specs: Sides) -> None:
    """Checks that k is less than the rows of half a batch, and (tabular) than the distinct ids on both sides.

    `half` is None for a stream: it shows its ids little by little, so k is compared with the size of the table.
    """
    if half is not None and k >= half:
        fix = f"Use batch_size >= {2 * k + 2} or a smaller k."
        raise ValueError(f"k: expected less than half the batch, {half}; got {k}. {fix}")
    for name, array, spec in zip("XY", rows, specs, strict=True):
        if spec.kind != "ids":
            continue
        if half is None and k >= spec.n_ids:
            raise ValueError(f"k: expected less than the {spec.n_ids} states of {name}, got {k}. Lower k.")
        distinct = np.count_nonzero(count_ids(array, spec.n_ids))
        if half is not None and k >= distinct:
            what = f"the number of distinct rows of {name}, {distinct}"
            raise ValueError(f"k: expected less than {what}; got {k}. Use k <= {distinct - 1}.")


def device_dtype(dtype: np.dtype, kind: InputKind | None) -> str:
    """Returns the dtype on the device: int32 for ids and own modules' integers, bytes stay bytes, else float32."""
    if kind == "ids" or (kind is None and dtype.kind in "iu" and dtype != np.uint8):
        return "int32"
    return "uint8" if dtype == np.uint8 else "float32"


def make_spec(name: str, rows: np.ndarray, kind: InputKind | None, declared: Any) -> InputSpec:
    """Makes the `InputSpec` of rows; a table has the declared size, or one past the largest id."""
    dtype = device_dtype(rows.dtype, kind)
    if kind != "ids":
        return InputSpec(tuple(rows.shape[1:]), 0, kind, dtype)
    least, largest = map(int, min_max(rows))
    if least < 0:
        raise ValueError(f"{name}: ids must be >= 0, got {least}. Number the states from 0.")
    if declared is None and largest >= MAX_TABLE:
        raise ValueError(
            f"{name}: ids up to {largest} would need a table of as many rows. Renumber them: "
            f"np.unique({name}, return_inverse=True)[1]. If such a table is meant, set n_states={largest + 1}."
        )
    if declared is not None and largest >= declared:
        expected = f"ids run from 0 to n_states - 1 = {declared - 1}"
        raise ValueError(f"{name}: {expected}, got {largest}. Fit with n_states > {largest}.")
    return InputSpec((), largest + 1 if declared is None else int(declared), kind, dtype)


def check_same_spec(name: str, now: InputSpec, then: InputSpec, like: str) -> None:
    """Checks that observations have the shape and the type that they should have."""
    if now.shape != then.shape:
        raise ValueError(f"{name}: expected observations of shape {then.shape}, {like}; got {now.shape}.")
    if now.dtype != then.dtype:
        bytes_note = (
            " Images of bytes are read as fractions of 255." if "uint8" in (now.dtype, then.dtype) else ""
        )
        raise ValueError(
            f"{name}: expected values of type {then.dtype}, {like}; got {now.dtype}. Convert them: "
            f"{name}.astype(np.{then.dtype}).{bytes_note}"
        )
