"""Command-line options from dataclasses (by tyro), their checks, and text for terminals: help and tables."""

from __future__ import annotations

import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

from derex._text import PathOption

LARGEST_SEED = 2**31 - 1
OWN_ENV = (
    "repeat the run's environment here if it is your own code, such as jax:package.module:Class; otherwise its code is "
    "not imported"
)
"""text of --env where a run is read"""


class UsageError(ValueError):
    """The command line names something that does not exist."""


def parse(
    config: type,
    arguments: list[str],
    command: str,
    examples: tuple[str, ...],
    *,
    pairs: bool = False,
    default: Any = None,
) -> Any:
    """Fills the dataclass `config` from the arguments; `--help` prints its fields, then the examples.

    Args:
        config: dataclass whose fields are the options.
        arguments: words after the command.
        command: as the user calls it, for the help.
        examples: command lines printed after the help.
        pairs: whether each flag has a --no- form too.
        default: a `config` with other defaults than its own.
    """
    import tyro

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_path_rule)
    try:
        return tyro.cli(
            config,
            default=default,
            prog=command,
            description=inspect.getdoc(config),
            args=arguments,
            config=() if pairs else (tyro.conf.FlagCreatePairsOff,),
            registry=registry,
        )
    except SystemExit as stop:
        if not stop.code and {"-h", "--help"} & set(arguments):
            print(_examples_text(examples))
        raise


def _path_rule(info: Any) -> Any:
    """Shows options that accept strings as paths like other paths."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type != PathOption:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: Path(words[0]),
        is_instance=lambda value: isinstance(value, Path | str),
        str_from_instance=lambda value: [str(value)],
    )


def check_range(option: str, value: int, least: int, most: int) -> None:
    """Raises unless least ≤ value ≤ most."""
    if not least <= value <= most:
        raise ValueError(f"{option}: expected {least} to {most}, got {value}.")


def check_checkpoint(which: str) -> None:
    """Raises unless `which` is "latest", "best" or a step."""
    if which not in ("latest", "best") and not which.isdecimal():
        raise ValueError(f"--checkpoint: expected latest, best, or a step; got {which!r}.")


def help_page(
    head: tuple[str, ...], sections: dict[str, dict[str, str]], note: str, examples: tuple[str, ...]
) -> str:
    """A help text: paragraphs, lists of names and their descriptions, a note and examples."""
    lists = [
        "\n".join([f"{title}:", *(f"  {name:<12}{text}" for name, text in entries.items())])
        for title, entries in sections.items()
    ]
    return "\n\n".join([*head, *lists, note, _examples_text(examples)])


def _examples_text(commands: tuple[str, ...]) -> str:
    return "examples:\n" + textwrap.indent("\n".join(commands), "  ")


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Prints a table that fits the terminal: wide columns wrap first, and nothing is cut off.

    Lines written to a file or a pipe are up to 200 characters long.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        table.add_column(Text(column), overflow="fold", min_width=min(10, max(map(len, cells))))
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 200).print(table, crop=False)


def format_number(value: int | float | None) -> str:
    """A number for a table; a dash for None and NaN."""
    if value is None or value != value:  # NaN
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"
