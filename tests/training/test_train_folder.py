"""The folder of a run: whose it is, what is written, and what numbers become lines."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make
from derex.envs.wrappers import EpisodeSums
from derex.training.folder import append_lines, claim_folder, find_commit, load_config
from derex.training.metrics import DivergedError, Reading, lines_of, rank_correlation


def earlier_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"command": "train"}')
    for name in ("metrics.jsonl", "visitation.npz", "visitation.png"):
        (folder / name).write_text("old")
    (folder / "notes.txt").write_text("mine")
    return folder


def test_a_new_or_empty_folder_is_claimed(tmp_path: Path) -> None:
    claim_folder(tmp_path / "a" / "b", False)
    claim_folder(tmp_path / "a" / "b", False)
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("content", ["[]", "{", '{"command": "other"}'])
def test_another_folder_is_never_touched(tmp_path: Path, content: str, overwrite: bool) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(FileExistsError, match="holds no run of derex train; choose another folder"):
        claim_folder(tmp_path, overwrite)
    assert (tmp_path / "config.json").read_text() == content


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        claim_folder(tmp_path / "a", False)


def test_an_earlier_run_is_kept_until_told_otherwise(tmp_path: Path) -> None:
    folder = earlier_run(tmp_path / "a")
    with pytest.raises(FileExistsError, match="or begin again with --overwrite"):
        claim_folder(folder, False)
    assert len(list(folder.iterdir())) == 5
    claim_folder(folder, True)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_folder_without_a_run_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run of derex train"):
        load_config(tmp_path)


def test_lines_are_appended_whole_and_strict(tmp_path: Path) -> None:
    append_lines(tmp_path / "a", [{"x": 1}, {"x": None}])
    append_lines(tmp_path / "a", [{"x": 2.5}])
    assert (tmp_path / "a").read_text() == '{"x": 1}\n{"x": null}\n{"x": 2.5}\n'
    with pytest.raises(ValueError, match="JSON"):
        append_lines(tmp_path / "a", [{"x": 1}, {"x": float("nan")}])
    assert (tmp_path / "a").read_text().count("\n") == 3


def test_a_folder_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert find_commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_commit(Path(__file__).parent) is None


def reading(n: int, **changes: Any) -> Reading:
    """Two seeds of three streams after four iterations."""
    whole = Reading(
        iterations=np.array([4, 4], np.int32),
        numbers={"value_loss": np.array([2.0, 6.0], np.float32)},
        visits=np.zeros((2, n), np.float32),
        bonuses=np.zeros((2, n), np.float32),
        episodes=EpisodeSums(
            jnp.array([[1, 0, 3], [0, 0, 0]], jnp.int32),
            jnp.array([[1.0, 0.0, 2.0], [0, 0, 0]], jnp.float32),
            jnp.array([[9, 0, 27], [0, 0, 0]], jnp.int32),
            jnp.array([[1, 0, 0], [0, 0, 0]], jnp.int32),
        ),
        report={"spectrum": np.array([[0.5, 0.25], [1.0, 0.1]], np.float32)},
    )
    return whole._replace(**changes)


def test_sums_become_means() -> None:
    first, second = lines_of(reading(1), make("catch").spec, 96, (5, 6), {"seconds": 1.5})
    assert first == {
        "step": 96, "seed": 5, "return": 0.75, "success": 0.25, "episode_length": 9.0, "episodes": 4,
        "seconds": 1.5, "value_loss": 0.5, "spectrum": [0.5, 0.25],
    }  # fmt: skip
    assert (second["seed"], second["episodes"], second["value_loss"]) == (6, 0, 1.5)
    assert second["return"] is second["success"] is second["episode_length"] is None
    json.dumps([first, second], allow_nan=False)


def test_success_is_null_where_it_is_not_defined() -> None:
    spec = make("catch").spec._replace(success_return=None)
    first, _ = lines_of(reading(1), spec, 96, (5, 6), {})
    assert (first["return"], first["success"]) == (0.75, None)


def test_states_are_counted_where_they_have_numbers() -> None:
    visits = np.array([[4, 2, 1, 0], [1, 1, 1, 1]], np.float32)
    bonuses = np.array([[4, 6, 5, 0], [1, 2, 3, 4]], np.float32)  # means 1, 3, 5 against 1/4, 1/2, 1
    numbered = make("catch").spec._replace(n_states=4)
    first, second = lines_of(reading(4, visits=visits, bonuses=bonuses), numbered, 96, (5, 6), {})
    assert (first["states_seen"], first["bonus_rank_correlation"]) == (3, 1.0)
    assert (second["states_seen"], second["bonus_rank_correlation"]) == (4, None)


def test_a_constant_bonus_has_no_rank() -> None:
    visits = np.array([4.0, 2.0, 1.0])
    assert rank_correlation(visits, np.zeros(3)) is None
    assert rank_correlation(visits, visits * np.array([3.0, 2.0, 1.0])) == -1.0


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"numbers": {"value_loss": np.array([1.0, np.nan], np.float32)}}, "value_loss"),
        ({"numbers": {"kl": np.array([1.0, np.inf], np.float32)}}, "kl"),
        ({"report": {"spectrum": np.array([[1.0, 1.0], [1.0, np.nan]], np.float32)}}, "spectrum"),
    ],
)
def test_a_number_that_is_not_finite_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(DivergedError, match=f"diverged by step 96, seed 6: {what} not finite"):
        lines_of(reading(1, **changes), make("catch").spec, 96, (5, 6), {})
