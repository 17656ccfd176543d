"""`derex train`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from derex.cli.parsing import parse
from derex.cli.tables import cell, print_table

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


@dataclass(frozen=True)
class Selection:
    """What decides which other options `derex train` has."""

    method: str = "derex"
    form: str = ""
    preset: str = ""
    env: str = ""


@dataclass(frozen=True)
class Resume:
    """Go on with a run, with the options that it has; those below may change."""

    resume: Path
    """folder of the run"""
    steps: int | float | None = None
    """environment steps of each seed in all, those before included; none: as many as it was to have"""
    log_every: int | float | None = None
    """environment steps between lines of metrics; none: as before"""
    save_every: float | None = None
    """seconds between checkpoints; none: as before"""
    keep: int | None = None
    """how many checkpoints are kept besides the best; none: as before"""
    loggers: tuple[str, ...] | None = None
    """tensorboard, wandb; none: as before"""
    max_skipped: int | None = None
    """updates in a row that may be skipped; none: as before"""
    workers: int | None = None
    """processes that step host environments; none: as before"""
    worker_timeout: float | None = None
    """seconds without an answer after which a worker is started again; none: as before"""
    worker_restarts: int | None = None
    """how often a worker may be started again in a row; none: as before"""
    method: str | None = None
    """where the run's method is your own, package.module:Class; code is imported only when you name it"""
    env: str | None = None
    """where the run's environment is your own code, such as jax:package.module:Class; for the same reason"""


def run(arguments: list[str]) -> int:
    """`derex train --env NAME --out DIR [options]`; the options of the method depend on which it is."""
    from derex.progress import ProgressBar
    from derex.training.logging import TrainingBar
    from derex.training.run import Stopped, train

    config = _config(arguments)
    steps = config.iterations * config.iteration_steps
    try:
        with ProgressBar(f"{_brief(config.env)} {config.method}") as bar:
            bar.start()
            result = train(config, TrainingBar(bar, steps, config.seeds))
    except Stopped as stopped:
        print(f"derex: {stopped}", file=sys.stderr)
        return stopped.exit_code
    _show(result)
    return 0


def _brief(env: str) -> str:
    """A name that leaves room for progress beside it: of a list the first and how many more."""
    first, *others = env.split(",")
    return f"{first} and {len(others)} more" if others else first


def _config(arguments: list[str]) -> TrainConfig:
    """What is asked for, a new run or an earlier one."""
    import tyro

    from derex.training.config import config_type

    if any(word.split("=")[0] == "--resume" for word in arguments):
        return _resumed(parse(Resume, arguments, "derex train", EXAMPLES))
    chosen, _ = tyro.cli(Selection, args=arguments, add_help=False, return_unknown_args=True)
    options = config_type(chosen.method, chosen.form, chosen.preset, chosen.env)
    return parse(with_preset(options), arguments, "derex train", EXAMPLES, pairs=True)


def with_preset(config: type) -> type:
    """The same options and `--preset`, which has done its work by then: the defaults are those it names."""
    import tyro

    text = (
        "defaults for agent and representation that go together, which any option still overrides: exploration, as in "
        "that study; paper, as its appendix prints them; small, for small tasks"
    )
    option = ("preset", Annotated[str, tyro.conf.arg(help=text)], field(default=""))
    return make_dataclass(
        "TrainConfig",
        [option],
        bases=(config,),
        frozen=True,
        namespace={"__module__": __name__, "__doc__": config.__doc__},
    )


def _resumed(options: Resume) -> TrainConfig:
    """The config of the run in the folder, with what may change."""
    from derex.training.folder import load_config

    names = ("steps", "log_every", "loggers", "save_every", "keep", "max_skipped")
    names += ("workers", "worker_timeout", "worker_restarts")
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(load_config(options.resume, options.method, options.env), out=options.resume, **changes)


def _show(result: TrainResult) -> None:
    """The last line of each seed, its final score, and where all is."""
    columns = {"seed": "seed", "step": "step", "return": "return", "success": "success"}
    columns |= {"steps_per_second": "steps/s, all seeds"}
    scores = {f"final {name}": of_seeds for name, of_seeds in result.scores.items()}
    rows = [
        [cell(line[name]) for name in columns]
        + [cell(of_seeds.get(line["seed"])) for of_seeds in scores.values()]
        for line in result.final
    ]
    print_table([*columns.values(), *scores], rows)
    if scores:
        print("\nfinal: the mean over the last 2 % of the steps")
    print(f"\nCompiled in {result.compile_seconds:.0f} s, trained in {result.seconds:.0f} s; results in")
    print(f"  {result.out}")
