"""Options are of the types that their dataclasses say: a config.json may have been edited, a caller may be mistaken.

Without it `streams = 8.0` fails far from its cause, or not at all.
"""

from __future__ import annotations

import numbers
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

_NUMBERS = {
    int: numbers.Integral,
    float: numbers.Real,
}  # a whole number will do for a float; numpy's count too
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
    type(None): "none",
}


def check_types(options: Any, prefix: str = "") -> None:
    """Refuses a dataclass, and those inside of it, with a value of another type than its field says."""
    for name, value in _values(options).items():
        check_type(type(options), name, value, prefix)
        if is_dataclass(value):
            check_types(value, f"{prefix}{name}.")


def check_type(owner: type, name: str, value: Any, prefix: str = "") -> None:
    """Refuses a value that is not what the field `name` of the dataclass `owner` is said to be."""
    expected = _hints(owner).get(name, Any)
    if not fits(value, expected):
        raise ValueError(f"{prefix}{name}: expected {_words(expected)}, got {value!r}.")


def fits(value: Any, expected: Any) -> bool:
    """Whether a value is of a type, as far as that can be told; a type that is not understood takes anything."""
    origin, inside = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Annotated:
        return fits(value, inside[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inside)
    if origin is typing.Literal:
        return value in inside
    if origin is tuple and inside[1:] == (...,):
        return isinstance(value, tuple) and all(fits(part, inside[0]) for part in value)
    if expected in _NUMBERS:
        return isinstance(value, _NUMBERS[expected]) and not isinstance(value, bool)
    if is_dataclass(expected):
        return is_dataclass(value)  # which one is for others to say
    return expected is Any or not isinstance(expected, type) or isinstance(value, expected)


def _values(options: Any) -> dict[str, Any]:
    return {part.name: getattr(options, part.name) for part in fields(options)}


def _hints(owner: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(owner)
    except (
        NameError,
        TypeError,
        AttributeError,
    ):  # somebody's own, with names that only a type checker knows
        return {}


def _words(expected: Any) -> str:
    inside = typing.get_args(expected)
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        words = [_words(one) for one in inside if not (one is int and float in inside)]
        return " or ".join(words)
    plain = typing.get_origin(expected) or expected
    return _WORDS.get(plain, getattr(plain, "__name__", str(plain)))
