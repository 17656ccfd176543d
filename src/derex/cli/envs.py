"""`derex envs`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from derex.cli.parsing import parse
from derex.cli.tables import print_table

SUITES = ("gymnax", "xminigrid", "navix", "craftax", "gymnasium", "minigrid", "vizdoom", "atari", "hard8")
"""the extras of derex that install environments"""

EXAMPLES = ("derex envs", "derex envs --json", "derex train --env deep-sea-20 --out runs/sea")
COLUMNS = ("name", "what it is", "for example", "observation", "actions", "cut after", "success", "states")


@dataclass(frozen=True)
class Envs:
    """Environments that are there, and suites that can be installed."""

    json: bool = False
    """print JSON, for machines"""


@dataclass(frozen=True)
class Listed:
    """An environment as it is listed; sizes are those of the example."""

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


def run(arguments: list[str]) -> int:
    """`derex envs [--json]`."""
    options = parse(Envs, arguments, "derex envs", EXAMPLES)
    environments, suites = listed(), suites_found()
    if options.json:
        print(
            json.dumps({"environments": [asdict(each) for each in environments], "suites": suites}, indent=1)
        )
        return 0
    print_table(list(COLUMNS), [_row(each) for each in environments])
    print("\nN and L stand for a number. All are JAX and run on the accelerator.\n")
    rows = [[suite["extra"], "installed" if suite["installed"] else suite["install"]] for suite in suites]
    print_table(["suite", ""], rows)
    print(
        "\nderex has no adapters of its own for suites yet; how to write one: docs/agents.md, Environments."
    )
    return 0


def listed() -> list[Listed]:
    """Every environment, by its example."""
    from derex.envs.registry import known, make

    entries = []
    for entry in known():
        spec = make(entry.example).spec
        observation, actions = observation_text(spec.observation), action_text(spec.action)
        numbers = spec.horizon, spec.success_return, spec.n_states
        entries.append(Listed(entry.pattern, entry.summary, entry.example, observation, actions, *numbers))
    return entries


def suites_found() -> list[dict[str, Any]]:
    """Each extra that brings environments, and whether it is there."""
    from derex.doctor import find_extras

    extras = {extra.name: extra for extra in find_extras()}
    return [
        {"extra": name, "installed": not extras[name].missing, "install": extras[name].install}
        for name in SUITES
        if name in extras
    ]


def observation_text(observation: Any) -> str:
    """Shapes and types of all parts: "float32 (52,)"."""
    import jax

    return " and ".join(f"{leaf.dtype} {tuple(leaf.shape)}" for leaf in jax.tree.leaves(observation))


def action_text(action: Any) -> str:
    """What an agent can do: "one of 4", "2 numbers in [-1, 1]"."""
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
