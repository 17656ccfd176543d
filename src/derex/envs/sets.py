"""Many tasks under one name: the sets that people compare on, and any list `a,b,c`.

tasks_of("babyai-8")            the eight names in it
tasks_of("catch,deep-sea-8")    ("catch", "deep-sea-8")
tasks_of("catch")               ("catch",)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

BABYAI = (
    "GoToObj",
    "GoToLocal",
    "PickupLoc",
    "OpenDoor",
    "UnlockPickup",
    "PutNextLocal",
    "KeyInBox",
    "SynthS5R2",
)
NOT_OF_ENVPOOL = ("SynthS5R2",)  # hangs there: derex.envs.suites.envpool.HANGING


class TaskSet(NamedTuple):
    """Tasks that go together."""

    summary: str
    tasks: Callable[[], tuple[str, ...]]
    """their names; what they are imported from is imported late"""
    suffix: bool = False
    """whether what is written behind an @ goes behind every task's name"""


def _babyai() -> tuple[str, ...]:
    return tuple(f"babyai:BabyAI-{level}-v0" for level in BABYAI)


def _babyai_envpool() -> tuple[str, ...]:
    suites = ("babyai" if level in NOT_OF_ENVPOOL else "envpool" for level in BABYAI)
    return tuple(f"{suite}:BabyAI-{level}-v0" for suite, level in zip(suites, BABYAI, strict=True))


def _dmlab30() -> tuple[str, ...]:
    levels = importlib.import_module("derex.envs.suites.dmlab_levels").training_levels()
    return tuple(f"dmlab:{level}" for level in levels)


def _dmlab30_test() -> tuple[str, ...]:
    levels = importlib.import_module("derex.envs.suites.dmlab_levels").held_out_levels()
    return tuple(f"dmlab:{level}" for level in levels)


def _hard8() -> tuple[str, ...]:
    return tuple(f"hard8:{level}" for level in importlib.import_module("derex.envs.suites.hard8").LEVELS)


SETS: dict[str, TaskSet] = {
    "babyai-8": TaskSet("eight levels of BabyAI, one room to several, told in words", _babyai),
    "babyai-8-envpool": TaskSet(
        "the same, seven of them stepped many times faster by envpool", _babyai_envpool
    ),
    "dmlab30": TaskSet("the 30 levels of DMLab-30, to train on; dmlab30@9: with 9 actions", _dmlab30, True),
    "dmlab30-test": TaskSet(
        "the same, the held-out ones where there are, to score under", _dmlab30_test, True
    ),
    "hard8": TaskSet("the eight levels of DM-Hard-8; hard8@host:port", _hard8, True),
}


def tasks_of(name: str) -> tuple[str, ...]:
    """The names of single tasks that a name stands for; one that is neither a set nor a list stands for itself.

    Args:
        name: a task, a set of `SETS`, or a list of both with commas between.
    """
    items = [item.strip() for item in name.split(",")]
    if items == [""]:
        raise ValueError("name: expected the name of an environment, such as 'catch'; got none.")
    if not all(items):
        raise ValueError(
            f"name: {name!r} has a comma with nothing before or behind it; expected names with commas between, such as "
            "'catch,deep-sea-8'."
        )
    tasks = tuple(task for item in items for task in _expanded(item))
    repeated = sorted({task for task in tasks if tasks.count(task) > 1})
    if repeated:
        raise ValueError(
            f"name: {name!r} has {', '.join(repeated)} more than once; every task has the same number of streams, so "
            "name each once."
        )
    return tasks


def _expanded(item: str) -> tuple[str, ...]:
    name, at, suffix = item.partition("@")
    if name not in SETS:
        return (item,)
    found = SETS[name]
    if at and not (found.suffix and suffix):
        raise ValueError(f"name: {item!r} has {at + suffix!r} behind it, expected {name!r} alone.")
    return tuple(f"{task}{at}{suffix}" for task in found.tasks())
