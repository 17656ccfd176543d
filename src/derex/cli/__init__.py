"""The `derex` command: finds the command that the first word names, and turns errors into messages and exit codes.

Options are parsed by tyro. JAX, scikit-learn, orbax and the plotting libraries are imported when a command runs, so
that every `--help` is quick.

Exit codes: 0 success; 1 `derex doctor` found a problem; 2 bad input; 130 stopped by Ctrl-C; 141 the reader of stdout
has left (`derex envs | head -1`), as shells report SIGPIPE.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from derex._text import closest_match
from derex._version import __version__
from derex.cli import studies
from derex.cli.parsing import UsageError, help_page, parse
from derex.compilation import enable_compilation_cache

__all__ = ["COMMANDS", "main", "parse"]


class Command(NamedTuple):
    """A command: its function, as `module:function`, and what it does."""

    function: str
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "derex.cli.studies:run_demo", "Figures 2 and 3 of the paper, quick: numbers, pictures, pages to open"
    ),
    "reproduce": Command("derex.cli.studies:run_reproduce", "one study in full, or short with --quick"),
    "train": Command("derex.cli.train:run", "an agent on an environment, several seeds side by side"),
    "envs": Command("derex.cli.envs:run", "environments, suites that can be installed; check your own"),
    "eval": Command("derex.cli.runs:run_eval", "whole episodes of a trained agent: return, success, length"),
    "video": Command("derex.cli.runs:run_video", "episodes of a trained agent as a film"),
    "plot": Command("derex.cli.runs:run_plot", "learning curves and final scores of run folders"),
    "export": Command("derex.cli.runs:run_export", "a trained agent for use elsewhere"),
    "doctor": Command("derex.cli:run_doctor", "versions, devices, optional suites; does compilation work?"),
}

BAD_INPUT = (ValueError, OSError)  # OSError: a path that is a file, not ours, not writable, on a full disk


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; without `argv`, the process's own arguments."""
    try:
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # so that a closed pipe raises here, not when Python exits
    except BAD_INPUT as error:
        if isinstance(error, BrokenPipeError) and _reader_has_left():
            return 141
        if os.environ.get("DEREX_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"derex: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nderex: stopped. Files are written atomically: none was left incomplete.", file=sys.stderr)
        if argv is None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)  # Python's own clean-up can crash while a program is being compiled
        return 130
    except Exception as error:
        # JAX's error is recognised without importing JAX.
        on_device = type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)
        if not on_device and not isinstance(error, MemoryError):
            raise
        text = f"out of memory: {_one_line(error)[:200]} Use smaller sizes, or a larger machine."
        print(f"derex: error: {text}", file=sys.stderr)
        return 2


def run_doctor(arguments: list[str]) -> int:
    """`derex doctor [--json]`."""
    from derex import doctor

    examples = ("derex doctor", "derex doctor --json")
    return doctor.run(parse(doctor.Doctor, arguments, "derex doctor", examples))


def _dispatch(arguments: list[str]) -> int:
    """Calls the command with the remaining arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help_text())
        return 0
    command, *rest = arguments
    if command == "--version":
        print(f"derex {__version__}")
        return 0
    if command not in COMMANDS:
        raise UsageError(_unknown_command(command))
    enable_compilation_cache()
    return studies.load(COMMANDS[command].function)(rest)


def _help_text() -> str:
    head = f"derex {__version__}: singular-value decomposition of an agent's experience, in JAX"
    sections = {
        "commands": {name: command.summary for name, command in COMMANDS.items()},
        "options": {"-h, --help": "this text; after a command, its options", "--version": "the version"},
    }
    note = "DEREX_TRACEBACK=1 in the environment shows where an error came from."
    examples = (
        "derex doctor",
        "derex demo",
        "derex train --env rooms-chain-8 --steps 1e6 --out runs/first",
        "derex reproduce tabular --quick",
    )
    return help_page((head, "usage: derex COMMAND [options]"), sections, note, examples)


def _unknown_command(word: str) -> str:
    """The error for an unknown first word, with the most similar command; a study's name counts as one."""
    meanings = {name: name for name in (*COMMANDS, "--help", "--version")}
    meanings |= {name: f"reproduce {name}" for name in studies.STUDIES}
    close = closest_match(word, meanings)
    advice = f"Did you mean 'derex {meanings[close]}'?" if close else f"Commands: {', '.join(COMMANDS)}."
    return f"there is no {'option' if word.startswith('-') else 'command'} {word!r}. {advice}"


def _one_line(error: BaseException) -> str:
    """The error's message on one line: with the path for errors of the operating system."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ChildProcessError):  # contains the traceback of another process
        return str(error)
    return " ".join(str(error).split()) or type(error).__name__


def _reader_has_left() -> bool:
    """Whether the reader of stdout has closed it, as `head` does; the rest of the output is then discarded."""
    try:
        stdout = sys.stdout.fileno()
    except OSError:  # stdout is not a file
        return False
    poll = select.poll()
    poll.register(stdout, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        return False
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stdout)
    os.close(null)
    return True
