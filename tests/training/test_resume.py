"""A run that is stopped, damaged or continued becomes the run that was never stopped, to the last bit."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.report.runs import load_visits
from derex.representations.base import OptimisedTraining
from derex.representations.decomposed import DecompositionConfig
from derex.representations.states import StatesConfig
from derex.training import (
    Stopped,
    TrainConfig,
    TrainResult,
    load_config,
    make_training,
    read_metrics,
    restore_run,
    run,
    train,
)
from derex.training.checkpoints import (
    CheckpointError,
    checkpoint_path,
    find_checkpoint,
    list_steps,
    load_arrays,
    load_state,
)
from derex.training.folder import differences
from derex.training.learner import JaxTraining
from derex.training.preflight import plan_run

AGENT = AgentConfig(width=8, unroll=4, epochs=1, minibatches=2)
STATES = StatesConfig(DecompositionConfig(k=3), training=OptimisedTraining(steps=2), width=8)
STEPS = 32  # of an iteration
TIMES = ("steps_per_second", "seconds")


def tiny(out: Path, iterations: int = 12, **changes: Any) -> TrainConfig:
    """A line after every third iteration."""
    config = TrainConfig(
        "rooms-chain-2",
        out,
        form="states",
        steps=iterations * STEPS,
        seeds=2,
        streams=8,
        log_every=3 * STEPS,
        agent=AGENT,
        representation=STATES,
    )
    return replace(config, **changes)


@pytest.fixture(scope="module", autouse=True)
def quick_runs() -> Iterator[None]:
    """Runs look for a stop after every iteration."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "PIECE_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Twelve iterations without a stop."""
    return train(tiny(tmp_path_factory.mktemp("runs") / "whole"))


class At:
    """Does something once an iteration is done."""

    def __init__(self, iteration: int, act: Callable[[], Any]):
        self.step, self.act = iteration * STEPS, act
        self.notes: list[str] = []

    def compiled(self, seconds: float) -> None: ...

    def advanced(self, step: int, rate: float) -> None:
        if step == self.step:
            self.act()

    def logged(self, lines: list[dict[str, Any]]) -> None: ...

    def noted(self, text: str) -> None:
        self.notes.append(text)


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def stop(config: TrainConfig, iteration: int) -> None:
    """As SIGTERM does."""
    with pytest.raises(Stopped, match=f"stopped by SIGTERM at step {iteration * STEPS}") as stopped:
        train(config, At(iteration, send(signal.SIGTERM)))
    assert stopped.value.exit_code == 0


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: of for name, of in line.items() if name not in TIMES} for line in read_metrics(folder)]


def assert_same_run(folder: Path, other: Path) -> None:
    """Metrics, visits and every array of the last checkpoint."""
    assert without_times(folder) == without_times(other)
    ours, theirs = (find_checkpoint(out) for out in (folder, other))
    assert ours.path.name == theirs.path.name
    for part, arrays in load_arrays(ours).items():
        for name, array in load_arrays(theirs)[part].items():
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    visits, expected = (load_visits(out / "visitation.npz") for out in (folder, other))
    for name in ("steps", "counts", "bonuses"):
        np.testing.assert_array_equal(getattr(visits, name), getattr(expected, name))


@pytest.mark.parametrize("iteration", [3, 7])
def test_a_stopped_run_goes_on_as_if_it_had_not(whole: TrainResult, tmp_path: Path, iteration: int) -> None:
    """Stopped where a line is written, and between two lines."""
    stop(tiny(tmp_path), iteration)
    assert list_steps(tmp_path)[-1] == iteration * STEPS
    assert without_times(tmp_path) == without_times(whole.out)[: 2 * (iteration // 3)]
    result = train(tiny(tmp_path))
    assert_same_run(tmp_path, whole.out)
    assert result.scores == whole.scores
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [
        ("stopped", iteration * STEPS),
        ("resumed", iteration * STEPS),
    ]


def test_a_run_can_be_continued_for_more_steps(whole: TrainResult, tmp_path: Path) -> None:
    """It had ended between two lines: the line of its end gives way to the one that it would have had."""
    train(tiny(tmp_path, 7))
    assert [line["step"] // STEPS for line in read_metrics(tmp_path)] == [3, 3, 6, 6, 7, 7]
    train(tiny(tmp_path, 12))
    assert_same_run(tmp_path, whole.out)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["iterations"] == 12
    (resumed,) = content["resumed"]
    assert resumed["step"] == 7 * STEPS
    assert resumed["changed"] == {"steps": [7 * STEPS, 12 * STEPS]}
    assert resumed["versions"] == content["versions"]
    assert load_config(tmp_path) == tiny(tmp_path).resolved()


def test_a_finished_run_is_left_alone(whole: TrainResult) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.out.rglob("*") if path.is_file()}
    watcher = At(0, lambda: None)
    result = train(tiny(whole.out), watcher)
    assert result.finished_before
    assert (result.final, result.scores) == (whole.final, whole.scores)
    assert watcher.notes == [f"already finished, at step {12 * STEPS}; for more, raise --steps"]
    assert train(tiny(whole.out, 5)).finished_before
    assert {path: path.stat().st_mtime_ns for path in whole.out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": 3}, "seeds was 2, now 3"),
        ({"env": "rooms-chain-3"}, "env was rooms-chain-2, now rooms-chain-3"),
        ({"agent": replace(AGENT, gamma=0.5)}, r"agent\.gamma was 0\.99, now 0\.5"),
        (
            {"representation": replace(STATES, decomposition=DecompositionConfig(k=4))},
            r"representation\.decomposition\.k was 3, now 4",
        ),
        ({"method": "vmpo", "form": "", "representation": None}, "method was derex, now vmpo"),
        ({"deterministic": True}, "deterministic was False, now True"),
    ],
)
def test_other_options_are_refused_by_name(whole: TrainResult, changes: dict[str, Any], says: str) -> None:
    before = {path: path.read_bytes() for path in whole.out.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match=f"--out: .* other options: .*{says}"):
        train(replace(tiny(whole.out), **changes))
    assert {path: path.read_bytes() for path in whole.out.rglob("*") if path.is_file()} == before


def test_logging_and_saving_may_change(whole: TrainResult) -> None:
    changed = tiny(whole.out, 24, log_every=STEPS, save_every=1.0, keep=9, max_skipped=2)
    assert set(plan_run(changed).changed) == {"steps", "log_every", "save_every", "keep", "max_skipped"}
    left_open = plan_run(replace(tiny(whole.out, 999), log_every=None))
    assert left_open.config.log_every == 3 * STEPS
    assert set(left_open.changed) == {"steps"}


def test_differences_have_dotted_names() -> None:
    before, now = {"a": {"b": 1, "c": (1, 2)}, "d": 2}, {"a": {"b": 3, "c": [1, 2]}, "e": 5}
    assert differences(before, now) == {"a.b": [1, 3], "d": [2, None], "e": [None, 5]}


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    whole: TrainResult, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        train(tiny(tmp_path, save_every=0.0), At(8, send(signal.SIGTERM)))
    assert list_steps(tmp_path)[-3:] == [6 * STEPS, 7 * STEPS, 8 * STEPS]
    for iteration in (7, 8):
        file = max(
            checkpoint_path(tmp_path, iteration * STEPS).rglob("d/*"), key=lambda path: path.stat().st_size
        )
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    watcher = At(0, lambda: None)
    train(tiny(tmp_path), watcher)
    assert_same_run(tmp_path, whole.out)
    assert [note.split(":")[0] for note in watcher.notes[:2]] == ["damaged checkpoint"] * 2
    assert watcher.notes[2] == f"resumes from step {6 * STEPS}"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    damaged = [event for event in events if event["event"] == "damaged checkpoint"]
    assert [event["used"] for event in damaged] == [6 * STEPS] * 2
    assert all("has changed since it was saved" in event["problem"] and event["time"] for event in damaged)


def test_without_a_good_checkpoint_nothing_is_touched(whole: TrainResult, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(whole.out, folder)
    for path in folder.rglob("manifest.json"):
        path.write_text("{}")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        train(tiny(folder, 24))
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(FileExistsError, match=r"without a checkpoint.*--overwrite"):
        train(tiny(folder, 24))
    kept = {path: content for path, content in before.items() if "checkpoints" not in path.parts}
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == kept


def test_a_run_that_was_killed_before_its_first_step_begins(whole: TrainResult, tmp_path: Path) -> None:
    shutil.copy(whole.out / "config.json", tmp_path)
    assert plan_run(tiny(tmp_path)).found is None


def test_overwriting_begins_again(whole: TrainResult, tmp_path: Path) -> None:
    stop(tiny(tmp_path), 4)
    train(tiny(tmp_path, overwrite=True))
    assert_same_run(tmp_path, whole.out)
    assert not (tmp_path / "events.jsonl").exists()


def test_a_run_is_restored(whole: TrainResult) -> None:
    restored = restore_run(whole.out)
    assert (restored.step, restored.problems) == (12 * STEPS, ())
    assert restored.config == tiny(whole.out).resolved()
    saved = load_arrays(find_checkpoint(whole.out))["state"]
    network = jax.tree.leaves(restored.state.learner.trained.network)
    assert len(network) == len([name for name in saved if name.startswith("learner/trained/network/")])
    np.testing.assert_array_equal(jax.random.key_data(restored.state.key), saved["key"])
    assert isinstance(restored.training, JaxTraining)
    again = restored.training.advance(restored.state, 1)
    assert np.all(np.isfinite(again.tally.numbers["value_loss"]))
    assert restore_run(whole.out, "best").step == int(find_checkpoint(whole.out, "best").path.name)
    assert restore_run(whole.out, 0).step == 0


def test_a_checkpoint_of_other_shapes_is_refused_before_it_is_loaded(whole: TrainResult) -> None:
    """As another version of derex may have saved it, with the same options."""
    wide = tiny(whole.out, agent=replace(AGENT, width=16))
    with pytest.raises(CheckpointError, match=r"does not fit its config: .* is \(\[.*expected \(\["):
        load_state(find_checkpoint(whole.out), make_training(wide), wide)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As a terminal has it: a shell's background jobs, such as tests may be, are started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_interrupts(tmp_path: Path) -> None:
    def twice() -> None:
        send(signal.SIGINT)()
        send(signal.SIGINT)()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(tiny(tmp_path), At(4, twice))
    assert not isinstance(caught.value, Stopped)
    assert signal.getsignal(signal.SIGINT) is before
    assert find_checkpoint(tmp_path).path.name == "0"


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_as_sigterm_does(tmp_path: Path) -> None:
    with pytest.raises(
        Stopped, match=rf"stopped by Ctrl-C at step {4 * STEPS}.*derex train --resume {tmp_path}"
    ) as stopped:
        train(tiny(tmp_path), At(4, send(signal.SIGINT)))
    assert stopped.value.exit_code == 130
    assert find_checkpoint(tmp_path).path.name == str(4 * STEPS)


def test_loggers_get_every_line_and_where_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Recorder:
        def log(self, lines: list[dict[str, Any]]) -> None:
            calls.append(lines[0]["step"] // STEPS)

        def close(self) -> None:
            calls.append("closed")

    def make(names: Any, folder: Path, options: dict[str, Any], step: int) -> Recorder:
        calls.append((names, folder, options["env"], step // STEPS))
        return Recorder()

    monkeypatch.setattr(run, "make_loggers", make)
    train(tiny(tmp_path, 7))
    assert calls == [((), tmp_path, "rooms-chain-2", 0), 3, 6, 7, "closed"]
    train(tiny(tmp_path, 12))
    assert calls[5:] == [((), tmp_path, "rooms-chain-2", 6), 9, 12, "closed"]


def test_an_unknown_logger_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"loggers: there is no 'tensorbord'. Did you mean 'tensorboard'"):
        train(tiny(tmp_path / "a", loggers=("tensorbord",)))
    assert not (tmp_path / "a").exists()
