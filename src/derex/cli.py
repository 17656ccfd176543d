"""The `derex` command.

Commands and studies are looked up here and their options are parsed by tyro. JAX, scikit-learn and the plotting
libraries are imported when a study runs, so that every `--help` is quick.

Exit codes: 0 done; 1 `derex doctor` found something broken; 2 bad input; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from derex._version import __version__

if TYPE_CHECKING:
    from derex.experiments.result import StudyResult


class Study(NamedTuple):
    """Where a study is, as `module:attribute`, imported when it is asked for."""

    config: str
    run: str
    summary: str


STUDIES: dict[str, Study] = {
    "tabular": Study(
        "derex.experiments.decomposition.definition:TabularStudy",
        "derex.experiments.decomposition.run:run",
        "Figure 2: states as ids, learnt against exact",
    ),
    "pixels": Study(
        "derex.experiments.decomposition.definition:PixelsStudy",
        "derex.experiments.decomposition.run:run",
        "Figure 3: states as pictures, learnt against exact",
    ),
    "unseen": Study(
        "derex.experiments.unseen.definition:UnseenStudy",
        "derex.experiments.unseen.run:run",
        "the bonus on states that the data never visited",
    ),
    "asymmetry": Study(
        "derex.experiments.asymmetry.definition:AsymmetryStudy",
        "derex.experiments.asymmetry.run:run",
        "one-way doors: the SVD against the graph Laplacian",
    ),
    "pomdp": Study(
        "derex.experiments.pomdp.definition:PomdpStudy",
        "derex.experiments.pomdp.run:run",
        "Section 5, appendix D: beliefs and bonuses when the agent is hidden",
    ),
    "exploration": Study(
        "derex.experiments.exploration.definition:ExplorationStudy",
        "derex.experiments.exploration.run:run",
        "the methods on exploration environments: success against steps",
    ),
}

DEMO = ("tabular", "pixels")

COMMANDS: dict[str, str] = {
    "demo": "Figures 2 and 3 of the paper, quick: numbers, pictures, pages to open",
    "reproduce": "one study in full, or short with --quick",
    "train": "an agent on an environment, several seeds side by side",
    "doctor": "versions, devices, optional suites; does compilation work?",
}

BAD_INPUT = (ValueError, OSError)  # OSError: a folder that is a file, not ours, not writable, on a full disk


class UsageError(ValueError):
    """The command line asks for something that is not there."""


@dataclass(frozen=True)
class Demo:
    """Figures 2 and 3 of the paper, quick: learnt from ids and from pixels."""

    out: Path = Path("results/demo")
    """folder for the results; each study gets its own inside"""


@dataclass(frozen=True)
class Selection:
    """What decides which other options `derex train` has."""

    method: str = "derex"
    form: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; with no `argv`, the process's own arguments."""
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv))
    except BAD_INPUT as error:
        if os.environ.get("DEREX_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"derex: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nderex: stopped. Each file is put in its place when whole, so nothing was left half-written.",
            file=sys.stderr,
        )
        return 130


def _dispatch(arguments: list[str]) -> int:
    """Hand the arguments to the command that they name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(main_help())
        return 0
    command, *rest = arguments
    if command == "--version":
        print(f"derex {__version__}")
        return 0
    if command not in COMMANDS:
        raise UsageError(_unknown_command(command))
    return {"demo": _demo, "reproduce": _reproduce, "train": _train, "doctor": _doctor}[command](rest)


def _reproduce(arguments: list[str]) -> int:
    """`derex reproduce STUDY [options]`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(reproduce_help(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name.startswith("-"):
        raise UsageError(f"name the study before its options: derex reproduce {{{','.join(STUDIES)}}} {name}")
    if name not in STUDIES:
        raise UsageError(_unknown_study(name))
    study = STUDIES[name]
    command = f"derex reproduce {name}"
    examples = (f"{command} --quick", f"{command} --out elsewhere/{name}")
    config = parse(_load(study.config), rest, command, examples, study.summary)
    _show([(name, _run(name, config))])
    return 0


def _demo(arguments: list[str]) -> int:
    """`derex demo [--out DIR]`."""
    options = parse(Demo, arguments, "derex demo", ("derex demo", "derex demo --out /tmp/look"))
    configs = {name: _load(STUDIES[name].config)(out=options.out / name, quick=True) for name in DEMO}
    _show([(name, _run(name, config)) for name, config in configs.items()])
    return 0


def _train(arguments: list[str]) -> int:
    """`derex train --env NAME --out DIR [options]`; the options of the method depend on which it is."""
    import tyro

    from derex.training.config import config_type
    from derex.training.progress import TrainProgress
    from derex.training.run import train

    chosen, _ = tyro.cli(Selection, args=arguments, add_help=False, return_unknown_args=True)
    examples = (
        "derex train --env rooms-chain-8 --method derex --steps 1e7 --seeds 3 --out runs/derex",
        "derex train --env catch --method vmpo --agent.width 64 --out runs/catch",
        "derex train --method derex --form states --help",
    )
    config = parse(config_type(chosen.method, chosen.form), arguments, "derex train", examples, pairs=True)
    steps = config.iterations * config.iteration_steps
    with TrainProgress(f"{config.env} {config.method}", steps, config.seeds) as progress:
        result = train(config, progress)
    columns = {"seed": "seed", "step": "step", "return": "return", "success": "success"}
    columns |= {"steps_per_second": "steps/s, all seeds"}
    rows = [[_cell(line[name]) for name in columns] for line in result.final]
    _print_table(list(columns.values()), rows)
    print(f"\nCompiled in {result.compile_seconds:.0f} s, trained in {result.seconds:.0f} s; results in")
    print(f"  {result.out}")
    return 0


def _doctor(arguments: list[str]) -> int:
    """`derex doctor [--json]`."""
    from derex import doctor

    options = parse(doctor.Doctor, arguments, "derex doctor", ("derex doctor", "derex doctor --json"))
    return doctor.run(options)


def parse(
    config: type,
    arguments: list[str],
    command: str,
    examples: tuple[str, ...],
    summary: str | None = None,
    pairs: bool = False,
) -> Any:
    """Fill the dataclass `config` from the arguments; `--help` prints its fields, then the examples.

    With `pairs` each flag can be given as --x and as --no-x.
    """
    import tyro

    try:
        return tyro.cli(
            config,
            prog=command,
            description=inspect.cleandoc(config.__doc__) if config.__doc__ else summary,
            args=arguments,
            config=() if pairs else (tyro.conf.FlagCreatePairsOff,),
        )
    except SystemExit as stop:
        if not stop.code and {"-h", "--help"} & set(arguments):
            print(_examples(examples))
        raise


def _run(name: str, config: Any) -> StudyResult:
    """Run one study, saying what it does and how long it took on stderr."""
    short = " (quick)" if config.quick else ""
    print(f"derex: {name}{short}, results in {config.out}", file=sys.stderr, flush=True)
    run: Callable[[Any], StudyResult] = _load(STUDIES[name].run)
    start = time.perf_counter()
    result = run(config)
    print(f"derex: {name} took {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return result


def _show(results: list[tuple[str, StudyResult]]) -> None:
    """One table of all studies' numbers, then where the pages are."""
    columns = list(dict.fromkeys(column for _, result in results for column in result.columns))
    rows = []
    for name, result in results:
        for row in result.rows:
            cells = dict(zip(result.columns, row, strict=True))
            rows.append([name, *(cells.get(column, "") for column in columns)])
    _print_table(["study", *columns], rows)
    print("\nOpen in a browser:")
    for _, result in results:
        print(f"  {result.page}")


def _print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Heads give way before cells do, and nothing is cut off; a file or a pipe gets lines as long as they are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    room = (Console().width if sys.stdout.isatty() else 200) - 2 * len(columns)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widths = _column_widths(columns, rows, room)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(Text(column), overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=sum(widths) + 2 * len(columns)).print(table)


def _cell(value: int | float | None) -> str:
    """A number as it is printed; a dash for none."""
    return "–" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value}"


def _column_widths(columns: list[str], rows: list[list[str]], room: int) -> list[int]:
    """Widths that sum to `room` or less where that leaves each column its cells, or 10 characters of them."""
    cells = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    widths = [max(len(column), cell) for column, cell in zip(columns, cells, strict=True)]
    least = [min(10, cell) for cell in cells]
    while sum(widths) > room and widths != least:
        spare = [width - floor for width, floor in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def main_help() -> str:
    """What `derex` and `derex --help` print."""
    return "\n".join(
        [
            f"derex {__version__}: singular-value decomposition of an agent's experience, in JAX",
            "",
            "usage: derex COMMAND [options]",
            "",
            "commands:",
            *_columns(COMMANDS),
            "",
            "options:",
            *_columns({"-h, --help": "this text; after a command, its options", "--version": "the version"}),
            "",
            "DEREX_TRACEBACK=1 in the environment shows where an error came from.",
            "",
            _examples(
                (
                    "derex doctor",
                    "derex demo",
                    "derex train --env rooms-chain-8 --steps 1e6 --out runs/first",
                    "derex reproduce tabular --quick",
                )
            ),
        ]
    )


def reproduce_help() -> str:
    """What `derex reproduce --help` prints."""
    return "\n".join(
        [
            "usage: derex reproduce STUDY [options]",
            "",
            "Run one study and write its numbers, pictures and a page to open.",
            "",
            "studies:",
            *_columns({name: study.summary for name, study in STUDIES.items()}),
            "",
            "Each study has options of its own: derex reproduce STUDY --help",
            "",
            _examples(("derex reproduce tabular --quick", "derex reproduce pixels --help")),
        ]
    )


def _columns(entries: dict[str, str]) -> list[str]:
    return [f"  {name:<12}{text}" for name, text in entries.items()]


def _examples(commands: tuple[str, ...]) -> str:
    return "examples:\n" + textwrap.indent("\n".join(commands), "  ")


def _unknown_command(word: str) -> str:
    """Says what is wrong with the first word and what was probably meant; a study's name counts as a command."""
    meanings = {name: name for name in (*COMMANDS, "--help", "--version")}
    meanings |= {name: f"reproduce {name}" for name in STUDIES}
    close = difflib.get_close_matches(word, meanings, n=1)
    known = f"Commands: {', '.join(COMMANDS)}."
    hint = f"Perhaps you meant: derex {meanings[close[0]]}" if close else known
    return f"there is no {'option' if word.startswith('-') else 'command'} {word!r}. {hint}"


def _unknown_study(word: str) -> str:
    """Says which studies there are and which one was probably meant."""
    close = difflib.get_close_matches(word, STUDIES, n=1)
    hint = f"Perhaps you meant: derex reproduce {close[0]}. " if close else ""
    return f"there is no study {word!r}. {hint}Studies: {', '.join(STUDIES)}."


def _load(path: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _one_line(error: BaseException) -> str:
    """The error's message on one line; the operating system's errors with the path in front."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
