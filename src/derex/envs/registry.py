"""Environments by name: `make("rooms-chain-8")`, and `make("gymnax:CartPole-v1")` for those of suites.

A suite is a module of `derex.envs.suites`, imported on first use, and an entry of `SUITES`. A name may stand for
several tasks: a set of `SETS`, or a list with commas.

    expand_tasks("babyai-8")            the eight names in it
    expand_tasks("catch,deep-sea-8")    ("catch", "deep-sea-8")
    expand_tasks("catch")               ("catch",)
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from derex._text import closest_match, hint
from derex.envs.control import CartPole, Pendulum, PointMass
from derex.envs.diagnostic import Catch, DeepSea, Recall
from derex.envs.grid.four_rooms import FourRooms, FourRoomsHidden, FourRoomsPixels
from derex.envs.grid.rooms import HiddenRoomsChain, KeyRooms, RoomsChain
from derex.envs.interface import Environment, HostEnvironment


class _Entry(NamedTuple):
    """A built-in environment; `N` or `L` in its pattern stands for a number, the argument of `build`."""

    build: Callable[..., Environment]
    summary: str
    smallest: int = 0
    largest: int = 0
    """bounds of the number: tables grow with it"""
    usual: int = 0
    """number of the example"""


class EnvironmentInfo(NamedTuple):
    """A built-in environment, for lists."""

    pattern: str
    """its name, in which N and L stand for a number"""
    summary: str
    example: str
    """a name for `make`"""


_ENTRIES: dict[str, _Entry] = {
    "rooms-chain-N": _Entry(RoomsChain, "N rooms in a row, one reward behind the last", 1, 1000, 8),
    "rooms-chain-N-hidden": _Entry(
        HiddenRoomsChain, "the same with new doors each time, seen from near", 1, 1000, 8
    ),
    "four-rooms": _Entry(FourRooms, "from one corner of four rooms to the opposite one"),
    "four-rooms-pixels": _Entry(FourRoomsPixels, "the same, seen as a picture"),
    "four-rooms-hidden": _Entry(FourRoomsHidden, "the same, the agent hidden in half of the pictures"),
    "key-rooms-N": _Entry(KeyRooms, "N keys open the doors of rooms in a row, one by one", 1, 11, 3),
    "deep-sea-N": _Entry(DeepSea, "one of 2^N dives finds the treasure", 2, 200, 20),
    "catch": _Entry(Catch, "move a paddle under a falling ball"),
    "cartpole": _Entry(CartPole, "balance a pole on a cart"),
    "recall-L": _Entry(Recall, "name a cue that was shown L steps ago", 0, 10_000, 20),
    "pendulum": _Entry(Pendulum, "swing up a pendulum with a weak motor"),
    "point-mass": _Entry(PointMass, "bring a mass to rest on a target"),
}


class Suite(NamedTuple):
    """Environments of another package."""

    module: str
    """of derex, with `make(name)` for the name after the colon"""
    extra: str
    """extra of derex that installs it; empty if pip cannot"""
    summary: str
    example: str
    host: bool
    """whether its environments are non-JAX and are stepped in worker processes"""
    package: str = ""
    """to import; empty: the name of the suite"""
    threads: bool = False
    """whether it has vector environments, stepped by threads of the training process (`make_many`)"""
    besides: tuple[str, ...] = ()
    """other packages to import that the first does not install"""


def _in_derex(module: str, *fields: Any, **more: Any) -> Suite:
    return Suite(f"derex.envs.suites.{module}", *fields, **more)


SUITES: dict[str, Suite] = {
    "jax": Suite("derex.envs.suites", "", "one of your own, in JAX", "jax:package.module:Class", False),
    "gymnax": _in_derex(
        "gymnax", "gymnax", "bsuite, MinAtar, classic control", "gymnax:DeepSea-bsuite", False
    ),
    "xminigrid": _in_derex(
        "xminigrid", "xminigrid", "grid worlds, fast", "xminigrid:MiniGrid-DoorKey-8x8", False
    ),
    "navix": _in_derex("navix", "navix", "MiniGrid's tasks in JAX", "navix:Navix-KeyCorridorS6R3-v0", False),
    "craftax": _in_derex(
        "craftax", "craftax", "survive, build, explore", "craftax:Craftax-Classic-Symbolic-v1", False
    ),
    "gymnasium": _in_derex(
        "gymnasium", "gymnasium", "whatever is registered there", "gymnasium:CartPole-v1", True
    ),
    "minigrid": _in_derex(
        "minigrid", "minigrid", "grid worlds with a mission", "minigrid:MiniGrid-DoorKey-8x8-v0", True
    ),
    "babyai": _in_derex(
        "minigrid", "minigrid", "instructions in plain words", "babyai:BabyAI-GoToObj-v0", True, "minigrid"
    ),
    "envpool": _in_derex(
        "envpool", "envpool", "many suites, many at once", "envpool:BabyAI-GoToObj-v0", True, threads=True
    ),
    "vizdoom": _in_derex("vizdoom", "vizdoom", "first-person 3-D", "vizdoom:VizdoomMyWayHome-v1", True),
    "atari": _in_derex(
        "atari",
        "atari",
        "Atari 2600",
        "atari:ALE/MontezumaRevenge-v5",
        True,
        "ale_py",
        besides=("gymnasium",),
    ),
    "dm_env": _in_derex(
        "dm_env", "dm-env", "any function that returns one", "dm_env:package.module:function", True
    ),
    "dmlab": _in_derex(
        "dmlab", "", "DeepMind Lab, built from source", "dmlab:rooms_watermaze", True, "deepmind_lab"
    ),
    "hard8": _in_derex(
        "hard8", "hard8", "DM-Hard-8, from its container", "hard8:throw_across", True, "dm_env_rpc"
    ),
}


def names() -> tuple[str, ...]:
    """Names of the built-in environments; N and L stand for a number, as in "rooms-chain-8"."""
    return tuple(_ENTRIES)


def builtin_environments() -> tuple[EnvironmentInfo, ...]:
    """The built-in environments, each with a summary and an example."""
    return tuple(
        EnvironmentInfo(pattern, entry.summary, re.sub(r"(?<=-)[NL]\b", str(entry.usual), pattern))
        for pattern, entry in _ENTRIES.items()
    )


def suite_names(suite: str) -> list[str]:
    """Full names of a suite's environments; empty if the suite has no list."""
    entry, _ = _suite(f"{suite}:")
    start = f"{suite}:"
    found = [start + name for name in importlib.import_module(entry.module).names()]
    # Two suites may share a module, which then lists the names of both; the examples tell them apart.
    family = entry.example[: len(start)] + re.split(r"[-/]", entry.example[len(start) :])[0]
    shared = sum(other.module == entry.module for other in SUITES.values()) > 1
    return [name for name in found if name.startswith(family)] if shared else found


def is_installed(suite: str) -> bool:
    """Whether the packages of the suite are installed; imports nothing."""
    found = SUITES[suite]
    return all(
        importlib.util.find_spec(name) is not None for name in (found.package or suite, *found.besides)
    )


def imports_user_code(name: str) -> bool:
    """Whether making one of the tasks imports a module given in the name."""
    return any(
        suite in ("jax", "dm_env") or (suite == "gymnasium" and ":" in rest)
        for suite, _, rest in (task.partition(":") for task in expand_tasks(name))
    )


def is_host(name: str) -> bool:
    """Whether the environment of that name is non-JAX, stepped in worker processes."""
    suite = SUITES.get(name.partition(":")[0])
    return suite is not None and suite.host


def make(name: str) -> Environment:
    """Makes the JAX environment of that name; see `names`. For several: `derex.envs.multitask.multi_task`.

    Args:
        name: e.g. "four-rooms" or, with a number in place of N, "rooms-chain-8", or "suite:name in the suite".
    """
    if len(expand_tasks(name)) > 1:
        raise ValueError(
            f"name: {name!r} is several tasks, expected one. Make each of expand_tasks({name!r})."
        )
    if ":" in name:
        suite, rest = _suite(name)
        if suite.host:
            raise ValueError(f"name: {name!r} is a non-JAX environment. Use make_host.")
        return importlib.import_module(suite.module).make(rest)
    for pattern, entry in _ENTRIES.items():
        expression = re.sub(r"(?<=-)[NL]\b", r"(\\d+)", pattern)
        found = re.fullmatch(expression, name)
        if found:
            return entry.build(*(_checked(name, pattern, entry, int(number)) for number in found.groups()))
    known = ", ".join([*names(), *SETS])
    raise ValueError(f"name: there is no environment {name!r}.{_nearest(name)} Known: {known}.")


def make_host(name: str) -> HostEnvironment:
    """Makes the non-JAX environment of that name."""
    suite, rest = _suite(name)
    if not suite.host:
        raise ValueError(f"name: {name!r} is a JAX environment. Use make.")
    return importlib.import_module(suite.module).make(rest)


def _suite(name: str) -> tuple[Suite, str]:
    prefix, _, rest = name.partition(":")
    if prefix in SUITES:
        return SUITES[prefix], rest
    raise ValueError(f"name: there is no suite {prefix!r}.{hint(prefix, SUITES)} Known: {', '.join(SUITES)}.")


def _checked(name: str, pattern: str, entry: _Entry, number: int) -> int:
    if not entry.smallest <= number <= entry.largest:
        raise ValueError(
            f"name: {name!r} has the number {number} in {pattern!r}, expected {entry.smallest} to {entry.largest}."
        )
    return number


def _nearest(name: str) -> str:
    """A hint with the most similar known name, its number kept; empty if none is similar."""
    numbers = re.findall(r"\d+", name)
    close = closest_match(name, SETS, cutoff=0.8) or closest_match(re.sub(r"\d+", "N", name), names())
    if close is None:
        return ""
    suggestion = re.sub(r"(?<=-)[NL]\b", numbers[0], close) if numbers else close
    return f" Did you mean {suggestion!r}?"


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
    """returns their names; imports the suite on first use"""
    suffix: bool = False
    """whether a suffix after @ is appended to every task's name"""


def _babyai() -> tuple[str, ...]:
    return tuple(f"babyai:BabyAI-{level}-v0" for level in BABYAI)


def _babyai_envpool() -> tuple[str, ...]:
    suites = ("babyai" if level in NOT_OF_ENVPOOL else "envpool" for level in BABYAI)
    return tuple(f"{suite}:BabyAI-{level}-v0" for suite, level in zip(suites, BABYAI, strict=True))


def _dmlab30() -> tuple[str, ...]:
    levels = importlib.import_module("derex.envs.suites.dmlab").training_levels()
    return tuple(f"dmlab:{level}" for level in levels)


def _dmlab30_test() -> tuple[str, ...]:
    levels = importlib.import_module("derex.envs.suites.dmlab").held_out_levels()
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


def expand_tasks(name: str) -> tuple[str, ...]:
    """The names of the single tasks that a name stands for; a single task stands for itself.

    Args:
        name: a task, a set of `SETS`, or a list of both with commas between.
    """
    items = [item.strip() for item in name.split(",")]
    if items == [""]:
        raise ValueError("name: expected the name of an environment, such as 'catch'; got none.")
    if not all(items):
        raise ValueError(
            f"name: {name!r} has an empty item; expected names with commas between, such as "
            "'catch,deep-sea-8'."
        )
    tasks = tuple(task for item in items for task in _expanded(item))
    repeated = sorted({task for task in tasks if tasks.count(task) > 1})
    if repeated:
        raise ValueError(
            f"name: {name!r} has {', '.join(repeated)} more than once; every task has the same number of streams, so "
            "give each once."
        )
    return tasks


def _expanded(item: str) -> tuple[str, ...]:
    name, at, suffix = item.partition("@")
    if name not in SETS:
        return (item,)
    found = SETS[name]
    if at and not (found.suffix and suffix):
        raise ValueError(f"name: {item!r} has the suffix {at + suffix!r}, expected {name!r} alone.")
    return tuple(f"{task}{at}{suffix}" for task in found.tasks())
