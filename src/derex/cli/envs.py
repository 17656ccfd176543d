"""`derex envs`: list environments, suites and sets of tasks; check an environment."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import tyro

from derex._text import install_command
from derex.cli.parsing import UsageError, parse, print_table

EXAMPLES = (
    "derex envs",
    "derex envs gymnax",
    "derex envs --json",
    "derex envs --check jax:my_package.my_module:MyEnvironment",
    "derex train --env deep-sea-20 --out runs/sea",
)
COLUMNS = ("name", "what it is", "for example", "observation", "actions", "cut after", "success", "states")


@dataclass(frozen=True)
class Envs:
    """List environments, suites that can be installed, and sets of tasks; or check an environment."""

    suite: tyro.conf.Positional[str] = ""
    """list the environments of this suite or set"""
    check: str = ""
    """check that this environment, such as your own jax:package.module:Class, satisfies the interface"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True)
class Listed:
    """One built-in environment of the list; sizes are those of its example."""

    name: str
    summary: str
    example: str
    observation: str
    actions: str
    horizon: int
    success_return: float | None
    """None: success is not defined"""
    states: int
    """0: states are not numbered"""


@dataclass(frozen=True)
class ListedSuite:
    """One suite of the list."""

    name: str
    summary: str
    example: str
    runs: str
    """where its environments are stepped: on the accelerator, in threads, or in processes"""
    installed: bool
    install: str
    """the command that installs it"""


def run(arguments: list[str]) -> int:
    """`derex envs [SUITE] [--json]`, `derex envs --check NAME`."""
    options = parse(Envs, arguments, "derex envs", EXAMPLES)
    if options.check:
        return _check(options.check, options.json)
    if options.suite:
        return _show_names(options.suite, options.json)
    environments, suites = listed(), suites_found()
    if options.json:
        content = {
            "environments": [asdict(each) for each in environments],
            "suites": [asdict(each) for each in suites],
            "sets": {name: {"summary": summary, "tasks": tasks} for name, summary, tasks in sets_found()},
        }
        print(json.dumps(content, indent=1))
        return 0
    print_table(list(COLUMNS), [_row(each) for each in environments])
    print("\nN and L stand for a number. All are JAX and run on the accelerator.\n")
    rows = [
        [each.name, each.summary, each.example, each.runs, "installed" if each.installed else each.install]
        for each in suites
    ]
    print_table(["suite", "what it is", "for example", "runs", ""], rows)
    print()
    print_table(
        ["set", "what it is", "tasks"],
        [[name, summary, str(len(tasks))] for name, summary, tasks in sets_found()],
    )
    print(
        "\nSeveral tasks, one agent: a set, or names with commas between. `derex envs NAME` lists the names of a"
    )
    print("suite or a set. Your own: docs/environments.md.")
    return 0


def _check(name: str, as_json: bool) -> int:
    """Prints what was checked of each task of a name; an environment that breaks the interface raises ValueError."""
    from derex.envs.checks import check_environment, check_host_environment
    from derex.envs.registry import expand_tasks, is_host, make, make_host

    checked = {}
    for task in expand_tasks(name):
        if is_host(task):
            environment = make_host(task)
            try:
                checked[task] = check_host_environment(environment)
            finally:
                environment.close()
        else:
            checked[task] = check_environment(make(task))
    if as_json:
        print(json.dumps(checked, indent=1))
        return 0
    for task, lines in checked.items():
        print("\n  ".join([f"{task}: passed", *lines]))
    return 0


def _show_names(suite: str, as_json: bool) -> int:
    names = offered(suite)
    if as_json:
        print(json.dumps(names, indent=1))
    elif names:
        print("\n".join(names))
    else:
        print(f"{suite} has no list of names.")
    return 0


def offered(suite: str) -> list[str]:
    """Names of the environments of a suite or set; an unknown or missing one raises."""
    from derex.envs.registry import suite_names

    sets = {name: tasks for name, _, tasks in sets_found()}
    if suite in sets and suite not in {each.name for each in suites_found()}:
        return sets[suite]
    missing = {each.name: each.install for each in suites_found() if not each.installed}
    try:
        return suite_names(suite)
    except ImportError as error:
        if suite not in missing:
            raise
        raise UsageError(f"suite: {suite} is not installed. {missing[suite]}") from error


def listed() -> list[Listed]:
    """Every built-in environment."""
    from derex.envs.registry import builtin_environments, make

    entries = []
    for entry in builtin_environments():
        spec = make(entry.example).spec
        observation, actions = observation_text(spec.observation), action_text(spec.action)
        numbers = spec.horizon, spec.success_return, spec.n_states
        entries.append(Listed(entry.pattern, entry.summary, entry.example, observation, actions, *numbers))
    return entries


def sets_found() -> list[tuple[str, str, list[str]]]:
    """Each set of tasks: its name, its summary, and its tasks."""
    from derex.envs.registry import SETS

    return [(name, found.summary, list(found.tasks())) for name, found in SETS.items()]


def suites_found() -> list[ListedSuite]:
    """Each suite, and whether it is installed."""
    from derex.envs.registry import SUITES, is_installed

    found = []
    for name, suite in SUITES.items():
        runs = ("in threads" if suite.threads else "in processes") if suite.host else "on the accelerator"
        install = install_command(suite.extra) if suite.extra else "no package; see docs/environments.md"
        found.append(ListedSuite(name, suite.summary, suite.example, runs, is_installed(name), install))
    return found


def observation_text(observation: Any) -> str:
    """Shapes and types of all parts: "float32 (52,)"."""
    import jax

    return " and ".join(f"{leaf.dtype} {tuple(leaf.shape)}" for leaf in jax.tree.leaves(observation))


def action_text(action: Any) -> str:
    """Describes an action spec: "one of 4", "2 numbers in [-1, 1]"."""
    from derex.types import Discrete, MultiDiscrete

    if isinstance(action, Discrete):
        return f"one of {action.n}"
    if isinstance(action, MultiDiscrete):
        return "one of " + " × ".join(map(str, action.sizes))
    numbers = "a number" if action.size == 1 else f"{action.size} numbers"
    return f"{numbers} in [{action.low:g}, {action.high:g}]"


def _row(entry: Listed) -> list[str]:
    success = "–" if entry.success_return is None else f"return ≥ {entry.success_return:g}"
    numbered = f"{entry.states:,}" if entry.states else "–"
    texts = entry.name, entry.summary, entry.example, entry.observation, entry.actions
    return [*texts, f"{entry.horizon} steps", success, numbered]
