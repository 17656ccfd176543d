"""The suite `fakes-many`: the tasks of `pretend_tasks`, stepped many at once."""

import importlib
from typing import Any

_tasks: Any = importlib.import_module("pretend_tasks")
make = _tasks.make


def make_many(name: str, n: int, seed: int) -> Any:
    return _tasks.ManyFakes(name, n)
