"""Text for people and for files: errors of arguments, spelling hints, install commands, values as plain JSON.

Imports only the standard library, so that every package may use it.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    PathOption = Path
else:
    PathOption = Path | str
    """type of an option that accepts strings and holds a path: `convert_path` in `__post_init__`"""


LARGEST_COUNT = 1 << 20
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "counts": (lambda value: 1 <= value <= LARGEST_COUNT, f"at least 1 and at most {LARGEST_COUNT}"),
    "positive": (lambda value: 0.0 < value < math.inf, "a finite number above 0"),
    "weights": (lambda value: 0.0 <= value < math.inf, "a finite number, 0 or more"),
    "shares": (lambda value: 0.0 <= value <= 1.0, "a number in [0, 1]"),
}
"""kinds of numeric options: a test, and its words"""


def require(good: Any, name: str, expected: str, got: Any, fix: str = "") -> None:
    """Raises `ValueError` for the argument `name` unless `good`."""
    if not good:
        raise ValueError(f"{name}: expected {expected}, got {got}.{fix and ' ' + fix}")


def check_ranges(options: Any, prefix: str, **kinds: Sequence[str]) -> None:
    """Checks numeric fields by their kinds: `check_ranges(self, "agent.", counts=("width",), shares=("gamma",))`."""
    for kind, names in kinds.items():
        is_good, expected = RANGES[kind]
        for name in names:
            value = getattr(options, name)
            require(is_good(value), f"{prefix}{name}", expected, value)


def convert_path(options: Any, name: str) -> None:
    """Replaces a string in the field `name` of a frozen dataclass by a path."""
    value = getattr(options, name)
    if isinstance(value, str):
        object.__setattr__(options, name, Path(value))


def closest_match(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to `word`, ignoring case; None if none is similar."""
    folded = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def hint(word: str, known: Iterable[str], prefix: str = "") -> str:
    """ " Did you mean 'x'?" with the known name most similar to `word`; empty if none is similar."""
    found = closest_match(word, known)
    return "" if found is None else f" Did you mean {prefix + found!r}?"


def install_command(extra: str) -> str:
    """The pip command that installs an extra of derex from where derex itself was installed.

    A source checkout is named by its folder and a repository by its address; otherwise pip asks the package index.
    """
    editable, source = _find_source()
    if source is None:
        return f"pip install 'derex[{extra}]'"
    if "://" in source:
        return f"pip install 'derex[{extra}] @ {source}'"
    return f"pip install {'-e ' if editable else ''}'{source}[{extra}]'"


def _find_source() -> tuple[bool, str | None]:
    """Whether derex is an editable installation, and its folder or address; None if it came from a package index."""
    try:
        text = importlib.metadata.distribution("derex").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        folder = Path(__file__).parents[2]
        return True, str(folder) if (folder / "pyproject.toml").is_file() else None
    if text is None:
        return False, None
    found = json.loads(text)  # PEP 610
    address = urlsplit(found["url"])
    folder = unquote(address.path)
    if "dir_info" in found:
        editable = bool(found["dir_info"].get("editable"))
        return editable, folder if Path(folder, "pyproject.toml").is_file() else None
    if "vcs_info" in found:
        return False, f"{found['vcs_info']['vcs']}+{found['url']}"
    return False, found["url"] if address.scheme != "file" or Path(folder).is_file() else None


def to_plain(value: Any, non_finite: Literal["null", "text"] = "null", digits: int | None = None) -> Any:
    """The value as dicts, lists, strings and numbers that `json.dumps(..., allow_nan=False)` writes.

    Args:
        value: dataclasses and mappings become dicts; sequences and arrays, lists; paths, strings.
        non_finite: what NaN and infinity become: None, or the strings "nan", "inf" and "-inf".
        digits: round floats to this many significant digits; None: do not round.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name), non_finite, digits) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(part, non_finite, digits) for name, part in value.items()}
    if hasattr(value, "tolist"):  # arrays and their scalars
        return to_plain(value.tolist(), non_finite, digits)
    if isinstance(value, list | tuple):
        return [to_plain(part, non_finite, digits) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None if non_finite == "null" else str(value)
    return value if digits is None else float(f"{value:.{digits}g}")
