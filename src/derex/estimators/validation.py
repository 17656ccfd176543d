"""Bad input is refused here, before any training starts: what came, what was expected, how to mend it."""

import difflib
import numbers
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from derex.networks import ENCODERS, InputSpec
from derex.networks.encoders import InputKind
from derex.networks.fixed import blocks

FEWEST_ROWS = 4  # two halves of two


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value` is one of `choices`, or an error with the nearest one."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}; got {value!r}.{hint}")


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


def check_rows(name: str, rows: Any, kind: InputKind | None) -> np.ndarray:
    """An array of observations with finite values and the rank its encoder reads. Memory maps are not copied."""
    array = rows if isinstance(rows, np.ndarray) else np.asarray(rows)
    if array.dtype == object or array.dtype.kind not in "biuf":
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
    if array.dtype.kind == "f" and not np.array_equal(array, np.round(array)):
        raise ValueError(f"{name}: encoder='tabular' reads integer ids, got values such as {array[0]!r}.")
    if array.min() < 0:
        raise ValueError(f"{name}: ids must be >= 0, got {array.min()}.")
    if array.max() >= 2**31:
        raise ValueError(f"{name}: ids must be below 2**31, got {array.max()}.")
    return array.astype(np.int32)


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


CHECKS: dict[InputKind | None, Callable[[str, np.ndarray], np.ndarray]] = {
    "ids": _ids,
    "vectors": _vectors,
    "images": _images,
    None: lambda _, array: array,
}


def check_finite(name: str, array: np.ndarray) -> None:
    """No NaN or infinity anywhere."""
    start = 0
    for block in blocks(array):
        if not np.isfinite(np.sum(block, dtype=np.float64)):
            bad = np.argwhere(~np.isfinite(block))
            if len(bad):
                row = start + int(bad[0][0])
                raise ValueError(
                    f"{name}: Input contains NaN or infinity, first in row {row}. Remove or impute such rows first."
                )
        start += len(block)


def check_varies(name: str, array: np.ndarray) -> None:
    """A constant input has no decomposition."""
    first = np.asarray(array[:1])
    if all(np.all(block == first) for block in blocks(array)):
        raise ValueError(f"{name}: every row is the same; a decomposition needs at least two different rows.")


def check_pairs(x: np.ndarray, y: np.ndarray) -> None:
    """Row i of X goes with row i of Y, and there are enough of them."""
    if len(x) != len(y):
        raise ValueError(
            f"X and Y: row i of Y is the successor of row i of X, so they need equal lengths; "
            f"got {len(x)} and {len(y)}."
        )
    if len(x) < FEWEST_ROWS:
        raise ValueError(
            f"X: got n_samples={len(x)}; two halves need at least {FEWEST_ROWS} rows. Collect more transitions."
        )
    check_varies("X", x)
    check_varies("Y", y)


def check_k(k: int, half: int, sides: Iterable[tuple[str, np.ndarray, InputKind | None]]) -> None:
    """k features need more than k rows in a half, and (tabular) more than k distinct ids on both sides."""
    if k >= half:
        raise ValueError(
            f"k: expected less than half the batch, {half}; got {k}. Use batch_size >= {2 * k + 2} or a smaller k."
        )
    for name, array, kind in sides:
        distinct = len(np.unique(array)) if kind == "ids" else k + 1
        if k >= distinct:
            raise ValueError(
                f"k: expected less than the number of distinct rows of {name}, {distinct}; got {k}. Use k <= "
                f"{distinct - 1}."
            )


def table_size(name: str, ids: np.ndarray, declared: int | None) -> int:
    """Size of a tabular encoder's table: as declared, or one past the largest id."""
    largest = int(ids.max())
    if declared is None:
        return largest + 1
    if largest >= declared:
        raise ValueError(
            f"{name}: ids run from 0 to n_states - 1 = {declared - 1}, got {largest}. Raise n_states."
        )
    return declared


def check_like_fitted(name: str, array: np.ndarray, spec: InputSpec, estimator: str) -> None:
    """Observations have the shape, and ids the range, that the model was fitted on."""
    if spec.n_ids and int(array.max()) >= spec.n_ids:
        raise ValueError(
            f"{name}: ids run from 0 to {spec.n_ids - 1}, got {int(array.max())}. Fit with n_states > "
            f"{int(array.max())} to leave room for states not yet seen."
        )
    if array.shape[1:] == spec.shape:
        return
    if len(spec.shape) == 1 and array.ndim == 2:
        raise ValueError(
            f"{name} has {array.shape[1]} features, but {estimator} is expecting {spec.shape[0]} features as input."
        )
    raise ValueError(f"{name}: expected rows of shape {spec.shape}, as in fit; got {array.shape[1:]}.")


def check_network(name: str, network: Any, rows: np.ndarray, k: int) -> None:
    """The user's module maps one observation to k numbers."""
    example = jax.ShapeDtypeStruct(rows.shape[1:], as_device_dtype(rows.dtype))
    try:
        out = eqx.filter_eval_shape(network, example)
    except Exception as error:
        raise ValueError(
            f"{name}: the module failed on one observation of shape {example.shape}: {error}. "
            "It is called on single rows, without a batch axis."
        ) from error
    if getattr(out, "shape", None) != (k,):
        raise ValueError(
            f"{name}: the module must return shape ({k},) = (k,), got {getattr(out, 'shape', out)}."
        )


def as_device_dtype(dtype: np.dtype) -> np.dtype:
    """Bytes stay bytes and ids 32-bit integers; everything else is computed in single precision."""
    if dtype == np.uint8 or dtype == np.int32:
        return dtype
    return np.dtype(np.float32)
