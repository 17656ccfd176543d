"""The dispatcher: finds the command that the first word names, and turns errors into messages and exit codes."""

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
from derex.cli.parsing import UsageError, columns_text, examples_text, parse
from derex.compilation import enable_compilation_cache


class Command(NamedTuple):
    """A command: its function, as `module:function` of this package, and what it does."""

    function: str
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command(
        "studies:run_demo", "Figures 2 and 3 of the paper, quick: numbers, pictures, pages to open"
    ),
    "reproduce": Command("studies:run_reproduce", "one study in full, or short with --quick"),
    "train": Command("train:run", "an agent on an environment, several seeds side by side"),
    "envs": Command("envs:run", "environments, suites that can be installed; check your own"),
    "eval": Command("agents:run_eval", "whole episodes of a trained agent: return, success, length"),
    "video": Command("agents:run_video", "episodes of a trained agent as a film"),
    "plot": Command("plot:run", "learning curves and final scores of run folders"),
    "export": Command("agents:run_export", "a trained agent for use elsewhere"),
    "doctor": Command("commands:run_doctor", "versions, devices, optional suites; does compilation work?"),
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
        if not _is_memory(error):
            raise
        print(
            f"derex: error: out of memory: {_one_line(error)[:200]} Use smaller sizes, or a larger machine.",
            file=sys.stderr,
        )
        return 2


def run_doctor(arguments: list[str]) -> int:
    """`derex doctor [--json]`."""
    from derex import doctor

    return doctor.run(
        parse(doctor.Doctor, arguments, "derex doctor", ("derex doctor", "derex doctor --json"))
    )


def _is_memory(error: Exception) -> bool:
    """Whether the machine or a device ran out of memory; JAX's error is recognised without importing JAX."""
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" in str(error)
    )


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


def _dispatch(arguments: list[str]) -> int:
    """Calls the command with the remaining arguments."""
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
    return studies.load(f"derex.cli.{COMMANDS[command].function}")(rest)


def help_text() -> str:
    """The text of `derex --help`."""
    return "\n".join(
        [
            f"derex {__version__}: singular-value decomposition of an agent's experience, in JAX",
            "",
            "usage: derex COMMAND [options]",
            "",
            "commands:",
            *columns_text({name: command.summary for name, command in COMMANDS.items()}),
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
