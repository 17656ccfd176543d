"""Bad input is refused here, before any training starts: what came, what was expected, how to mend it."""

import numbers
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from derex._text import hint
from derex.networks import ENCODERS, InputSpec
from derex.networks.encoders import InputKind, count_ids
from derex.networks.layers import iterate_blocks, trainable_mask

SMALLEST_REACH, FINEST = 1e-30, 1e-5  # least variation of a column, and least part of its mean
FEWEST_ROWS = 4  # two halves of two
LARGEST_ID = 2**31 - 1
LARGEST_TABLE = 2**24  # that is made without being asked for
RENUMBER = "Renumber them: np.unique({}, return_inverse=True)[1]."


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value` is one of `choices`, or an error with the nearest one."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return value
    near = hint(str(value), choices)
    raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}; got {value!r}.{near}")


def check_integer(name: str, value: Any, least: int) -> int:
    """An integer (not a bool) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r} of type {type(value).__name__}.")
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}.")
    return int(value)


def check_number(name: str, value: Any, least: float, inclusive: bool = True) -> float:
    """A finite real number above (or at) `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, got {value!r} of type {type(value).__name__}.")
    value = float(value)
    if not np.isfinite(value) or value < least or (value == least and not inclusive):
        raise ValueError(f"{name}: expected a number {'>=' if inclusive else '>'} {least}, got {value}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r} of type {type(value).__name__}.")
    return bool(value)


def check_seed(name: str, value: Any) -> None:
    """None, an integer, or NumPy's older generator, as scikit-learn takes them."""
    if value is None or value is np.random or isinstance(value, np.random.RandomState):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name}: expected None, an integer or a numpy.random.RandomState; got {value!r} of type "
            f"{type(value).__name__}. With a numpy.random.Generator: {name}=int(generator.integers(2**31))."
        )
    if not 0 <= int(value) < 2**32:
        raise ValueError(f"{name}: expected an integer from 0 to 2**32 - 1, got {value}.")


def check_n_states(n_states: Any, kinds: Iterable[InputKind | None]) -> None:
    """None, a size, or a pair of them; only tables have one."""
    if n_states is None:
        return
    if "ids" not in kinds:
        raise ValueError("n_states: only encoder='tabular' has a table of states; leave n_states out.")
    sizes = n_states if isinstance(n_states, tuple | list) else [n_states]
    if isinstance(n_states, tuple | list) and len(sizes) != 2:
        raise ValueError(f"n_states: expected an integer or a pair (for X, for Y); got {n_states!r}.")
    for size in sizes:
        if size is not None:
            check_integer("n_states", size, 2)


def encoder_sides(encoder: Any) -> tuple[Any, Any]:
    """The encoders of X and of Y: a pair is taken as it is, anything else serves both sides."""
    if isinstance(encoder, tuple | list):
        if len(encoder) != 2:
            raise ValueError(f"encoder: a pair (for X, for Y) has two members; got {len(encoder)}.")
        return encoder[0], encoder[1]
    return encoder, encoder


def input_kind(encoder: Any) -> InputKind | None:
    """What a named encoder reads; None (anything) for the user's own."""
    if isinstance(encoder, str):
        return ENCODERS[check_choice("encoder", encoder, ENCODERS)].inputs
    if isinstance(encoder, eqx.Module) or callable(encoder):
        return None
    raise TypeError(
        f"encoder: expected one of {', '.join(map(repr, ENCODERS))}, an Equinox module, a function "
        f"(key, shape, k) -> module, or a pair of these; got {encoder!r}."
    )


def in_numpy_types(rows: Any) -> Any:
    """The same rows, unless they are of a type that only JAX knows, such as bfloat16: then in single precision."""
    dtype = getattr(rows, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "V" and jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(rows).astype(np.float32)
    return rows


def check_rows(name: str, rows: Any, kind: InputKind | None) -> np.ndarray:
    """An array of observations with finite values and the rank its encoder reads. Memory maps are not copied."""
    if scipy.sparse.issparse(rows):
        raise TypeError(f"{name}: sparse matrices are not read; pass a dense array: {name}.toarray().")
    array = rows if isinstance(rows, np.ndarray) else np.asarray(rows)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected numbers, got an array of dtype {array.dtype}.")
    if array.ndim == 0 or array.size == 0:
        raise ValueError(
            f"{name}: expected at least one row with at least one value, got shape {array.shape}."
        )
    checked = CHECKS[kind](name, array)
    if checked.dtype.kind == "f":
        check_finite(name, checked)
    return checked


def _ids(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(
            f"{name}: encoder='tabular' reads integer ids of shape (n,) or (n, 1), got shape {array.shape}. "
            "For vectors use encoder='mlp', for images encoder='conv'."
        )
    if array.dtype.kind == "f":
        check_finite(name, array)
        broken = np.flatnonzero(array != np.round(array))
        if len(broken):
            raise ValueError(
                f"{name}: encoder='tabular' reads integer ids, got {array[broken[0]]} in row {broken[0]}. For vectors "
                "use encoder='mlp'."
            )
    least, largest = map(int, min_max(array))
    if least < 0:
        raise ValueError(f"{name}: ids must be >= 0, got {least}. Number the states from 0.")
    if largest > LARGEST_ID:
        raise ValueError(f"{name}: ids must be below 2**31, got {largest}. {RENUMBER.format(name)}")
    return array if array.dtype.kind in "iu" else array.astype(np.int32)


def min_max(array: np.ndarray) -> tuple[Any, Any]:
    """Smallest and largest value, in one pass."""
    found = [(block.min(), block.max()) for block in iterate_blocks(array)]
    return min(least for least, _ in found), max(largest for _, largest in found)


def _vectors(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(
            f"{name}: expected vectors of shape (n, features), got shape {array.shape}. "
            "For images use encoder='conv', or flatten: X.reshape(len(X), -1)."
        )
    return array


def _images(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim != 4:
        raise ValueError(
            f"{name}: encoder='conv' reads images of shape (n, height, width, channels), got shape {array.shape}. "
            "For grey images add a last axis: X[..., None]."
        )
    return array


def _anything(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "iu":
        check_integers(name, array)
    return array


def check_integers(name: str, array: np.ndarray) -> None:
    """No integer is too large for 32 bits."""
    least, largest = min_max(array)
    if least < -LARGEST_ID or largest > LARGEST_ID:
        raise ValueError(
            f"{name}: integers are read in 32 bits, got values from {least} to {largest}. Rescale them, or pass "
            f"floats: {name}.astype(np.float32)."
        )


CHECKS: dict[InputKind | None, Callable[[str, np.ndarray], np.ndarray]] = {
    "ids": _ids,
    "vectors": _vectors,
    "images": _images,
    None: _anything,
}


def check_finite(name: str, array: np.ndarray) -> None:
    """No NaN or infinity anywhere, nor anything that becomes infinite in single precision."""
    start, largest = 0, np.finfo(np.float32).max
    for block in iterate_blocks(array):
        if not (block.min() >= -largest and block.max() <= largest):  # NaN compares false
            row = start + int(np.argwhere(~(np.abs(block) <= largest))[0][0])
            raise ValueError(
                f"{name}: Input contains NaN, infinity or a value too large for single precision, first in row {row}. "
                "Remove, impute or rescale such rows first."
            )
        start += len(block)


def check_precision(name: str, array: np.ndarray) -> None:
    """Columns whose variation single precision cannot hold, such as time stamps in seconds, are refused."""
    mean = np.asarray(sum(block.sum(axis=0, dtype=np.float64) for block in iterate_blocks(array))) / len(
        array
    )
    reach = np.max([np.abs(block - mean).max(axis=0) for block in iterate_blocks(array)], axis=0)
    lost = (reach > 0.0) & ((reach < SMALLEST_REACH) | (reach < FINEST * np.abs(mean)))
    if lost.any():
        column = int(np.argmax(lost))
        raise ValueError(
            f"{name}: column {column} varies by {reach[column]:.3g} around {mean[column]:.3g}, which single precision "
            f"cannot hold. Centre and scale it first: ({name} - {name}.mean(axis=0)) / {name}.std(axis=0)."
        )


def check_varies(name: str, array: np.ndarray) -> None:
    """A constant input has no decomposition."""
    first = np.asarray(array[:1])
    if all(np.all(block == first) for block in iterate_blocks(array)):
        raise ValueError(f"{name}: every row is the same; a decomposition needs at least two different rows.")


def check_given(y: Any, estimator: str) -> None:
    """There is a second array at all."""
    if y is None:
        raise ValueError(
            f"This {estimator} estimator requires y to be passed, but the target y is None: row i of y is what "
            "followed row i of X."
        )


def check_lengths(x: np.ndarray, y: np.ndarray) -> None:
    """Row i of X goes with row i of Y."""
    if len(x) != len(y):
        raise ValueError(
            f"X and Y: row i of Y is the successor of row i of X, so they need equal lengths; "
            f"got {len(x)} and {len(y)}."
        )


def check_pairs(x: np.ndarray, y: np.ndarray, k: int) -> None:
    """As many rows on both sides, enough for two halves, and not all the same."""
    check_lengths(x, y)
    if not max(2 * k + 2, FEWEST_ROWS) <= len(x) < 2**31:
        raise ValueError(
            f"X: got n_samples={len(x)}; two disjoint halves with more than k = {k} rows each need at least "
            f"{max(2 * k + 2, FEWEST_ROWS)} (and fewer than 2**31). Collect more transitions or use a smaller k."
        )
    check_varies("X", x)
    check_varies("Y", y)


def check_k(k: int, half: int, sides: Iterable[tuple[str, np.ndarray, InputSpec]]) -> None:
    """k features need more than k rows in a half, and (tabular) more than k distinct ids on both sides."""
    if k >= half:
        raise ValueError(
            f"k: expected less than half the batch, {half}; got {k}. Use batch_size >= {2 * k + 2} or a smaller k."
        )
    for name, array, spec in sides:
        distinct = np.count_nonzero(count_ids(array, spec.n_ids)) if spec.kind == "ids" else k + 1
        if k >= distinct:
            raise ValueError(
                f"k: expected less than the number of distinct rows of {name}, {distinct}; got {k}. Use k <= "
                f"{distinct - 1}."
            )


def check_table_k(k: int, specs: Iterable[InputSpec]) -> None:
    """A stream shows its ids little by little; the size of the table bounds k."""
    for name, spec in zip("XY", specs, strict=True):
        if spec.n_ids and k >= spec.n_ids:
            raise ValueError(
                f"k: expected less than the {spec.n_ids} states of {name}, got {k}. Use a smaller k."
            )


def table_size(name: str, ids: np.ndarray, declared: int | None) -> int:
    """Size of a tabular encoder's table: as declared, or one past the largest id."""
    largest = int(min_max(ids)[1])
    if declared is None and largest >= LARGEST_TABLE:
        raise ValueError(
            f"{name}: ids up to {largest} would need a table of as many rows. {RENUMBER.format(name)} If the table is "
            f"meant, say n_states={largest + 1}."
        )
    if declared is not None and largest >= declared:
        raise ValueError(
            f"{name}: ids run from 0 to n_states - 1 = {declared - 1}, got {largest}. Raise n_states."
        )
    return largest + 1 if declared is None else declared


def check_like_fitted(name: str, array: np.ndarray, spec: InputSpec, estimator: str) -> None:
    """Observations have the shape and type, and ids the range, that the model was fitted on."""
    if array.shape[1:] != spec.shape:
        if len(spec.shape) == 1 and array.ndim == 2:
            raise ValueError(
                f"{name} has {array.shape[1]} features, but {estimator} is expecting {spec.shape[0]} features as input."
            )
        raise ValueError(f"{name}: expected rows of shape {spec.shape}, as in fit; got {array.shape[1:]}.")
    dtype = device_dtype(array.dtype, spec.kind)
    if (
        dtype != spec.dtype and spec.kind != "vectors"
    ):  # vectors are rescaled by their values, whatever their type
        raise ValueError(
            f"{name}: the model was fitted on values of type {spec.dtype}, got {array.dtype}. Convert them as for fit; "
            "images of bytes are read as fractions of 255, others as they are."
        )
    largest = int(min_max(array)[1]) if spec.n_ids else 0
    if spec.n_ids and largest >= spec.n_ids:
        raise ValueError(
            f"{name}: ids run from 0 to {spec.n_ids - 1}, got {largest}. Fit with n_states > {largest} to leave room "
            "for states not yet seen."
        )


def check_network(name: str, network: Any, spec: InputSpec, k: int) -> None:
    """The user's module maps one observation to k numbers and has something to train."""
    example = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
    try:
        out = eqx.filter_eval_shape(network, example)
    except Exception as error:
        raise ValueError(
            f"{name}: the module failed on one observation of shape {example.shape} and type {example.dtype}: "
            f"{error}. It is called on single rows, without a batch axis."
        ) from error
    if getattr(out, "shape", None) != (k,) or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"{name}: the module must return k = {k} floats, shape ({k},); got {getattr(out, 'shape', out)} "
            f"{getattr(out, 'dtype', '')}."
        )
    if not any(jax.tree.leaves(trainable_mask(network))):
        raise ValueError(f"{name}: the module has no floating-point arrays, so there is nothing to train.")


def device_dtype(dtype: np.dtype, kind: InputKind | None) -> str:
    """Ids, and integers for the user's own modules, take 32 bits; bytes stay bytes; all else is in single precision."""
    if kind == "ids" or (kind is None and dtype.kind in "iu" and dtype != np.uint8):
        return "int32"
    return "uint8" if dtype == np.uint8 else "float32"
