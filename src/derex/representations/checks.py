"""Options of representations, refused where they make no sense: by their whole names, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LARGEST_COUNT = 1 << 20


def check(name: str, value: Any, good: bool, expected: str) -> None:
    """Raises `ValueError` unless it is good; `name` is that within the representation."""
    if not good:
        raise ValueError(f"representation.{name}: expected {expected}; got {value!r}.")


@contextmanager
def named(prefix: str) -> Iterator[None]:
    """What is refused inside, by its name alone, is named within the representation."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"representation.{prefix}{error}") from error


def check_counts(prefix: str, **values: int) -> None:
    """Whole numbers of something that there has to be."""
    for name, value in values.items():
        check(
            f"{prefix}{name}", value, 1 <= value <= LARGEST_COUNT, f"at least 1 and at most {LARGEST_COUNT}"
        )


def check_weights(prefix: str, **values: float) -> None:
    """How much something counts."""
    for name, value in values.items():
        check(f"{prefix}{name}", value, 0.0 <= value < math.inf, "a finite number, 0 or more")


def check_positive(prefix: str, **values: float) -> None:
    """What is divided by, or stepped with."""
    for name, value in values.items():
        check(f"{prefix}{name}", value, 0.0 < value < math.inf, "a finite number above 0")
