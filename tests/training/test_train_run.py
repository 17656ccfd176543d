"""A run: its lines, its files, its seeds, and what is left when it stops."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from derex.agents.config import AgentConfig
from derex.report.runs import load_visits
from derex.representations.base import OptimisedTraining
from derex.representations.decomposed import DecompositionConfig
from derex.representations.states import StatesConfig
from derex.training import TrainConfig, TrainResult, load_config, read_metrics, run, train
from derex.training.learner import JaxTraining

AGENT = AgentConfig(width=16, unroll=8, epochs=1, minibatches=2)
STATES = StatesConfig(DecompositionConfig(k=4), training=OptimisedTraining(steps=2), width=16)
TIMES = ("steps_per_second", "seconds")


def tiny(out: Path, **changes: Any) -> TrainConfig:
    """Eight iterations of 128 steps and four intervals."""
    config = TrainConfig(
        "rooms-chain-2",
        out,
        steps=1024,
        seeds=2,
        streams=16,
        log_every=256,
        agent=AGENT,
        representation=STATES,
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """One run of two seeds."""
    return train(tiny(tmp_path_factory.mktemp("runs") / "a"))


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def assert_close(lines: list[dict[str, Any]], others: list[dict[str, Any]], tolerance: float) -> None:
    assert len(lines) == len(others)
    for line, other in zip(lines, others, strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            if value is None or other[name] is None:
                assert value is other[name], name
            else:
                assert value == pytest.approx(other[name], rel=tolerance, abs=tolerance), name


def test_one_strict_line_for_each_interval_and_seed(ran: TrainResult) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (ran.out / "metrics.jsonl").read_text()
    assert text.endswith("\n")
    lines = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert [(line["step"], line["seed"]) for line in lines] == [
        (step, seed) for step in (256, 512, 768, 1024) for seed in (0, 1)
    ]
    assert tuple(lines[-2:]) == ran.final
    assert ran.scores["return"] == {
        line["seed"]: line["return"] for line in ran.final
    }  # four lines: the last is 25 %
    expected = {
        "return",
        "success",
        "episode_length",
        "episodes",
        "policy_loss",
        "value_loss",
        "entropy",
        "bonus",
    }
    expected |= {*TIMES, "spectrum", "sigma_mean", "sigma_diagonal", "off_diagonal"}
    expected |= {"states_seen", "bonus_rank_correlation"}
    assert all(expected <= set(line) for line in lines)
    assert all(len(line["spectrum"]) == 4 and line["steps_per_second"] > 0 for line in lines)
    assert without_times(lines)[0] != without_times(lines)[1] | {"seed": 0}


def test_the_lines_agree_with_the_visits(ran: TrainResult) -> None:
    visits = load_visits(ran.out / "visitation.npz")
    assert visits.seeds == (0, 1)
    assert visits.steps.tolist() == [256, 512, 768, 1024]
    assert visits.counts.shape == (4, 2, 51)
    assert visits.positions.shape == (51, 2)
    assert np.all(visits.counts.sum(axis=-1) == 256)  # each environment step is counted once
    lines = iter(read_metrics(ran.out))
    for counts, bonuses in zip(visits.counts, visits.bonuses, strict=True):
        for seen, total in zip(counts, bonuses, strict=True):
            line = next(lines)
            assert line["states_seen"] == np.count_nonzero(seen)
            rank = spearmanr((total / np.maximum(seen, 1))[seen > 0], 1 / seen[seen > 0]).statistic
            assert line["bonus_rank_correlation"] == pytest.approx(rank, abs=1e-4)
    assert (ran.out / "visitation.png").read_bytes().startswith(b"\x89PNG")


def test_config_json_says_all_and_nothing_of_the_machine(ran: TrainResult) -> None:
    text = (ran.out / "config.json").read_text()
    content = json.loads(text)
    assert load_config(ran.out) == tiny(ran.out).resolved()
    assert content["config"]["form"] == "states"
    assert content["config"]["representation"]["decomposition"]["k"] == 4
    assert content["iterations"] == 8
    assert {"jax", "derex", "python", "numpy"} <= set(content["versions"])
    assert content["devices"]["platform"] == "cpu"
    assert content["devices"]["count"] >= 1
    assert len(content["commit"]["id"]) == 40
    assert str(ran.out) not in text
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text


def test_equal_seeds_give_equal_runs_from_the_same_programs(
    ran: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run, "PIECE_SECONDS", 0.0
    )  # pieces of one iteration change nothing, nor do checkpoints
    advance: Any = JaxTraining.advance
    before = advance._cache_size()
    train(tiny(tmp_path / "b", save_every=0.0))
    assert advance._cache_size() == before
    assert without_times(read_metrics(tmp_path / "b")) == without_times(read_metrics(ran.out))


@pytest.mark.slow
def test_seeds_side_by_side_are_the_seeds_one_by_one(ran: TrainResult, tmp_path: Path) -> None:
    train(tiny(tmp_path / "b", seed=1, seeds=1))
    together = [line for line in read_metrics(ran.out) if line["seed"] == 1]
    assert_close(without_times(read_metrics(tmp_path / "b")), without_times(together), 1e-4)


class Stop:
    """Stops the run after some intervals."""

    def __init__(self, intervals: int):
        self.left = intervals

    def compiled(self, seconds: float) -> None: ...

    def advanced(self, step: int, rate: float) -> None:
        if self.left == 0:
            raise KeyboardInterrupt

    def logged(self, lines: list[dict[str, Any]]) -> None:
        self.left -= 1


def test_what_was_logged_survives_an_error(ran: TrainResult, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path / "b"), Stop(2))
    assert without_times(read_metrics(tmp_path / "b")) == without_times(read_metrics(ran.out))[:4]
    assert load_visits(tmp_path / "b" / "visitation.npz").steps.tolist() == [256, 512]
    assert not (tmp_path / "b" / "visitation.png").exists()


def test_nothing_is_started_where_it_would_fail(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'rooms-chain-2'"):
        train(tiny(tmp_path / "b", env="rooms-chian-2"))
    assert not (tmp_path / "b").exists()
