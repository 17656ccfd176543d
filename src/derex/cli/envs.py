"""`derex envs`: list environments, suites and sets of tasks; check an environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
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
COLUMNS = ["name", "what it is", "for example", "observation", "actions", "cut after", "success", "states"]


@dataclass(frozen=True)
class Envs:
    """List environments, suites that can be installed, and sets of tasks; or check an environment."""

    suite: tyro.conf.Positional[str] = ""
    """list the environments of this suite or set"""
    check: str = ""
    """check that this environment, such as your own jax:package.module:Class, satisfies the interface"""
    json: bool = False
    """print JSON"""


def run(arguments: list[str]) -> int:
    """`derex envs [SUITE] [--json]`, `derex envs --check NAME`."""
    options = parse(Envs, arguments, "derex envs", EXAMPLES)
    if options.check:
        found: Any = check(options.check)
        text = "\n".join("\n  ".join([f"{task}: passed", *lines]) for task, lines in found.items())
    elif options.suite:
        found = list_names(options.suite)
        text = "\n".join(found) or f"{options.suite} has no list of names."
    else:
        lists = {"environments": list_builtin(), "suites": list_suites(), "sets": list_sets()}
        if not options.json:
            _show(lists)
            return 0
        found, text = lists, ""
    print(json.dumps(found, indent=1) if options.json else text)
    return 0


def check(name: str) -> dict[str, list[str]]:
    """What was checked of each task of a name; an environment that breaks the interface raises ValueError."""
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
    return checked


def list_names(suite: str) -> list[str]:
    """Names of the environments of a suite or set; an unknown or missing one raises."""
    from derex.envs.registry import suite_names

    suites, sets = {each["name"]: each for each in list_suites()}, list_sets()
    if suite in sets and suite not in suites:
        return sets[suite]["tasks"]
    try:
        return suite_names(suite)
    except ImportError as error:
        if suite not in suites or suites[suite]["installed"]:
            raise
        raise UsageError(f"suite: {suite} is not installed. {suites[suite]['install']}") from error


def list_builtin() -> list[dict[str, Any]]:
    """Every built-in environment, with the sizes of its example."""
    from derex.envs.registry import builtin_environments, make

    found = []
    for entry in builtin_environments():
        spec = make(entry.example).spec
        found.append(
            {
                "name": entry.pattern,
                "summary": entry.summary,
                "example": entry.example,
                "observation": observation_text(spec.observation),
                "actions": action_text(spec.action),
                "horizon": spec.horizon,
                "success_return": spec.success_return,
                "states": spec.n_states,
            }
        )
    return found


def list_suites() -> list[dict[str, Any]]:
    """Each suite: where its environments are stepped, whether it is installed, and the command that installs it."""
    from derex.envs.registry import SUITES, is_installed

    found = []
    for name, suite in SUITES.items():
        runs = ("in threads" if suite.threads else "in processes") if suite.host else "on the accelerator"
        install = install_command(suite.extra) if suite.extra else "no package; see docs/environments.md"
        entry = {"name": name, "summary": suite.summary, "example": suite.example, "runs": runs}
        found.append(entry | {"installed": is_installed(name), "install": install})
    return found


def list_sets() -> dict[str, dict[str, Any]]:
    """Each set of tasks: its summary and its tasks."""
    from derex.envs.registry import SETS

    return {name: {"summary": found.summary, "tasks": list(found.tasks())} for name, found in SETS.items()}


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


def _show(found: dict[str, Any]) -> None:
    """Prints the lists as tables."""
    rows = []
    for each in found["environments"]:
        success = "–" if each["success_return"] is None else f"return ≥ {each['success_return']:g}"
        texts = [each[name] for name in ("name", "summary", "example", "observation", "actions")]
        rows.append(
            [*texts, f"{each['horizon']} steps", success, f"{each['states']:,}" if each["states"] else "–"]
        )
    print_table(COLUMNS, rows)
    print("\nN and L stand for a number. All are JAX and run on the accelerator.\n")
    rows = [
        [*(each[name] for name in ("name", "summary", "example", "runs")),
         "installed" if each["installed"] else each["install"]]
        for each in found["suites"]
    ]  # fmt: skip
    print_table(["suite", "what it is", "for example", "runs", ""], rows)
    print()
    rows = [[name, each["summary"], str(len(each["tasks"]))] for name, each in found["sets"].items()]
    print_table(["set", "what it is", "tasks"], rows)
    print(
        "\nSeveral tasks, one agent: a set, or names with commas between. `derex envs NAME` lists the names of a\n"
        "suite or a set. Your own: docs/environments.md."
    )
