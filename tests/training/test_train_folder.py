"""The folder of a run: whose it is, what is written, and what numbers become lines."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make
from derex.envs.wrappers import EpisodeSums
from derex.training import folder as folder_module
from derex.training.folder import (
    FullDiskError,
    append_lines,
    check_folder,
    check_metrics,
    cut_metrics,
    describe_platform,
    find_commit,
    load_config,
    lock_folder,
    make_folder,
    remove_run,
    source_commit,
)
from derex.training.learner import Skips
from derex.training.metrics import (
    DivergedError,
    IntervalSums,
    check_skipped_updates,
    make_lines,
    rank_correlation,
)


def earlier_run(folder: Path) -> Path:
    (folder / "checkpoints" / "64").mkdir(parents=True)
    (folder / "config.json").write_text('{"command": "train"}')
    for name in ("metrics.jsonl", "events.jsonl", "visitation.npz", "visitation.png"):
        (folder / name).write_text("old")
    (folder / "notes.txt").write_text("mine")
    return folder


def test_a_new_or_empty_folder_is_made(tmp_path: Path) -> None:
    for _ in range(2):
        check_folder(tmp_path / "a" / "b")
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("content", ["[]", "{", '{"command": "other"}'])
def test_another_folder_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(FileExistsError, match="holds no run; choose another folder"):
        check_folder(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file"):
        check_folder(tmp_path / "a")


def test_of_an_earlier_run_only_its_own_files_are_removed(tmp_path: Path) -> None:
    folder = earlier_run(tmp_path / "a")
    check_folder(folder)
    assert len(list(folder.iterdir())) == 7
    remove_run(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_what_a_kill_leaves_of_a_config_is_nobodys_run(tmp_path: Path) -> None:
    """Killed while config.json was written: only its temporary file is there."""
    (tmp_path / ".config.json.x1y2.tmp").write_text("{")
    check_folder(tmp_path)  # a new run may begin here
    (tmp_path / "config.json").write_text("{")  # the control: a file in its place is somebody's
    with pytest.raises(FileExistsError, match="holds no run"):
        check_folder(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(FileExistsError, match="another process is training in"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "a", Path("/proc/nowhere/a")):
        with pytest.raises(OSError, match=r"--out: .* cannot be written to: .*Choose another folder"):
            make_folder(folder)


def test_lines_after_a_step_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "seed": 0, "return": None, "success": None}) for step in (1, 2, 3)]
    path.write_text("\n".join(lines) + '\n{"st')
    cut_metrics(tmp_path, 2)
    assert path.read_text() == "\n".join(lines[:2]) + "\n"
    for damaged in ('{"st', '{"step": 2, "seed": 0, "success": null}', "5", "[]"):
        path.write_text("\n".join([lines[0], damaged, lines[2]]) + "\n")
        with pytest.raises(ValueError, match=r"metrics.jsonl has a damaged line: .*Repair or remove it"):
            cut_metrics(tmp_path, 2)


def test_lines_that_the_checkpoint_knows_of_are_missed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert check_metrics(tmp_path, 0, (0, 1)) == ""
    assert "lacks lines of step 4, which were written; its last step before is 0" in check_metrics(
        tmp_path, 4, (0, 1)
    )
    lines = [{"step": step, "seed": seed, "return": 0, "success": 0} for step in (2, 4) for seed in (0, 1)]
    append_lines(path, lines)
    assert check_metrics(tmp_path, 4, (0, 1)) == ""
    assert "its last step before is 4" in check_metrics(tmp_path, 4, (0, 1, 2))
    assert "its last step before is 2" in check_metrics(tmp_path, 3, (0, 1))


def test_a_full_disk_leaves_whole_lines() -> None:
    with pytest.raises(FullDiskError, match=r"--out: the disk of /dev is full"):
        append_lines(Path("/dev/full"), [{"step": 1}])


def test_a_method_of_ones_own_is_imported_only_when_it_is_named(tmp_path: Path) -> None:
    """A folder from elsewhere could name any code."""
    content = {"command": "train", "config": {"env": "catch", "method": "os:abort", "form": ""}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"'os:abort'.*add --method os:abort"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "config", ["{}", "[]", '{"env": 3}', '{"env": "catch", "method": "vmpo", "form": "", "x": 1}']
)
def test_a_damaged_config_is_named(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"command": "train", "config": {config}}}')
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        load_config(tmp_path)


def test_a_folder_without_a_run_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no run"):
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


def test_the_commit_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the folder in which it is called, nor that of a repository in which it is installed."""
    repository = tmp_path / "theirs"
    installed = repository / "site-packages" / "folder.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    new = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    try:
        subprocess.run([*new, "init", "-q"], check=True)
        subprocess.run([*new, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    except OSError:
        pytest.skip("there is no git here")
    monkeypatch.chdir(repository)
    said = describe_platform()
    assert said["commit_of_directory"] is not None
    assert said["commit_of_directory"] == find_commit(repository)
    assert said["commit"] == source_commit() != said["commit_of_directory"]
    monkeypatch.setattr(folder_module, "__file__", str(installed))
    assert source_commit() is None
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "commit_of_directory" not in describe_platform()


def reading(n: int, **changes: Any) -> IntervalSums:
    """Two seeds of three streams after four iterations."""
    whole = IntervalSums(
        iterations=np.array([4, 4], np.int32),
        skipped=np.array([0, 1], np.int32),
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
    first, second = make_lines(reading(1), make("catch").spec, 96, (5, 6), {"seconds": 1.5})
    assert first == {
        "step": 96, "seed": 5, "return": 0.75, "success": 0.25, "episode_length": 9.0, "episodes": 4,
        "seconds": 1.5, "value_loss": 0.5, "skipped_updates": 0, "spectrum": [0.5, 0.25],
    }  # fmt: skip
    assert (second["seed"], second["episodes"], second["value_loss"]) == (6, 0, 1.5)
    assert second["skipped_updates"] == 1
    assert second["return"] is second["success"] is second["episode_length"] is None
    json.dumps([first, second], allow_nan=False)


def test_nothing_learnt_is_null() -> None:
    changes = {"iterations": np.array([4, 0], np.int32), "skipped": np.array([0, 4], np.int32)}
    _, second = make_lines(reading(1, **changes), make("catch").spec, 96, (5, 6), {})
    assert (second["value_loss"], second["skipped_updates"]) == (None, 4)


def test_a_return_that_is_not_finite_is_null() -> None:
    whole = reading(1)
    returns = jnp.array([[1.0, 0.0, jnp.nan], [0, 0, 0]], jnp.float32)
    broken = whole._replace(episodes=whole.episodes._replace(returns=returns))
    first, _ = make_lines(broken, make("catch").spec, 96, (5, 6), {})
    assert (first["return"], first["success"]) == (None, 0.25)


def test_too_many_skipped_in_a_row_stop_the_run() -> None:
    causes = jnp.array([[False, False, False], [True, False, True]])
    skips = Skips(jnp.array([0, 1]), jnp.array([2, 3]), causes)
    check_skipped_updates(skips, 96, (5, 6), 4)
    says = "step 96, seed 6: 3 updates in a row were skipped because an observation and a loss or a gradient"
    with pytest.raises(DivergedError, match=says):
        check_skipped_updates(skips, 96, (5, 6), 3)


def test_rows_from_before_a_lower_limit_are_no_reason_to_stop() -> None:
    causes = jnp.array([[False, False, False], [True, False, True]])
    skips = Skips(jnp.array([0, 1]), jnp.array([2, 3]), causes)
    check_skipped_updates(skips, 96, (5, 6), 2, before=np.array([2, 3]))
    for now in (skips._replace(in_a_row=jnp.array([0, 2])), skips._replace(most=jnp.array([2, 4]))):
        with pytest.raises(DivergedError, match="seed 6: 2 updates in a row"):
            check_skipped_updates(now, 96, (5, 6), 2, before=np.array([2, 3]))


def test_success_is_null_where_it_is_not_defined() -> None:
    spec = make("catch").spec._replace(success_return=None)
    first, _ = make_lines(reading(1), spec, 96, (5, 6), {})
    assert (first["return"], first["success"]) == (0.75, None)


def test_states_are_counted_where_they_have_numbers() -> None:
    visits = np.array([[4, 2, 1, 0], [1, 1, 1, 1]], np.float32)
    bonuses = np.array([[4, 6, 5, 0], [1, 2, 3, 4]], np.float32)  # means 1, 3, 5 against 1/4, 1/2, 1
    numbered = make("catch").spec._replace(n_states=4)
    first, second = make_lines(reading(4, visits=visits, bonuses=bonuses), numbered, 96, (5, 6), {})
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
        make_lines(reading(1, **changes), make("catch").spec, 96, (5, 6), {})
