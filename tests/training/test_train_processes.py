"""Whole processes: killed, stopped, and resumed by others, they write what one process would have written."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derex.training.checkpoints import find_checkpoint, load_arrays
from derex.training.folder import read_metrics

COMMAND = """
import sys
from derex.cli import main
from derex.training import run
run.PIECE_SECONDS = 0.0  # looks up after every iteration, so that there is always something to interrupt
sys.exit(main(sys.argv[1:]))
"""
STEPS = 32  # of an iteration
LOG = 2 * STEPS
TINY = ("--env", "catch", "--method", "vmpo", "--streams", "8", "--agent.width", "8", "--agent.unroll", "4")
TINY += ("--agent.epochs", "1", "--agent.minibatches", "2", "--log-every", str(LOG), "--save-every", "0.1")
ENDLESS = 10**9
STARTING_SECONDS = 8.0  # until the first checkpoint, about; measured as soon as can be
TIMES = ("steps_per_second", "seconds")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(quick_process: dict[str, str]) -> Start:
    """Starts `derex train`."""

    def begin(out: Path, steps: int = ENDLESS) -> subprocess.Popen[str]:
        arguments = ("train", *TINY, "--steps", str(steps), "--out", str(out))
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            env=quick_process,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def latest(folder: Path) -> int:
    """The step of the last checkpoint; -1 where there is none."""
    places = folder.glob("checkpoints/*")
    return max((int(path.name) for path in places if path.name.isdecimal()), default=-1)


def wait_for_progress(process: subprocess.Popen[str], folder: Path, beyond: int) -> float:
    """Until a checkpoint is there that was not before; the seconds that it took."""
    began = time.monotonic()
    while latest(folder) <= beyond:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < began + 300
        time.sleep(0.01)
    return time.monotonic() - began


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def killed_many_times(start: Start, folder: Path, kills: int) -> tuple[int, int]:
    """Kills the run over and over, then asks it to stop; the step it came to, and how many were seen to go on.

    Every other kill falls anywhere from the start of the process on: imports, claiming the folder, the first save,
    going on, training. The rest wait for a new checkpoint first, so that the run gets on.
    """
    chance = random.Random(0)
    usual, gone_on = STARTING_SECONDS, 0
    for kill in range(kills):
        before = latest(folder)
        process = start(folder)
        if kill % 2 == 0:
            time.sleep(chance.uniform(0.0, 1.2 * usual))
        else:
            usual = wait_for_progress(process, folder, before)
            gone_on += before >= 0
            time.sleep(chance.uniform(0.0, 1.0))
        assert process.poll() is None, process.communicate()[1]
        process.kill()
        process.communicate()
        if latest(folder) < 0:
            assert kill % 2 == 0  # there is none yet; the next has to begin
            continue
        found = find_checkpoint(folder)
        assert found.problems == ()
        assert int(found.path.name) > before - (kill % 2 == 0)
    process, before = start(folder), latest(folder)
    wait_for_progress(process, folder, max(before, 4 * LOG))  # with some lines to compare
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    step = latest(folder)
    assert f"stopped by SIGTERM at step {step}, and saved." in error
    return step, gone_on + (before >= 0)


def assert_like_one_process(start: Start, folder: Path, step: int) -> None:
    """A process that is left alone for as many steps writes the same."""
    alone = folder.with_name("alone")
    process = start(alone, step)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    whole = [line for line in read_metrics(alone) if line["step"] % LOG == 0]
    assert len(whole) > 2
    assert without_times(read_metrics(folder)) == without_times(whole)
    ours, theirs = (load_arrays(find_checkpoint(place))["state"] for place in (folder, alone))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_runs_go_on_and_lose_nothing(kills: int, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    step, gone_on = killed_many_times(start, folder, kills)
    resumed = json.loads((folder / "config.json").read_text())["resumed"]
    assert gone_on <= len(resumed) <= kills
    assert [entry["step"] for entry in resumed] == sorted(entry["step"] for entry in resumed)
    assert_like_one_process(start, folder, step)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_it_begins_again(start: Start, tmp_path: Path) -> None:
    """Once the folder is there, and once config.json is."""
    for name in (".", "config.json"):
        folder = tmp_path / f"killed{name}"
        process = start(folder)
        deadline = time.monotonic() + 300
        while not (folder / name).exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
        process.kill()
        process.communicate()
        again = start(folder)
        wait_for_progress(again, folder, 0)
        again.kill()
        again.communicate()


@pytest.mark.slow
def test_two_processes_with_the_same_seed_write_the_same(start: Start, tmp_path: Path) -> None:
    for name in ("a", "b"):
        process = start(tmp_path / name, 40 * STEPS)
        _, error = process.communicate(timeout=600)
        assert process.returncode == 0, error
    first, second = (read_metrics(tmp_path / name) for name in ("a", "b"))
    assert len(first) == 20
    assert without_times(first) == without_times(second)
