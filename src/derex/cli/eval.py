"""`derex eval`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from derex.cli.parsing import check_checkpoint, check_seed, parse
from derex.cli.tables import print_table

EXAMPLES = (
    "derex eval runs/chain",
    "derex eval runs/chain --episodes 1000 --checkpoint best --greedy",
)


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with a trained agent, all seeds of the run, and add what they came to to DIR/eval.json.

    Intervals are at 95 %: over episodes for each seed; over seeds for their interquartile mean.
    """

    dir: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = 100
    """whole episodes of each seed"""
    checkpoint: str = "latest"
    """latest, best, or a step"""
    greedy: bool = False
    """the likeliest action at each step, rather than one drawn from the policy"""
    seed: int = 0
    """of the environment's and the policy's randomness"""

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"--episodes: expected at least 1, got {self.episodes}.")
        check_checkpoint(self.checkpoint)
        check_seed(self.seed)


def run(arguments: list[str]) -> int:
    """`derex eval DIR [--episodes 100] [--checkpoint latest|best|STEP] [--greedy] [--seed 0]`."""
    options = parse(Eval, arguments, "derex eval", EXAMPLES)

    from derex.training import evaluate
    from derex.training.trained import restore_agents

    agents = restore_agents(options.dir, options.checkpoint)
    evaluate.read_evaluations(options.dir)  # a file that could not be added to is refused before the work
    for problem in agents.problems:
        print(f"derex: {problem}; an earlier checkpoint is used", file=sys.stderr)
    played = evaluate.evaluate(agents, options.episodes, greedy=options.greedy, seed=options.seed)
    summary = evaluate.summarise(agents, played)
    columns = [name for name in summary["seeds"][0] if name != "seed"]
    rows = [[str(row["seed"]), *(_text(row[name]) for name in columns)] for row in summary["seeds"]]
    if len(rows) > 1:
        rows.append(["all (IQM)", *(_text(summary["over_seeds"][name]) for name in columns)])
    print_table(["seed", *columns], rows)
    asked = {"episodes": options.episodes, "greedy": options.greedy, "seed": options.seed}
    written = evaluate.save_evaluation(options.dir, agents.step, asked | summary)
    how = "likeliest actions" if options.greedy else "actions drawn from the policy"
    print(f"\n{options.episodes} episodes of each seed at step {agents.step}, {how}; in\n  {written}")
    return 0


def _text(interval: dict[str, Any]) -> str:
    value, low, high = interval["value"], interval["low"], interval["high"]
    return f"{value:.4g}" if low is None or low == high else f"{value:.4g} [{low:.4g}, {high:.4g}]"
