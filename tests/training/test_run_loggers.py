"""Loggers: what reaches the libraries, with stand-ins for them, and with TensorBoard itself where it is installed."""

import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from derex.training.logging import check_loggers, flatten_line, make_loggers

LINES = [
    {"step": 10, "seed": 0, "return": 0.5, "success": None, "spectrum": [0.9, 0.5]},
    {"step": 10, "seed": 1, "return": 0.25, "success": 1.0, "spectrum": []},
]


class FakeWriter:
    """Notes the calls."""

    made: list["FakeWriter"] = []  # noqa: RUF012

    def __init__(self, logdir, purge_step):
        self.logdir, self.purge_step, self.calls = logdir, purge_step, []
        self.made.append(self)

    def add_scalar(self, *call):
        self.calls.append(call)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


@pytest.fixture
def writers(monkeypatch):
    """The writers that a stand-in for tensorboardX has made."""
    FakeWriter.made.clear()
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=FakeWriter))
    return FakeWriter.made


def test_numbers_of_a_line():
    line = {"step": 3, "seed": 1, "a": 1, "b": None, "c": float("nan"), "d": [0.5, 2.0], "e": "text"}
    assert list(flatten_line(line)) == [("a", 1.0), ("d/00", 0.5), ("d/01", 2.0)]
    assert len(list(flatten_line({"d": [1.0] * 100}))) == 16


def test_tensorboard_gets_every_number_of_every_seed(writers, tmp_path):
    loggers = make_loggers(["tensorboard"], tmp_path, {"env": "catch"})
    loggers.log(LINES)
    loggers.close()
    assert [writer.logdir for writer in writers] == [
        str(tmp_path / "tensorboard" / f"seed-{i}") for i in (0, 1)
    ]
    scalars = [("return", 0.5, 10), ("spectrum/00", 0.9, 10), ("spectrum/01", 0.5, 10)]
    assert writers[0].calls == [*scalars, "flush", "close"]
    assert writers[1].calls == [("return", 0.25, 10), ("success", 1.0, 10), "flush", "close"]
    assert writers[0].purge_step == 0


def test_what_was_written_after_the_checkpoint_is_forgotten(writers, tmp_path):
    make_loggers(["tensorboard"], tmp_path, {}, step=500).log(LINES)
    assert writers[0].purge_step == 501


class FakeWandb:
    """Notes the calls."""

    def __init__(self):
        self.inits, self.logged, self.finished = [], [], 0

    def init(self, **options):
        self.inits.append(options)
        return self

    def log(self, numbers, step):
        self.logged.append((numbers, step))

    def finish(self):
        self.finished += 1


def test_wandb_is_offline_and_goes_on_with_its_run(monkeypatch, tmp_path):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = tmp_path / "run"
    for step in (0, 500, 0):
        loggers = make_loggers(["wandb", "wandb"], folder, {"env": "catch"}, step=step)
        loggers.log(LINES)
        loggers.close()
    assert [one["mode"] for one in fake.inits] == ["offline"] * 3
    assert fake.inits[0]["config"] == {"env": "catch"}
    assert (fake.inits[0]["name"], fake.inits[0]["dir"]) == ("run", str(folder))
    first, second, third = (one["id"] for one in fake.inits)
    assert first == second != third
    numbers = {"seed-0/return": 0.5, "seed-0/spectrum/00": 0.9, "seed-0/spectrum/01": 0.5}
    assert fake.logged[0] == (numbers | {"seed-1/return": 0.25, "seed-1/success": 1.0}, 10)
    assert fake.finished == 3
    monkeypatch.setenv("WANDB_MODE", "online")
    make_loggers(["wandb"], folder, {})
    assert fake.inits[-1]["mode"] == "online"


def test_none_is_fine(tmp_path):
    loggers = make_loggers([], tmp_path / "a", {})
    loggers.log(LINES)
    loggers.close()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("name", "library"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_what_is_missing_can_be_installed(name, library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{name} needs {library}.*pip install .*\[{name}\]"):
        make_loggers([name], tmp_path / "a", {})
    assert not (tmp_path / "a").exists()


def test_unknown_loggers_are_refused():
    with pytest.raises(
        ValueError, match=r"no 'tensorbord'. Did you mean 'tensorboard'\? There are: tensorboard"
    ):
        check_loggers(["tensorbord"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf, on import
def test_tensorboard_itself(tmp_path):
    pytest.importorskip("tensorboardX")
    Event = import_module("tensorboardX.proto.event_pb2").Event

    loggers = make_loggers(["tensorboard"], tmp_path, {})
    loggers.log(LINES)
    loggers.close()
    files = sorted((tmp_path / "tensorboard").rglob("events.out.*"))
    assert [file.parent.name for file in files] == ["seed-0", "seed-1"]
    values = {}
    for record in records(files[0].read_bytes()):
        event = Event.FromString(record)
        values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    assert values == pytest.approx({("return", 10): 0.5, ("spectrum/00", 10): 0.9, ("spectrum/01", 10): 0.5})


def records(content):
    """The records of an event file: 8 bytes of length, 4 of its sum, the data, 4 of its sum."""
    while content:
        length = int.from_bytes(content[:8], "little")
        yield content[12 : 12 + length]
        content = content[16 + length :]
