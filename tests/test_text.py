"""Spelling hints, install commands and plain JSON."""

import importlib.metadata
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from derex._text import hint, install_command, to_plain


def test_the_most_similar_name_is_suggested() -> None:
    assert hint("catc", ["catch", "recall-2"]) == " Did you mean 'catch'?"
    assert hint("GOTOOBJ", ["GoToObj"], prefix="babyai:") == " Did you mean 'babyai:GoToObj'?"
    assert hint("xyz", ["catch"]) == ""


@pytest.fixture
def installed_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any] | None], None]:
    """Makes derex's metadata name this source (PEP 610); None: a package index."""

    def install(source: dict[str, Any] | None) -> None:
        text = None if source is None else json.dumps(source)
        found = SimpleNamespace(read_text=lambda name: text)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)

    return install


def test_extras_are_installed_from_where_derex_is(installed_from: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    installed_from({"url": folder.as_uri(), "dir_info": {"editable": True}})
    assert install_command("gymnax") == f"pip install -e '{folder}[gymnax]'"
    installed_from({"url": folder.as_uri(), "dir_info": {}})
    assert install_command("gymnax") == f"pip install '{folder}[gymnax]'"
    installed_from({"url": "https://host/derex.git", "vcs_info": {"vcs": "git", "commit_id": "0"}})
    assert install_command("gymnax") == "pip install 'derex[gymnax] @ git+https://host/derex.git'"
    wheel = tmp_path / "derex-1-py3-none-any.whl"
    wheel.touch()
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("gymnax") == f"pip install 'derex[gymnax] @ {wheel.as_uri()}'"


@pytest.mark.parametrize(
    "source",
    [
        None,
        {"url": "file:///no/such/folder", "dir_info": {"editable": True}},
        {"url": "file:///no/such/derex.whl", "archive_info": {}},
    ],
)
def test_a_source_that_is_gone_is_not_advised(installed_from: Any, source: dict[str, Any] | None) -> None:
    installed_from(source)
    assert install_command("gymnax") == "pip install 'derex[gymnax]'"


def test_a_checkout_on_the_python_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("gymnax") == f"pip install -e '{Path(__file__).parents[1]}[gymnax]'"


@dataclass
class Inner:
    values: Any
    folder: Path


def test_values_become_plain_json() -> None:
    value = {
        "inner": Inner(np.array([[1.5, np.nan]], np.float32), Path("a/b")),
        "flag": True,
        "n": np.int64(3),
    }
    expected = {"inner": {"values": [[1.5, None]], "folder": "a/b"}, "flag": True, "n": 3}
    assert to_plain(value) == expected
    assert type(to_plain(np.int64(3))) is int
    assert to_plain([math.inf, -math.inf, math.nan, (1.0, "x")], "text") == ["inf", "-inf", "nan", [1.0, "x"]]
    assert to_plain(np.array([1 / 3, 2e9 / 3]), digits=6) == [0.333333, 666667000.0]
