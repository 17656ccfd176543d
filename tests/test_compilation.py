"""The persistent compilation cache: where it is, who may choose it, how large it gets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from derex.compilation import find_cache_folder, remove_oldest

PROGRAM = """
import sys
from derex.compilation import enable_compilation_cache
if sys.argv[1] == "late":
    import jax
    jax.jit(lambda x: x - 1)(2.0)
print(enable_compilation_cache())
assert ("jax" in sys.modules) == (sys.argv[1] == "late")
import jax
jax.jit(lambda x: x + 1)(2.0)
"""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, os.path.expanduser("~/.cache/derex/jax")),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/derex/jax"),
        ({"XDG_CACHE_HOME": "relative"}, None),
        ({"DEREX_COMPILATION_CACHE": "/mine"}, "/mine"),
        ({"DEREX_COMPILATION_CACHE": "off"}, None),
        ({"DEREX_COMPILATION_CACHE": "OFF", "XDG_CACHE_HOME": "/caches"}, None),
        ({"JAX_COMPILATION_CACHE_DIR": "/theirs", "DEREX_COMPILATION_CACHE": "/mine"}, None),
    ],
)
def test_folder_is_the_users_choice_or_in_their_cache(
    variables: dict[str, str], expected: str | None
) -> None:
    assert find_cache_folder(variables) == (None if expected is None else Path(expected))


def run(folder: Path, when: str = "early") -> str:
    """What `enable_compilation_cache` returns in another process, before or after JAX was used."""
    variables = {
        name: value for name, value in os.environ.items() if name not in ("JAX_COMPILATION_CACHE_DIR",)
    }
    variables |= {"DEREX_COMPILATION_CACHE": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, when], env=variables, capture_output=True, text=True, check=True
    )
    assert "Warning" not in done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("when", ["early", "late"])
def test_programs_are_written_to_the_folder(tmp_path: Path, when: str) -> None:
    folder = tmp_path / "new" / "cache"
    assert run(folder, when) == str(folder)
    assert list(folder.glob("jit__lambda*-cache"))
    assert folder.stat().st_mode & 0o077 == 0


def test_folder_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "cache") == "None"


def test_programs_unused_for_longest_are_removed(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(bytes(10))
        os.utime(path, (1e9 - age, 1e9 - age))
    remove_oldest(tmp_path, 25)
    assert {path.name for path in tmp_path.iterdir()} == {"new-cache", "middle-cache"}
    remove_oldest(tmp_path, 25)
    assert len(list(tmp_path.iterdir())) == 2
