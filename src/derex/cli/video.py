"""`derex video`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from derex.cli.parsing import check_checkpoint, check_seed, parse

EXAMPLES = (
    "derex video runs/chain --out chain.gif",
    "derex video runs/chain --out chain.mp4 --episodes 3 --checkpoint best --greedy",
)


@dataclass(frozen=True)
class Video:
    """Film episodes of a trained agent, as .gif or, with the extra `video`, as .mp4."""

    dir: tyro.conf.Positional[Path]
    """folder of the run"""
    out: Path
    """film to write: .gif or .mp4"""
    episodes: int = 1
    """one after the other"""
    checkpoint: str = "latest"
    """latest, best, or a step"""
    env: str | None = None
    """where the run's environment is your own code, such as jax:package.module:Class; it is imported only when you name
    it"""
    agent: int | None = None
    """which of the run's seeds acts; none: the one with the best final score"""
    greedy: bool = False
    """the likeliest action at each step, rather than one drawn from the policy"""
    seed: int = 0
    """of the environment's and the policy's randomness"""
    fps: int = 12
    """pictures a second"""
    scale: int = 1
    """how many pixels a pixel becomes, along each side"""

    def __post_init__(self) -> None:
        from derex.report.film import check_film

        check_film(self.out, self.fps, self.scale)
        if not 1 <= self.episodes <= 100:
            raise ValueError(f"--episodes: expected 1 to 100, got {self.episodes}.")
        check_checkpoint(self.checkpoint)
        check_seed(self.seed)


def run(arguments: list[str]) -> int:
    """`derex video DIR --out FILE [options]`."""
    options = parse(Video, arguments, "derex video", EXAMPLES)

    from derex.report.film import Frame, write_film
    from derex.training.film import drawn, film_episode
    from derex.training.trained import restore_agents

    agents = restore_agents(options.dir, options.checkpoint, options.env)
    drawn(agents.environment)  # refused before anything is compiled
    for problem in agents.problems:
        print(f"derex: {problem}; an earlier checkpoint is used", file=sys.stderr)
    agent = agents.best_seed() if options.agent is None else options.agent
    network, frames = agents.network_of(agent), []
    for number in range(options.episodes):
        filmed = film_episode(agents.environment, network, options.seed, number, options.greedy)
        prefix = f"episode {number + 1}   " if options.episodes > 1 else ""
        if len(agents.tasks) > 1:
            prefix = f"{list(agents.tasks)[number % len(agents.tasks)]}   {prefix}"
        for one in filmed:
            result = f"return {one.episode_return:.4g}" + ("  success" if one.success else "")
            frames.append(Frame(one.picture, f"{prefix}step {one.step}", result, one.last))
        print(f"derex: episode {number + 1}: {filmed[-1].step} steps, {result}", file=sys.stderr)
    path = write_film(options.out, frames, options.fps, options.scale)
    print(f"seed {agent} at step {agents.step}, {len(frames)} pictures; in\n  {path}")
    return 0
