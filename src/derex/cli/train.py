"""`derex train`: parse the options of a run, train it and print its final scores."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import typing
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from derex.cli.parsing import format_number, parse, print_table

if TYPE_CHECKING:
    from derex.training.config import TrainConfig
    from derex.training.run import TrainResult

EXAMPLES = (
    "derex train --env rooms-chain-8 --method derex --steps 1e7 --seeds 3 --out runs/derex",
    "derex train --env catch --method vmpo --agent.width 64 --out runs/catch",
    "derex train --preset exploration --env rooms-chain-8 --form states --agent.unroll 64 --out runs/preset",
    "derex train --resume runs/catch --steps 2e7",
    "derex train --method derex --form states --help",
)
PRESET = (
    "defaults for agent and representation; other options override them. exploration: as in that study; paper: as in "
    "the paper's appendix; small: for small tasks"
)
RESUME = "resume the run in this folder with its own options; those that may change: derex train --resume DIR --help"
GROUPS = {
    "": (
        "env",
        "out",
        "method",
        "form",
        "preset",
        "steps",
        "seeds",
        "seed",
        "streams",
        "overwrite",
        "resume",
    ),
    "logging": ("log_every", "loggers", "save_every", "keep"),
    "workers": ("workers", "worker_timeout", "worker_restarts"),
    "numerics": ("max_skipped", "deterministic"),
}
"""options of `--help` in the order in which they are shown; those of agent and representation come last"""


@dataclass(frozen=True)
class Selection:
    """Options that decide which other options `derex train` has."""

    method: str = "derex"
    form: str = ""
    preset: str = ""
    env: str = ""


@dataclass(frozen=True)
class Resume:
    """Resume a run with its own options; those below may change."""

    resume: Path
    """folder of the run"""
    steps: int | float | None = None
    """environment steps of each seed in total, earlier ones included; none: as before"""
    log_every: int | float | None = None
    """environment steps between lines of metrics; none: as before"""
    save_every: float | None = None
    """seconds between checkpoints; none: as before"""
    keep: int | None = None
    """number of checkpoints kept besides the best; none: as before"""
    loggers: tuple[str, ...] | None = None
    """tensorboard, wandb; none: as before"""
    max_skipped: int | None = None
    """how many updates in a row may be skipped; none: as before"""
    workers: int | None = None
    """processes that step host environments; none: as before"""
    worker_timeout: float | None = None
    """seconds without an answer after which a worker is restarted; none: as before"""
    worker_restarts: int | None = None
    """how often in a row a worker may be restarted; none: as before"""
    method: str | None = None
    """repeat the run's method here if it is your own, package.module:Class; otherwise its code is not imported"""
    env: str | None = None
    """repeat the run's environment here if it is your own code, such as jax:package.module:Class; otherwise its code is
    not imported"""


def run(arguments: list[str]) -> int:
    """`derex train --env NAME --out DIR [options]`; the options depend on the method."""
    from derex.progress import ProgressBar
    from derex.training.logging import TrainingBar
    from derex.training.run import Stopped, train

    config = parse_config(arguments)
    first, *others = config.env.split(",")
    title = f"{first} and {len(others)} more" if others else first
    try:
        with ProgressBar(f"{title} {config.method}") as bar:
            bar.start()
            steps = config.iterations * config.iteration_steps
            result = train(config, TrainingBar(bar, steps, config.seeds))
    except Stopped as stopped:
        print(f"derex: {stopped}", file=sys.stderr)
        return stopped.exit_code
    _show(result)
    return 0


def parse_config(arguments: list[str]) -> TrainConfig:
    """The config of a new run, or with `--resume` that of an earlier one."""
    import tyro

    from derex.training.config import config_type

    if any(word.split("=")[0] == "--resume" for word in arguments):
        return _load_resumed(parse(Resume, arguments, "derex train", EXAMPLES))
    chosen, _ = tyro.cli(Selection, args=arguments, add_help=False, return_unknown_args=True)
    config = config_type(chosen.method, chosen.form, chosen.preset, chosen.env)
    given = parse(group_options(config), arguments, "derex train", EXAMPLES, pairs=True)
    values = {name: getattr(getattr(given, group) if group else given, name) for name, group in _placed()}
    return config(**values, agent=given.agent, representation=given.representation)


def _placed() -> list[tuple[str, str]]:
    """Each option of `TrainConfig` but agent and representation, with its group."""
    only_shown = ("preset", "resume")
    return [(name, group) for group, names in GROUPS.items() for name in names if name not in only_shown]


def group_options(config: type[TrainConfig]) -> type:
    """A dataclass with the options of `config` in the groups of `GROUPS`, and `--preset` and `--resume`.

    The preset has been applied: the defaults of `config` are the preset's. `--resume` never gets here.
    """
    import tyro

    hints, help_texts = typing.get_type_hints(config), _field_docstrings(config.__mro__[1])
    defaults = {part.name: part.default for part in fields(config)} | {"preset": "", "resume": None}
    hints |= {"preset": str, "resume": Path | None}
    help_texts |= {"preset": PRESET, "resume": RESUME}

    def option(name: str) -> tuple[str, Any, Any]:
        hint = Annotated[hints[name], tyro.conf.arg(help=help_texts[name])]
        return name, hint, field() if defaults[name] is MISSING else field(default=defaults[name])

    options: list[Any] = [option(name) for name in GROUPS[""]]
    for group, names in GROUPS.items():
        if group:
            inner = make_dataclass(group, [option(name) for name in names], frozen=True)
            options.append((group, tyro.conf.OmitArgPrefixes[inner], field(default_factory=inner)))
    options += [
        (part.name, hints[part.name], field(default_factory=part.default_factory))
        for part in fields(config)
        if part.default_factory is not MISSING  # agent and representation
    ]
    return make_dataclass("Train", options, frozen=True, namespace={"__doc__": config.__doc__})


def _field_docstrings(config: type) -> dict[str, str]:
    """The string below each field of a dataclass, from its source."""
    (definition,) = ast.parse(inspect.getsource(config)).body
    return {
        ast.unparse(line.target): " ".join(ast.literal_eval(below.value).split())
        for line, below in itertools.pairwise(getattr(definition, "body", []))
        if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


def _load_resumed(options: Resume) -> TrainConfig:
    """The config of the run in the folder, with the changes."""
    from derex.training.folder import load_config

    fixed = ("resume", "method", "env")
    given = {part.name: getattr(options, part.name) for part in fields(options) if part.name not in fixed}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(load_config(options.resume, options.method, options.env), out=options.resume, **changes)


def _show(result: TrainResult) -> None:
    """Prints the last line of metrics and the final score of each seed, times, and the folder."""
    columns = {"seed": "seed", "step": "step", "return": "return", "success": "success"}
    columns |= {"steps_per_second": "steps/s, all seeds"}
    scores = {f"final {name}": by_seed for name, by_seed in result.scores.items()}
    rows = [
        [format_number(line[name]) for name in columns]
        + [format_number(by_seed.get(line["seed"])) for by_seed in scores.values()]
        for line in result.final
    ]
    print_table([*columns.values(), *scores], rows)
    if scores:
        print("\nfinal: the mean over the last 2 % of the steps")
    print(f"\nCompiled in {result.compile_seconds:.0f} s, trained in {result.seconds:.0f} s; results in")
    print(f"  {result.out}")
