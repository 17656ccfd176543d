"""Checkpoints on disk: what is saved is loaded, and every change is detected. No agent is needed."""

import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from derex.training import checkpoints
from derex.training.checkpoints import (
    CheckpointError,
    DamagedCheckpointError,
    Saver,
    SavingError,
    Snapshot,
    checkpoint_path,
    find_checkpoint,
    list_steps,
    load_arrays,
    prune,
    verify,
    write_checkpoint,
)
from derex.training.folder import FullDiskError


def snapshot(step: int, score: float | None = None, **arrays: np.ndarray) -> Snapshot:
    """Small, with all kinds of arrays."""
    state = {
        "learner/w": np.arange(6, dtype=np.float32).reshape(2, 3) + step,
        "key": np.array([[1, 2]], np.uint32),
        "count": np.asarray(7, np.int32),
        "flag": np.array([True, False]),
        "empty": np.zeros((2, 0), np.float32),
    } | arrays
    dtypes = {name: str(array.dtype) for name, array in state.items()} | {"key": "key<fry>"}
    visits = {"counts": np.full((1, 2), 2**40, np.int64), "bonuses": np.full((1, 2), 1 / 3)}
    return Snapshot(step, state, dtypes, visits, {"iterations": step}, score, {"env": "catch"})


def save(folder: Path, *steps: int, keep: int = 3) -> Saver:
    """Checkpoints of these steps."""
    saver = Saver(folder, keep)
    for step in steps:
        saver.save(snapshot(step))
    saver.wait()
    return saver


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    save(tmp_path, 32)
    found = find_checkpoint(tmp_path)
    assert (found.path, found.problems) == (tmp_path / "checkpoints" / "32", ())
    assert found.manifest["progress"] == {"iterations": 32}
    for part, arrays in load_arrays(found).items():
        expected = getattr(snapshot(32), part)
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])
    described = {entry["path"]: (entry["shape"], entry["dtype"]) for entry in found.manifest["arrays"]}
    assert described["key"] == ([1], "key<fry>")
    assert described["learner/w"] == ([2, 3], "float32")


def test_a_flipped_byte_in_any_file_is_noticed_and_the_one_before_is_used(tmp_path: Path) -> None:
    save(tmp_path, 32, 64)
    files = [path for path in (tmp_path / "checkpoints" / "64").rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        good = path.read_bytes()
        for place in sorted({0, len(good) // 2, len(good) - 1}) if good else [0]:
            bad = bytearray(good or b"\0")
            bad[place] ^= 1
            path.write_bytes(bad if good else b"x")
            found = find_checkpoint(tmp_path)
            assert found.path.name == "32", path
            assert len(found.problems) == 1
            with pytest.raises(CheckpointError, match=r"checkpoint: .*64: .* Available steps"):
                find_checkpoint(tmp_path, 64)
        path.write_bytes(good)
    assert find_checkpoint(tmp_path).path.name == "64"


def test_missing_and_new_files_are_noticed(tmp_path: Path) -> None:
    save(tmp_path, 32)
    place = checkpoint_path(tmp_path, 32)
    (place / "arrays" / "new").write_text("")
    with pytest.raises(DamagedCheckpointError, match="arrays/new is not part of it"):
        verify(place)
    (place / "arrays" / "new").unlink()
    (place / "arrays" / "commit_success.txt").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"commit_success.txt is missing"):
        verify(place)


def test_a_renamed_checkpoint_is_not_what_its_name_says(tmp_path: Path) -> None:
    save(tmp_path, 32, 64)
    checkpoint_path(tmp_path, 64).rename(checkpoint_path(tmp_path, 128))
    found = find_checkpoint(tmp_path)
    assert found.path.name == "32"
    assert "saved as the checkpoint of step 64" in found.problems[0]


def test_without_a_manifest_it_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, 32, 64)
    (checkpoint_path(tmp_path, 64) / "manifest.json").unlink()
    assert find_checkpoint(tmp_path).path.name == "32"


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("48", r"^checkpoint: .*no checkpoint of step 48. Available steps: \[32\]"),
        ("first", "^checkpoint: expected latest, best, or a step"),
    ],
)
def test_a_checkpoint_that_is_not_there(tmp_path: Path, which: str, says: str) -> None:
    save(tmp_path, 32)
    with pytest.raises(CheckpointError, match=says):
        find_checkpoint(tmp_path, which)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        find_checkpoint(tmp_path / "elsewhere")


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    scores = {32: None, 64: 0.5, 96: 0.9, 128: 0.9, 160: 0.2, 192: None, 224: 0.1}
    saver = Saver(tmp_path, 2)
    for step, score in scores.items():
        saver.save(snapshot(step, score))
    saver.wait()
    assert list_steps(tmp_path) == [128, 192, 224]  # of two equal ones the later is the best
    assert find_checkpoint(tmp_path, "best").path.name == "128"
    assert find_checkpoint(tmp_path).path.name == "224"
    (checkpoint_path(tmp_path, 128) / "manifest.sha256").unlink()
    assert find_checkpoint(tmp_path, "best").path.name == "224"


def test_remains_of_a_kill_are_cleared_away(tmp_path: Path) -> None:
    save(tmp_path, 32)
    write_checkpoint(tmp_path / "checkpoints" / ".64.partial", snapshot(64))
    (tmp_path / "checkpoints" / "48.damaged").mkdir()
    assert list_steps(tmp_path) == [32]
    prune(tmp_path, 3)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["32"]


def test_what_is_somebody_elses_is_never_removed(tmp_path: Path) -> None:
    save(tmp_path, 32)
    place = tmp_path / "checkpoints"
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine").write_text("mine")
    (place / "notes.txt").write_text("mine")
    (place / "paper").mkdir()
    (place / "0").symlink_to(tmp_path / "kept")
    (place / "nowhere").symlink_to(tmp_path / "gone")
    save(tmp_path, 64, 96, keep=1)
    assert sorted(path.name for path in place.iterdir()) == ["0", "96", "notes.txt", "nowhere", "paper"]
    assert (tmp_path / "kept" / "mine").read_text() == "mine"


def test_old_checkpoints_that_cannot_be_removed_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, keep: int) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(checkpoints, "prune", refuse)
    save(tmp_path, 32, 64, keep=1)
    assert list_steps(tmp_path) == [32, 64]
    assert "old checkpoint not removed" in (tmp_path / "events.jsonl").read_text()


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`save` is back while the disk, here a slow one, has not even begun; `wait` is until all is there."""
    goes_on = threading.Event()

    def slow(folder: Path, snapshot: Snapshot) -> None:
        assert goes_on.wait(60)
        write_checkpoint(folder, snapshot)

    monkeypatch.setattr(checkpoints, "write_checkpoint", slow)
    saver = Saver(tmp_path, 3)
    saver.save(snapshot(32))
    assert list_steps(tmp_path) == []
    goes_on.set()
    saver.wait()
    assert list_steps(tmp_path) == [32]


def test_names_are_on_the_disk_before_and_after_a_checkpoint_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(checkpoints, "flush", flushed.append)
    save(tmp_path, 32)
    inside = [path for path in checkpoint_path(tmp_path, 32).rglob("*") if path.is_dir()]
    partial = tmp_path / "checkpoints" / ".32.partial"
    assert {partial / path.relative_to(checkpoint_path(tmp_path, 32)) for path in inside} <= set(flushed)
    assert flushed[-2:] == [partial, tmp_path / "checkpoints"]


def test_the_same_step_is_saved_once(tmp_path: Path) -> None:
    saver = save(tmp_path, 32)
    before = (checkpoint_path(tmp_path, 32) / "manifest.json").stat().st_mtime_ns
    saver.save(snapshot(32))
    saver.wait()
    assert (checkpoint_path(tmp_path, 32) / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            OSError(28, "No space left on device"),
            FullDiskError,
            "the disk of .* is full: the checkpoint of step 64",
        ),
        (
            ValueError("RESOURCE_EXHAUSTED: No space left on device"),
            FullDiskError,
            "The one of step 32 is intact",
        ),
        (
            ValueError("something else"),
            SavingError,
            "step 64 could not be written: something else. The one of step 32",
        ),
    ],
)
def test_a_checkpoint_that_fails_leaves_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type, says: str
) -> None:
    saver = save(tmp_path, 32)

    def fail(folder: Path, snapshot: Snapshot) -> None:
        folder.mkdir()
        (folder / "half").write_text("x")
        raise error

    monkeypatch.setattr(checkpoints, "write_checkpoint", fail)
    saver.save(snapshot(64))
    with pytest.raises(kind, match=says):
        saver.wait()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["32"]
    verify(checkpoint_path(tmp_path, 32))


def test_room_is_looked_for_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = save(tmp_path, 32)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=1 << 30, free=0))
    with pytest.raises(FullDiskError, match=r"step 64 .*Free some space"):
        saver.save(snapshot(64))
    assert list_steps(tmp_path) == [32]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB, where one can be mounted."""
    import subprocess

    folder = tmp_path / "disk"
    folder.mkdir()
    command: Any = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


# Arrays of the failed write that were still on their way find the loop of orbax's own thread closed, and say so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_disk_that_is_really_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = save(small_disk, 32)
    noise = np.random.default_rng(0).integers(0, 2**32, 1_000_000, np.uint32)  # does not compress
    with pytest.raises(FullDiskError, match="is full"):
        saver.save(snapshot(64, noise=noise))
    usage = SimpleNamespace(total=1 << 40, free=1 << 40)  # as before another process fills the disk
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    saver.save(snapshot(64, noise=noise))
    with pytest.raises(FullDiskError, match="The one of step 32 is intact"):
        saver.wait()
    assert [path.name for path in (small_disk / "checkpoints").iterdir()] == ["32"]
    verify(checkpoint_path(small_disk, 32))
    saver.save(snapshot(96))
    saver.wait()
    assert list_steps(small_disk) == [32, 96]
    gc.collect()  # what they say is said here, and not in some later test
