"""`derex eval`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from derex.cli.parsing import check_checkpoint, check_seed, parse
from derex.cli.tables import print_table

MOST_EPISODES = 10_000_000
EXAMPLES = (
    "derex eval runs/chain",
    "derex eval runs/chain --episodes 1000 --checkpoint best --greedy",
    "derex eval runs/lab --on dmlab30-test",
)


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with a trained agent, all seeds of the run, and add what they came to to DIR/eval.json.

    Intervals are at 95 %: over episodes for each seed; over seeds for their interquartile mean.
    """

    dir: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = 100
    """whole episodes of each seed, and of each task where there are several"""
    checkpoint: str = "latest"
    """latest, best, or a step"""
    env: str | None = None
    """where the run's environment is your own code, such as jax:package.module:Class; it is imported only when you name
    it"""
    on: str | None = None
    """another environment, set or list to play than the run's own, such as dmlab30-test; it has to show what the run
    saw, and to have its actions"""
    greedy: bool = False
    """the likeliest action at each step, rather than one drawn from the policy"""
    seed: int = 0
    """of the environment's and the policy's randomness"""

    def __post_init__(self) -> None:
        if not 1 <= self.episodes <= MOST_EPISODES:
            raise ValueError(f"--episodes: expected 1 to {MOST_EPISODES}, got {self.episodes}.")
        check_checkpoint(self.checkpoint)
        check_seed(self.seed)


def run(arguments: list[str]) -> int:
    """`derex eval DIR [--episodes 100] [--checkpoint latest|best|STEP] [--on NAME] [--greedy] [--seed 0]`."""
    options = parse(Eval, arguments, "derex eval", EXAMPLES)

    from derex.training import evaluate
    from derex.training.trained import playing, restore_agents

    agents = restore_agents(options.dir, options.checkpoint, options.env)
    evaluate.read_evaluations(options.dir)  # a file that could not be added to is refused before the work
    agents = playing(agents, options.on) if options.on is not None else agents
    for problem in agents.problems:
        print(f"derex: {problem}; an earlier checkpoint is used", file=sys.stderr)
    played = evaluate.evaluate(agents, options.episodes, greedy=options.greedy, seed=options.seed)
    summary = evaluate.summarise(agents, played)
    print_table(*table_of(summary))
    env = agents.on or agents.env
    asked = {"env": env, "episodes": options.episodes, "greedy": options.greedy, "seed": options.seed}
    written = evaluate.save_evaluation(options.dir, agents.step, asked | summary)
    how = "likeliest actions" if options.greedy else "actions drawn from the policy"
    each = "each seed and task" if len(agents.tasks) > 1 else "each seed"
    where = f" on {env}" if agents.on else ""
    print(f"\n{options.episodes} episodes of {each}{where} at step {agents.step}, {how}; in\n  {written}")
    return 0


def table_of(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: a row for each seed and one for all; where there are several tasks, of each of them."""
    tasks: dict[str, Any] = summary.get("tasks", {})
    columns = [name for name in summary["seeds"][0] if name != "seed"]
    rows = []
    for task, part in {**tasks, "mean over tasks": summary}.items():
        found = [(str(row["seed"]), row) for row in part["seeds"]]
        found += [("all (IQM)", part["over_seeds"])] if len(found) > 1 else []
        for seed, row in found:
            cells = [_text(row[name]) if name in row else "–" for name in columns]
            rows.append([task, seed, *cells] if tasks else [seed, *cells])
    return (["task", "seed", *columns] if tasks else ["seed", *columns]), rows


def _text(interval: dict[str, Any]) -> str:
    value, low, high = interval["value"], interval["low"], interval["high"]
    return f"{value:.4g}" if low is None or low == high else f"{value:.4g} [{low:.4g}, {high:.4g}]"
