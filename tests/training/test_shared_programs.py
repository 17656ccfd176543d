"""Programs that were compiled for one run serve the next with the same options."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from derex.agents.config import AgentConfig
from derex.training import TrainConfig, make_training, restore_run, train
from derex.training.evaluate import evaluate
from derex.training.trained import restore_agents

AGENT = AgentConfig(core="feed-forward", width=12, unroll=4, epochs=1, minibatches=2)
STEPS = 8 * AGENT.unroll
COMPILED = "/jax/core/compile/backend_compile_duration"


def tiny(out: Path, env: str = "rooms-chain-2", method: str = "vmpo") -> TrainConfig:
    return TrainConfig(env, out, method, steps=2 * STEPS, streams=8, log_every=STEPS, agent=AGENT)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """One entry for each program that is compiled."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event == COMPILED:
            found.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_second_run_with_the_same_options_compiles_nothing(tmp_path: Path, compiled: list[str]) -> None:
    first = train(tiny(tmp_path / "a"))
    restore_run(tmp_path / "a")
    evaluate(restore_agents(tmp_path / "a"), 3)
    assert compiled
    compiled.clear()
    second = train(tiny(tmp_path / "b"))
    train(replace(tiny(tmp_path / "b"), steps=3 * STEPS))  # resumed
    restore_run(tmp_path / "b")
    evaluate(restore_agents(tmp_path / "b"), 3)
    assert compiled == []
    times = ("seconds", "steps_per_second")
    numbers = [
        {name: line[name] for name in line if name not in times} for line in (*first.final, *second.final)
    ]
    assert numbers[0] == numbers[1]


def test_other_options_are_another_training() -> None:
    config = tiny(Path("x"))
    first = make_training(config)
    assert make_training(replace(config, out=Path("y"), steps=10, seeds=3, save_every=1.0)) is first
    for other in (
        replace(config, streams=4),
        replace(config, env="rooms-chain-3"),
        replace(config, method="rnd"),
        replace(config, agent=replace(AGENT, width=16)),
    ):
        assert make_training(other) is not first


def test_users_own_code_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed since."""
    (tmp_path / "own_world.py").write_text("from derex.envs.diagnostic import Catch\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (make_training(tiny(Path("x"), "jax:own_world:Catch")) for _ in range(2))
    assert first is not second
    (tmp_path / "own_method.py").write_text(
        "from derex.representations.base import NoRepresentation as Own\n"
    )
    first, second = (make_training(tiny(Path("x"), method="own_method:Own")) for _ in range(2))
    assert first is not second
    for name in ("own_world", "own_method"):
        sys.modules.pop(name)
