"""`derex export`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from derex.cli.parsing import check_checkpoint, parse

EXAMPLES = (
    "derex export runs/chain --out model",
    "derex export runs/chain --out model --checkpoint best --agent 2",
)


@dataclass(frozen=True)
class Export:
    """Write a trained agent for use elsewhere: agent.safetensors and card.json, read by derex.load_agent."""

    dir: tyro.conf.Positional[Path]
    """folder of the run"""
    out: Path
    """folder to write"""
    checkpoint: str = "latest"
    """latest, best, or a step"""
    env: str | None = None
    """where the run's environment is your own code, such as jax:package.module:Class; it is imported only when you name
    it"""
    agent: int | None = None
    """which of the run's seeds; none: the one with the best final score"""

    def __post_init__(self) -> None:
        check_checkpoint(self.checkpoint)


def run(arguments: list[str]) -> int:
    """`derex export DIR --out FOLDER [--checkpoint latest|best|STEP] [--agent SEED]`."""
    options = parse(Export, arguments, "derex export", EXAMPLES)

    from derex.training.export import CARD, WEIGHTS, check_folder, export_agent
    from derex.training.trained import restore_agents

    check_folder(options.out)
    agents = restore_agents(options.dir, options.checkpoint, options.env)
    for problem in agents.problems:
        print(f"derex: {problem}; an earlier checkpoint is used", file=sys.stderr)
    seed = agents.best_seed() if options.agent is None else options.agent
    folder = export_agent(agents, options.out, seed)
    print(f"seed {seed} at step {agents.step}; in\n  {folder / WEIGHTS}\n  {folder / CARD}")
    print(f"\nIn Python:\n  agent = derex.load_agent({str(folder)!r})")
    return 0
