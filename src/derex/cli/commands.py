"""The commands, and how the first word finds its own."""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from derex._text import closest_match
from derex._version import __version__
from derex.cli import studies
from derex.cli.parsing import UsageError, columns_text, examples_text
from derex.compilation import enable_compilation_cache

COMMANDS: dict[str, str] = {
    "demo": "Figures 2 and 3 of the paper, quick: numbers, pictures, pages to open",
    "reproduce": "one study in full, or short with --quick",
    "train": "an agent on an environment, several seeds side by side",
    "envs": "environments that are there, and suites that can be installed",
    "eval": "whole episodes of a trained agent: return, success, length",
    "video": "episodes of a trained agent as a film",
    "plot": "learning curves and final scores of run folders",
    "export": "a trained agent for use elsewhere",
    "doctor": "versions, devices, optional suites; does compilation work?",
}
"""each is a module of this package with `run(arguments) -> exit code`"""

BAD_INPUT = (ValueError, OSError)  # OSError: a folder that is a file, not ours, not writable, on a full disk


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; with no `argv`, the process's own arguments."""
    try:
        return _flushed(list(sys.argv[1:] if argv is None else argv))
    except BAD_INPUT as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 141
        if os.environ.get("DEREX_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"derex: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nderex: stopped. Each file is put in its place when whole, so nothing was left half-written.",
            file=sys.stderr,
        )
        if argv is None:
            _leave_at_once(130)
        return 130
    except Exception as error:
        if not _is_memory(error):
            raise
        print(
            f"derex: error: out of memory: {_one_line(error)[:200]} Ask for less at a time, or use a larger machine.",
            file=sys.stderr,
        )
        return 2


def _is_memory(error: Exception) -> bool:
    """Whether memory ran out, of the machine or a device; JAX's error is known by name, without importing JAX."""
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)
    )


def _flushed(arguments: list[str]) -> int:
    """What is printed goes out here, so that a reader who has left is noticed here, not while Python ends."""
    try:
        return _dispatch(arguments)
    finally:
        sys.stdout.flush()


def _nobody_reads() -> bool:
    """Whether the reader of what is printed has left, as `head` does: no mistake, and nobody to tell.

    What is still to be printed then goes nowhere, as Python would complain of it at its end.
    """
    try:
        printed = sys.stdout.fileno()
    except OSError:  # it is no file
        return False
    poll = select.poll()
    poll.register(printed, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, printed)
    os.close(nowhere)
    return True


def _leave_at_once(code: int) -> None:
    """Without Python's own clearing up, under which a program that is still being compiled can crash."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _dispatch(arguments: list[str]) -> int:
    """Hand the arguments to the command that they name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text())
        return 0
    command, *rest = arguments
    if command == "--version":
        print(f"derex {__version__}")
        return 0
    if command not in COMMANDS:
        raise UsageError(_unknown_command(command))
    enable_compilation_cache()
    return import_module(f"derex.cli.{command}").run(rest)


def help_text() -> str:
    """What `derex` and `derex --help` print."""
    return "\n".join(
        [
            f"derex {__version__}: singular-value decomposition of an agent's experience, in JAX",
            "",
            "usage: derex COMMAND [options]",
            "",
            "commands:",
            *columns_text(COMMANDS),
            "",
            "options:",
            *columns_text(
                {"-h, --help": "this text; after a command, its options", "--version": "the version"}
            ),
            "",
            "DEREX_TRACEBACK=1 in the environment shows where an error came from.",
            "",
            examples_text(
                (
                    "derex doctor",
                    "derex demo",
                    "derex train --env rooms-chain-8 --steps 1e6 --out runs/first",
                    "derex reproduce tabular --quick",
                )
            ),
        ]
    )


def _unknown_command(word: str) -> str:
    """Says what is wrong with the first word and what was probably meant; a study's name counts as a command."""
    meanings = {name: name for name in (*COMMANDS, "--help", "--version")}
    meanings |= {name: f"reproduce {name}" for name in studies.STUDIES}
    close = closest_match(word, meanings)
    advice = f"Did you mean 'derex {meanings[close]}'?" if close else f"Commands: {', '.join(COMMANDS)}."
    return f"there is no {'option' if word.startswith('-') else 'command'} {word!r}. {advice}"


def _one_line(error: BaseException) -> str:
    """The error's message on one line; the operating system's errors with the path in front, tracebacks as they are."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ChildProcessError):  # brings the traceback of another process
        return str(error)
    return " ".join(str(error).split()) or type(error).__name__
