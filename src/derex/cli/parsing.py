"""Options of a command from a dataclass, by tyro."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

from derex._text import PathOption


class UsageError(ValueError):
    """The command line asks for something that is not there."""


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

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_path_rule)
    try:
        return tyro.cli(
            config,
            prog=command,
            description=inspect.cleandoc(config.__doc__) if config.__doc__ else summary,
            args=arguments,
            config=() if pairs else (tyro.conf.FlagCreatePairsOff,),
            registry=registry,
        )
    except SystemExit as stop:
        if not stop.code and {"-h", "--help"} & set(arguments):
            print(examples_text(examples))
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


def check_checkpoint(which: str) -> None:
    """Refuses what names no checkpoint."""
    if which not in ("latest", "best") and not which.isdecimal():
        raise ValueError(f"--checkpoint: expected latest, best, or a step; got {which!r}.")


def check_seed(seed: int) -> None:
    """Refuses what is no seed."""
    if not 0 <= seed < 2**31:
        raise ValueError(f"--seed: expected 0 or more and less than {2**31}, got {seed}.")


def columns_text(entries: dict[str, str]) -> list[str]:
    """Lines of a help text: names and what they are."""
    return [f"  {name:<12}{text}" for name, text in entries.items()]


def examples_text(commands: tuple[str, ...]) -> str:
    """The end of a help text."""
    return "examples:\n" + textwrap.indent("\n".join(commands), "  ")
