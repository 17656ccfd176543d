"""What --quick does to a study: fields with two defaults. What the user gives wins, though it be equal to one."""

from dataclasses import fields, replace
from typing import Any, TypeVar

Value = TypeVar("Value")
Study = TypeVar("Study")


class _Default:
    """Mixed into the type of a value, so that the default can be told from an equal value that was given."""

    full: Any
    quick: Any


class _Number(_Default, int): ...


class _Several(_Default, tuple): ...


def either(full: Value, *, quick: Value) -> Value:
    """The default of a study's field, an integer or a tuple: `full`, or `quick` with --quick."""
    given: Any = full
    default: Any = _Number(given) if isinstance(given, int) else _Several(given)
    default.full, default.quick = full, quick
    return default


def resolved(study: Study) -> Study:
    """The study as it is run, in plain values: the user's, and defaults by its `quick` where none were given."""
    given: Any = study
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    defaults = {name: value for name, value in values.items() if isinstance(value, _Default)}
    chosen = {name: value.quick if given.quick else value.full for name, value in defaults.items()}
    return replace(given, **chosen)
