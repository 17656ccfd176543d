"""What the adapters of all host suites share: late imports, wrong names, options behind an @."""

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any


class NotInstalled(ImportError, ValueError):
    """A name asks for a package that is not there: for who imports a missing package, for who is asked a wrong name."""


def load(module: str, extra: str) -> Any:
    """Imports a package of an extra; where it is missing the error says what installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        raise NotInstalled(
            f'{package} is not installed. Install it with: pip install "derex[{extra}]"'
        ) from error


class Unreadable(TypeError, ValueError):
    """A task has spaces or specs that no agent here can use."""


def beside_user() -> None:
    """Modules in the working folder are found, as `python file.py` would find them; workers inherit that."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def unknown(suite: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that a suite does not have, with the nearest that it has."""
    known = list(known)
    folded = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1)
    hint = f" Did you mean '{suite}:{folded[close[0]]}'?" if close else ""
    return ValueError(f"name: {suite} has no {name!r}.{hint} `derex envs {suite}` lists all {len(known)}.")


def split_number(suite: str, name: str, usual: int, allowed: Iterable[int]) -> tuple[str, int]:
    """`NAME@2` as ("NAME", 2), and `NAME` alone as ("NAME", usual)."""
    base, at, number = name.partition("@")
    if not at:
        return base, usual
    allowed = list(allowed)
    if not number.isdecimal() or int(number) not in allowed:
        choices = ", ".join(map(str, allowed))
        raise ValueError(f"name: '{suite}:{name}' has {number!r} after the @; expected one of {choices}.")
    return base, int(number)
