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

import tyro

from derex.cli.parsing import OWN_ENV, format_number, parse, print_table

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
RESUME = "resume the run in this folder with its own options; those that may change: derex train --resume DIR --help"
PRESET = (
    "defaults for agent and representation; other options override them. exploration: as in that study; paper: as in "
    "the paper's appendix; small: for small tasks"
)
GROUPS = {
    "": ("env", "out", "method", "form", "preset", "steps", "seeds", "streams", "overwrite", "resume"),
    "logging": ("log_every", "loggers", "save_every", "keep"),
    "workers": ("workers", "worker_timeout", "worker_restarts"),
    "numerics": ("seed", "deterministic", "max_skipped"),
}
"""options of `--help` in the order in which they are shown; those of agent and representation come last"""
OWN_CODE = {
    "method": "repeat the run's method here if it is your own package.module:Class; otherwise its code is not imported",
    "env": OWN_ENV,
}
"""options of `--resume` that name the user's own code"""


@dataclass(frozen=True)
class Selection:
    """Options that decide which other options `derex train` has."""

    method: str = "derex"
    form: str = ""
    preset: str = ""
    env: str = ""


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
    from derex.training.config import config_type

    if any(word.split("=")[0] == "--resume" for word in arguments):
        from derex.training.folder import load_config

        given = parse(resume_options(), arguments, "derex train", EXAMPLES)
        changes = {name: value for name, value in vars(given).items() if value is not None}
        folder, method, env = (changes.pop(name, None) for name in ("resume", *OWN_CODE))
        return replace(load_config(folder, method, env), out=folder, **changes)
    chosen, _ = tyro.cli(Selection, args=arguments, add_help=False, return_unknown_args=True)
    config = config_type(chosen.method, chosen.form, chosen.preset, chosen.env)
    given = parse(run_options(config), arguments, "derex train", EXAMPLES, pairs=True)
    values = {
        name: getattr(getattr(given, group) if group else given, name)
        for group, names in GROUPS.items()
        for name in names
        if name not in ("preset", "resume")  # `config` has the preset's defaults; `--resume` never gets here
    }
    return config(**values, agent=given.agent, representation=given.representation)


def run_options(config: type[TrainConfig]) -> type:
    """A dataclass with the options of `config` in the groups of `GROUPS`, and `--preset` and `--resume`."""
    hints = typing.get_type_hints(config) | {"preset": str, "resume": Path | None}
    texts = _field_docstrings(config.__mro__[1]) | {"preset": PRESET, "resume": RESUME}
    defaults = {part.name: part.default for part in fields(config)} | {"preset": "", "resume": None}
    options: list[Any] = []
    for group, names in GROUPS.items():
        members = [_option(name, hints[name], texts[name], defaults[name]) for name in names]
        if group:
            inner = make_dataclass(group, members, frozen=True)
            members = [(group, tyro.conf.OmitArgPrefixes[inner], field(default_factory=inner))]
        options += members
    options += [
        (part.name, hints[part.name], field(default_factory=part.default_factory))
        for part in fields(config)
        if part.default_factory is not MISSING  # agent and representation
    ]
    return make_dataclass("Train", options, frozen=True, namespace={"__doc__": config.__doc__})


def resume_options() -> type:
    """A dataclass with the options that may change when a run is resumed."""
    from derex.training.config import TrainConfig
    from derex.training.folder import MAY_CHANGE

    hints = typing.get_type_hints(TrainConfig)
    texts = {name: text.split("; none:")[0] for name, text in _field_docstrings(TrainConfig).items()}
    texts["steps"] += " in total, earlier ones included"
    options = [_option("resume", Path, "folder of the run")]
    options += [
        _option(name, hints[name] | None, f"{texts[name]}; none: as before", None) for name in MAY_CHANGE
    ]
    options += [_option(name, str | None, text, None) for name, text in OWN_CODE.items()]
    text = "Resume a run with its own options; those below may change."
    return make_dataclass("Resume", options, frozen=True, namespace={"__doc__": text})


def _option(name: str, hint: Any, text: str, default: Any = MISSING) -> tuple[str, Any, Any]:
    """A field for `make_dataclass`, with its text in `--help`."""
    return name, Annotated[hint, tyro.conf.arg(help=text)], field(default=default)


def _field_docstrings(config: type) -> dict[str, str]:
    """The string below each field of a dataclass, from its source."""
    (definition,) = ast.parse(inspect.getsource(config)).body
    return {
        ast.unparse(line.target): " ".join(ast.literal_eval(below.value).split())
        for line, below in itertools.pairwise(getattr(definition, "body", []))
        if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr)
    }


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
