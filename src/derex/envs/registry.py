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
from functools import partial
from typing import Any, NamedTuple

from derex._text import closest_match, hint
from derex.envs import control, diagnostic
from derex.envs.grid import rooms
from derex.envs.interface import Environment, HostEnvironment


class Builtin(NamedTuple):
    """A built-in environment."""

    pattern: str
    """its name, in which N or L stands for a number, the argument of `build`"""
    build: Callable[..., Environment]
    summary: str
    smallest: int = 0
    largest: int = 0
    """bounds of the number: tables grow with it"""
    usual: int = 0
    """number of the example"""

    @property
    def example(self) -> str:
        """A name for `make`."""
        return _fill(self.pattern, str(self.usual))


_BUILTIN = (
    Builtin("rooms-chain-N", rooms.RoomsChain, "N rooms in a row, one reward behind the last", 1, 1000, 8),
    Builtin(
        "rooms-chain-N-hidden",
        rooms.HiddenRoomsChain,
        "the same with new doors each time, seen from near",
        1,
        1000,
        8,
    ),
    Builtin("four-rooms", rooms.FourRooms, "from one corner of four rooms to the opposite one"),
    Builtin("four-rooms-pixels", rooms.FourRoomsPixels, "the same, seen as a picture"),
    Builtin("four-rooms-hidden", rooms.FourRoomsHidden, "the same, the agent hidden in half of the pictures"),
    Builtin("key-rooms-N", rooms.KeyRooms, "N keys open the doors of rooms in a row, one by one", 1, 11, 3),
    Builtin("deep-sea-N", diagnostic.DeepSea, "one of 2^N dives finds the treasure", 2, 200, 20),
    Builtin("catch", diagnostic.Catch, "move a paddle under a falling ball"),
    Builtin("cartpole", control.CartPole, "balance a pole on a cart"),
    Builtin("recall-L", diagnostic.Recall, "name a cue that was shown L steps ago", 0, 10_000, 20),
    Builtin("pendulum", control.Pendulum, "swing up a pendulum with a weak motor"),
    Builtin("point-mass", control.PointMass, "bring a mass to rest on a target"),
)


class Suite(NamedTuple):
    """Environments of another package."""

    module: str
    """with `make(name)` for the name after the colon"""
    extra: str
    """extra of derex that installs it; empty if pip cannot"""
    summary: str
    example: str
    host: bool
    """whether its environments are non-JAX and are stepped in worker processes"""
    packages: tuple[str, ...] = ()
    """to import; empty: the one with the name of the suite"""
    threads: bool = False
    """whether it has vector environments, stepped by threads of the training process (`make_many`)"""


def _in_derex(example: str, summary: str, host: bool = True, **other: Any) -> Suite:
    """A suite of derex; its module and its extra have its name, unless they are among the `other` fields."""
    name = example.partition(":")[0]
    module = f"derex.envs.suites.{other.pop('module', name)}"
    return Suite(module, other.pop("extra", name), summary, example, host, **other)


_OF_MINIGRID = {"module": "minigrid", "extra": "minigrid", "packages": ("minigrid",)}
_OF_DMLAB = {"extra": "", "packages": ("deepmind_lab",)}
SUITES: dict[str, Suite] = {
    suite.example.partition(":")[0]: suite
    for suite in (
        Suite("derex.envs.suites", "", "one of your own, in JAX", "jax:package.module:Class", False),
        _in_derex("gymnax:DeepSea-bsuite", "bsuite, MinAtar, classic control", False),
        _in_derex("xminigrid:MiniGrid-DoorKey-8x8", "grid worlds, fast", False),
        _in_derex("navix:Navix-KeyCorridorS6R3-v0", "MiniGrid's tasks in JAX", False),
        _in_derex("craftax:Craftax-Classic-Symbolic-v1", "survive, build, explore", False),
        _in_derex("gymnasium:CartPole-v1", "whatever is registered there"),
        _in_derex("minigrid:MiniGrid-DoorKey-8x8-v0", "grid worlds with a mission"),
        _in_derex("babyai:BabyAI-GoToObj-v0", "instructions in plain words", **_OF_MINIGRID),
        _in_derex("envpool:BabyAI-GoToObj-v0", "many suites, many at once", threads=True),
        _in_derex("vizdoom:VizdoomMyWayHome-v1", "first-person 3-D"),
        _in_derex("atari:ALE/MontezumaRevenge-v5", "Atari 2600", packages=("ale_py", "gymnasium")),
        _in_derex("dm_env:package.module:function", "any function that returns one", extra="dm-env"),
        _in_derex("dmlab:rooms_watermaze", "DeepMind Lab, built from source", **_OF_DMLAB),
        _in_derex("hard8:throw_across", "DM-Hard-8, from its container", packages=("dm_env_rpc",)),
    )
}

BABYAI = ("GoToObj", "GoToLocal", "PickupLoc", "OpenDoor", "UnlockPickup", "PutNextLocal", "KeyInBox")


class TaskSet(NamedTuple):
    """Tasks that go together."""

    summary: str
    tasks: Callable[[], list[str]]
    """returns their names; imports the suite on first use"""
    suffix: bool = False
    """whether a suffix after @ is appended to every task's name"""


def _babyai(suite: str) -> list[str]:
    """Eight levels; the last hangs in envpool (`HANGING` of derex.envs.suites.envpool), so babyai always runs it."""
    return [*(f"{suite}:BabyAI-{level}-v0" for level in BABYAI), "babyai:BabyAI-SynthS5R2-v0"]


def _levels(suite: str, attribute: str) -> list[str]:
    """The levels that a suite's module lists, in a tuple or by a function."""
    levels = getattr(importlib.import_module(SUITES[suite].module), attribute)
    return [f"{suite}:{level}" for level in (levels() if callable(levels) else levels)]


SETS: dict[str, TaskSet] = {
    "babyai-8": TaskSet(
        "eight levels of BabyAI, one room to several, told in words", partial(_babyai, "babyai")
    ),
    "babyai-8-envpool": TaskSet(
        "the same, seven of them stepped many times faster by envpool", partial(_babyai, "envpool")
    ),
    "dmlab30": TaskSet(
        "the 30 levels of DMLab-30, to train on; dmlab30@9: with 9 actions",
        partial(_levels, "dmlab", "training_levels"),
        suffix=True,
    ),
    "dmlab30-test": TaskSet(
        "the same, the held-out ones where there are, to score under",
        partial(_levels, "dmlab", "held_out_levels"),
        suffix=True,
    ),
    "hard8": TaskSet(
        "the eight levels of DM-Hard-8; hard8@host:port", partial(_levels, "hard8", "LEVELS"), suffix=True
    ),
}


def names() -> tuple[str, ...]:
    """Names of the built-in environments; N and L stand for a number, as in "rooms-chain-8"."""
    return tuple(entry.pattern for entry in _BUILTIN)


def builtin_environments() -> tuple[Builtin, ...]:
    """The built-in environments, each with a summary and an example."""
    return _BUILTIN


def suite_names(suite: str) -> list[str]:
    """Full names of a suite's environments; empty if the suite has no list."""
    entry, _ = _suite(f"{suite}:")
    listed = importlib.import_module(entry.module).names()
    # Two suites may share a module, which then lists the names of both; the examples tell them apart.
    shared = sum(other.module == entry.module for other in SUITES.values()) > 1
    family = re.split(r"[-/]", entry.example.partition(":")[2])[0] if shared else ""
    return [f"{suite}:{name}" for name in listed if name.startswith(family)]


def is_installed(suite: str) -> bool:
    """Whether the packages of the suite are installed; imports nothing."""
    packages = SUITES[suite].packages or (suite,)
    return all(importlib.util.find_spec(name) is not None for name in packages)


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
    for pattern, build, _, smallest, largest, _ in _BUILTIN:
        if found := re.fullmatch(_fill(pattern, r"(\\d+)"), name):
            numbers = [int(number) for number in found.groups()]
            if any(not smallest <= number <= largest for number in numbers):
                bounds = f"expected {smallest} to {largest}"
                raise ValueError(f"name: {name!r} has the number {numbers[0]} in {pattern!r}, {bounds}.")
            return build(*numbers)
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


def _fill(pattern: str, number: str) -> str:
    """Puts something in place of N or L."""
    return re.sub(r"(?<=-)[NL]\b", number, pattern)


def _nearest(name: str) -> str:
    """A hint with the most similar known name, its number kept; empty if none is similar."""
    numbers = re.findall(r"\d+", name)
    close = closest_match(name, SETS, cutoff=0.8) or closest_match(re.sub(r"\d+", "N", name), names())
    if close and numbers:
        close = _fill(close, numbers[0])
    return f" Did you mean {close!r}?" if close else ""


def expand_tasks(name: str) -> tuple[str, ...]:
    """The names of the single tasks that a name stands for; a single task stands for itself.

    Args:
        name: a task, a set of `SETS`, or a list of both with commas between.
    """
    items = [item.strip() for item in name.split(",")]
    if items == [""]:
        raise ValueError("name: expected the name of an environment, such as 'catch'; got none.")
    if not all(items):
        raise ValueError(f"name: {name!r} has an empty item; expected names such as 'catch,deep-sea-8'.")
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
