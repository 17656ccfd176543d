"""`derex eval`, `video`, `export` and `plot`: commands on run folders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from derex.cli.parsing import LARGEST_SEED, OWN_ENV, check_checkpoint, check_range, parse, print_table

if TYPE_CHECKING:
    from derex.training.trained import TrainedAgents

MOST_EPISODES, MOST_FILMED = 10_000_000, 100
ENDINGS = (".png", ".html")
EVAL_EXAMPLES = (
    "derex eval runs/chain",
    "derex eval runs/chain --episodes 1000 --checkpoint best --greedy",
    "derex eval runs/lab --on dmlab30-test",
)
VIDEO_EXAMPLES = (
    "derex video runs/chain --out chain.gif",
    "derex video runs/chain --out chain.mp4 --episodes 3 --checkpoint best --greedy",
)
EXPORT_EXAMPLES = (
    "derex export runs/chain --out model",
    "derex export runs/chain --out model --checkpoint best --agent 2",
)
PLOT_EXAMPLES = (
    "derex plot runs/chain",
    "derex plot runs --metric success --out curves.png",
    "derex plot runs/a runs/b --label folder --out curves.html",
    "derex plot runs/babyai --metric success --task all --out tasks.png",
)

Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(help="folder of the run")]
Checkpoint = Annotated[str, tyro.conf.arg(help="latest, best, or a step")]
OwnEnv = Annotated[str | None, tyro.conf.arg(help=OWN_ENV)]
Greedy = Annotated[
    bool, tyro.conf.arg(help="take the most likely action at each step instead of sampling from the policy")
]
Seed = Annotated[int, tyro.conf.arg(help="random seed of the environment and the policy")]


@dataclass(frozen=True)
class Eval:
    """Play whole episodes with all seeds of a trained agent, print their scores and add them to DIR/eval.json.

    Intervals are at 95 %: over episodes for each seed; over seeds for their interquartile mean.
    """

    dir: Folder
    episodes: int = 100
    """episodes of each seed, and of each task if there are several"""
    checkpoint: Checkpoint = "latest"
    env: OwnEnv = None
    on: str | None = None
    """another environment, set or list than the run's own, such as dmlab30-test, with the same observations and
    actions"""
    greedy: Greedy = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_range("--episodes", self.episodes, 1, MOST_EPISODES)
        check_checkpoint(self.checkpoint)
        check_range("--seed", self.seed, 0, LARGEST_SEED)


@dataclass(frozen=True)
class Video:
    """Film episodes of a trained agent, as .gif or, with the extra `video`, as .mp4."""

    dir: Folder
    out: Path
    """film to write: .gif or .mp4"""
    episodes: int = 1
    """number of episodes, one after the other"""
    checkpoint: Checkpoint = "latest"
    env: OwnEnv = None
    agent: int | None = None
    """which of the run's seeds acts; none: the one with the best final score"""
    greedy: Greedy = False
    seed: Seed = 0
    fps: int = 12
    """pictures per second"""
    scale: int = 1
    """enlarge each pixel by this factor"""

    def __post_init__(self) -> None:
        from derex.report.film import check_film

        check_film(self.out, self.fps, self.scale)
        check_range("--episodes", self.episodes, 1, MOST_FILMED)
        check_checkpoint(self.checkpoint)
        check_range("--seed", self.seed, 0, LARGEST_SEED)


@dataclass(frozen=True)
class Export:
    """Write a trained agent for use elsewhere: agent.safetensors and card.json, read by derex.load_agent."""

    dir: Folder
    out: Path
    """folder to write"""
    checkpoint: Checkpoint = "latest"
    env: OwnEnv = None
    agent: int | None = None
    """which of the run's seeds; none: the one with the best final score"""

    def __post_init__(self) -> None:
        check_checkpoint(self.checkpoint)


@dataclass(frozen=True)
class Plot:
    """Learning curves and final scores of one or more runs.

    Interquartile means over seeds with 95 % bootstrap intervals; a final score is the mean over the last part of a
    run's steps (--last). Unfinished runs are drawn up to their last line.
    """

    dirs: tyro.conf.Positional[tuple[Path, ...]]
    """run folders, or folders that are searched for them"""
    out: Path | None = None
    """picture (.png) or page to open (.html); none: only the table"""
    metric: str = "return"
    """return, success, or any other number in metrics.jsonl"""
    task: str = ""
    """for runs of several tasks: draw this task, or "all" for each task separately; none: their mean"""
    label: Literal["method", "folder"] = "method"
    """group runs by method and form, or show each folder separately"""
    last: float = 2.0
    """a final score is the mean over this percentage of a run's steps, the last ones; the paper's 2 % contain few
    episodes of a short run"""

    def __post_init__(self) -> None:
        if not self.dirs:
            raise ValueError("dirs: expected at least one folder of derex train.")
        if not 0.0 < self.last <= 100.0:
            raise ValueError(f"--last: expected percent above 0 and up to 100; got {self.last:g}.")
        if self.out is None:
            return
        from derex.report.files import check_place

        if self.out.suffix not in ENDINGS:
            raise ValueError(f"--out: expected a name that ends in {' or '.join(ENDINGS)}; got {self.out}.")
        if self.out.is_dir():
            raise IsADirectoryError(f"--out: {self.out} is a folder; give a file.")
        check_place(self.out, "--out")


def run_eval(arguments: list[str]) -> int:
    """`derex eval DIR [--episodes 100] [--checkpoint latest|best|STEP] [--on NAME] [--greedy] [--seed 0]`."""
    options = parse(Eval, arguments, "derex eval", EVAL_EXAMPLES)

    from derex.training import evaluate
    from derex.training.trained import playing

    agents = _restore(options)
    evaluate.read_evaluations(options.dir)  # refuses a damaged file before the work
    agents = playing(agents, options.on) if options.on is not None else agents
    played = evaluate.evaluate(agents, options.episodes, greedy=options.greedy, seed=options.seed)
    summary = evaluate.summarise(agents, played)
    print_table(*make_table(summary))
    env = agents.on or agents.env
    asked = {"env": env, "episodes": options.episodes, "greedy": options.greedy, "seed": options.seed}
    written = evaluate.save_evaluation(options.dir, agents.step, asked | summary)
    how = "most likely actions" if options.greedy else "actions sampled from the policy"
    each = "each seed and task" if len(agents.tasks) > 1 else "each seed"
    where = f" on {env}" if agents.on else ""
    print(f"\n{options.episodes} episodes of {each}{where} at step {agents.step}, {how}; in\n  {written}")
    return 0


def run_video(arguments: list[str]) -> int:
    """`derex video DIR --out FILE [options]`."""
    options = parse(Video, arguments, "derex video", VIDEO_EXAMPLES)

    from derex.report.film import Frame, write_film
    from derex.training.evaluate import check_pictures, film_episode

    agents = _restore(options)
    check_pictures(agents.environment)  # refuses an environment without pictures before anything is compiled
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


def run_export(arguments: list[str]) -> int:
    """`derex export DIR --out FOLDER [--checkpoint latest|best|STEP] [--agent SEED]`."""
    options = parse(Export, arguments, "derex export", EXPORT_EXAMPLES)

    from derex.training.export import CARD, WEIGHTS, check_folder, export_agent

    check_folder(options.out)
    agents = _restore(options)
    seed = agents.best_seed() if options.agent is None else options.agent
    folder = export_agent(agents, options.out, seed)
    print(f"seed {seed} at step {agents.step}; in\n  {folder / WEIGHTS}\n  {folder / CARD}")
    print(f"\nIn Python:\n  agent = derex.load_agent({str(folder)!r})")
    return 0


def _restore(options: Eval | Video | Export) -> TrainedAgents:
    """The agents of the checkpoint; names damaged checkpoints on stderr."""
    from derex.training.trained import restore_agents

    agents = restore_agents(options.dir, options.checkpoint, options.env)
    for problem in agents.problems:
        print(f"derex: {problem}; an earlier checkpoint is used", file=sys.stderr)
    return agents


def make_table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one row for each seed and one for all, repeated for each task if there are several."""
    tasks: dict[str, Any] = summary.get("tasks", {})
    columns = [name for name in summary["seeds"][0] if name != "seed"]
    rows = []
    for task, part in {**tasks, "mean over tasks": summary}.items():
        found = [(str(row["seed"]), row) for row in part["seeds"]]
        found += [("all (IQM)", part["over_seeds"])] if len(found) > 1 else []
        for seed, row in found:
            cells = [_format_interval(row[name]) if name in row else "–" for name in columns]
            rows.append([task, seed, *cells] if tasks else [seed, *cells])
    return (["task", "seed", *columns] if tasks else ["seed", *columns]), rows


def _format_interval(interval: dict[str, Any]) -> str:
    value, low, high = interval["value"], interval["low"], interval["high"]
    return f"{value:.4g}" if low is None or low == high else f"{value:.4g} [{low:.4g}, {high:.4g}]"


def run_plot(arguments: list[str]) -> int:
    """`derex plot DIR... [--out FILE] [--metric NAME] [--task NAME] [--label folder] [--last PERCENT]`."""
    options = parse(Plot, arguments, "derex plot", PLOT_EXAMPLES)

    from derex.report import learning_curves
    from derex.report.runs import find_runs

    runs = find_runs(options.dirs)
    if options.task:
        runs = learning_curves.runs_of_task(runs, options.task)
    learning_curves.check_metric(runs, options.metric)
    groups = learning_curves.group_runs(runs, options.label, options.last)
    for note in learning_curves.notes_on(groups):
        print(f"derex: {note}", file=sys.stderr)
    written = options.out and learning_curves.write_curves(groups, options.metric, options.out)
    columns = [name.format(options.metric) for name in learning_curves.COLUMNS]
    print_table(columns, learning_curves.score_rows(groups, options.metric))
    if written:
        print(f"\n{'Open in a browser:' if written.suffix == '.html' else 'Picture:'}\n  {written}")
    return 0
