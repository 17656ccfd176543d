"""What a run may be asked to do."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from derex._text import to_plain
from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import make_policy
from derex.representations.base import NoRepresentation
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.methods import METHODS
from derex.representations.states import StatesConfig
from derex.studies.definitions import TabularStudy
from derex.training.config import TrainConfig, config_type, from_plain
from derex.training.presets import PRESETS, find_preset
from derex.types import Amount, Box, Words


def config(**options: Any) -> TrainConfig:
    return TrainConfig("catch", Path("runs/a"), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps: expected a whole number of steps, at least 1 and at most 1e\\+15, got 0"),
        ({"steps": 1.5}, "steps: expected a whole number"),
        ({"steps": float("nan")}, "steps: expected a whole number"),
        ({"steps": float("inf")}, "steps: expected a whole number"),
        ({"log_every": 0}, "log_every: expected a whole number"),
        ({"seeds": 0}, "seeds: expected at least 1 and at most .*, got 0"),
        ({"keep": 0}, "keep: expected at least 1 and at most .*, got 0"),
        ({"max_skipped": 0}, "max_skipped: expected at least 1 and at most .*, got 0"),
        ({"save_every": -1.0}, "save_every: expected seconds, 0 or more, got -1"),
        ({"save_every": float("nan")}, "save_every: expected seconds"),
        ({"streams": 0}, "streams: expected at least 1 and at most .*, got 0"),
        ({"seed": -1}, "seed: expected 0 or more"),
        ({"seed": 2**31 - 1, "seeds": 2}, "seed: expected 0 or more"),
        ({"streams": 6}, "streams: expected a multiple of agent.minibatches = 4"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(**options)


def test_a_string_is_a_path() -> None:
    given: Any = "runs/a"
    assert TrainConfig("catch", given) == config()
    assert TrainConfig("catch", given).out == Path("runs/a")
    assert TabularStudy(out=given).out == Path("runs/a")


def test_steps_become_whole_iterations() -> None:
    asked = config(steps=1e4, streams=32, agent=AgentConfig(unroll=10))
    assert (asked.iteration_steps, asked.iterations) == (320, 32)
    assert config(steps=1e7).resolved().steps == 10_000_000
    assert isinstance(config(steps=1e7).resolved().steps, int)


def lines_after(asked: TrainConfig) -> list[int]:
    """The iterations after which a line is written."""
    after = [0]
    while after[-1] < asked.iterations:
        after.append(asked.next_line(after[-1]))
    return after[1:]


@pytest.mark.parametrize(
    ("log_every", "after"),
    [
        (None, list(range(1, 33))),
        (320, list(range(1, 33))),
        (1, list(range(1, 33))),
        (5000, [16, 32]),
        (3000, [9, 18, 27, 32]),
        (10**9, [32]),
    ],
)
def test_lines_are_at_multiples_and_at_the_end(log_every: int | None, after: list[int]) -> None:
    asked = config(steps=10_000, streams=32, agent=AgentConfig(unroll=10), log_every=log_every)
    assert lines_after(asked) == after


def test_a_longer_run_has_the_lines_of_a_shorter_one() -> None:
    shorter, longer = (config(steps=steps, log_every=1e5) for steps in (3e5, 3e6))
    assert lines_after(longer)[: len(lines_after(shorter)) - 1] == lines_after(shorter)[:-1]


def test_about_a_hundred_lines_unless_told_otherwise() -> None:
    assert len(lines_after(config(steps=1e7))) == 102  # 1221 iterations, a line after every 12
    assert config(steps=1e7).resolved().log_every == 12 * 8192


@pytest.mark.parametrize(
    ("options", "form", "kind"),
    [
        ({}, "histories", HistoriesConfig),
        ({"form": "states"}, "states", StatesConfig),
        ({"representation": StatesConfig(width=3)}, "states", StatesConfig),
        ({"method": "laplacian"}, "belief", BeliefConfig),
        ({"method": "vmpo"}, "", NoRepresentation),
        ({"method": "derex.representations.states:StatesConfig"}, "", StatesConfig),
    ],
)
def test_the_form_is_found(options: dict[str, Any], form: str, kind: type) -> None:
    resolved = config(**options).resolved()
    assert (resolved.form, type(resolved.representation)) == (form, kind)
    assert resolved.resolved() == resolved


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "drex"}, "Did you mean 'derex'"),
        ({"form": "state"}, "derex has the forms histories, states, belief; got 'state'"),
        (
            {"form": "belief", "representation": StatesConfig()},
            "expected BeliefConfig for method 'derex', got StatesConfig",
        ),
        (
            {"method": "vmpo", "representation": StatesConfig()},
            "expected NoRepresentation for method 'vmpo', got StatesConfig",
        ),
    ],
)
def test_a_form_that_does_not_fit_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(**options).resolved()


def test_plain_options_come_back_as_they_were() -> None:
    chosen = StatesConfig(DecompositionConfig(k=3, lambda_r="grow"), lambda_b=0.5, width=7)
    asked = config(representation=chosen, agent=AgentConfig(width=5, two_values=True)).resolved()
    plain = to_plain(asked, "text")
    text = json.dumps({name: value for name, value in plain.items() if name != "out"})
    default = config(form="states").resolved()
    assert default != asked
    assert from_plain(default, json.loads(text)) == asked


def test_a_command_sees_the_options_of_the_form() -> None:
    made = config_type("derex", "states")
    assert made.__annotations__["representation"] is StatesConfig
    asked = made("catch", Path("runs/a"))
    assert asked.resolved() == config(form="states").resolved()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"unroll": 0}, "agent.unroll: expected at least 1 and at most .*, got 0"),
        ({"learning_rate": float("inf")}, "agent.learning_rate: expected a finite number above 0, got inf"),
        ({"gamma": 1.5}, r"agent.gamma: expected a number in \[0, 1\], got 1.5"),
        ({"value_weight": -1.0}, "agent.value_weight: expected a finite number, 0 or more, got -1.0"),
        ({"entropy_weight": -0.1}, "agent.entropy_weight: expected a finite number, 0 or more, got -0.1"),
    ],
)
def test_options_of_the_agent_are_checked(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AgentConfig(**options)


@pytest.mark.parametrize("form", ["histories", "belief"])
def test_an_unroll_too_short_for_any_test_is_refused(form):
    config = TrainConfig("catch", Path("a"), form=form, agent=AgentConfig(unroll=7))
    with pytest.raises(ValueError, match=r"agent.unroll: expected at least 8, .* got 7\. Or shorter tests"):
        config.resolved()
    assert replace(config, agent=AgentConfig(unroll=8)).resolved().agent.unroll == 8
    assert replace(config, form="states").resolved().agent.unroll == 7


def test_the_papers_preset_has_the_papers_sizes() -> None:
    """Appendix B: pictures to 256, an instruction to 64, scalars and the last action to 20, the reward as h(r); 512."""
    scalar = jax.ShapeDtypeStruct((1,), np.float32)
    seen = {
        "picture": jax.ShapeDtypeStruct((72, 96, 3), np.uint8),
        "force": scalar,
        "holding": scalar,
        "distance": scalar,
        "instruction": Words(),
        "reward": Amount(),
    }
    agent = find_preset("paper").agent("hard8:throw_across", "derex", "belief")
    build = partial(AgentNetwork, agent, describe_parts(seen), make_policy(Box(9, -1.0, 1.0)))
    network = eqx.filter_eval_shape(build, key=jax.random.key(0))
    assert network.embedding.from_observation.shape == (256 + 3 * 20 + 64 + 1, 512)
    assert (network.embedding.action_weight.shape, network.core.width) == ((9, 20), 512)


@pytest.mark.parametrize(
    ("method", "k", "lambda_b"), [("derex", 64, 0.001), ("derex-rep", 512, 0.0), ("laplacian", 512, 0.0)]
)
def test_the_papers_preset_has_the_papers_numbers(method: str, k: int, lambda_b: float) -> None:
    options = config_type(method, "", "paper", "hard8")
    config = options(env="hard8", out=Path("out"), method=method).resolved()
    form = config.representation
    assert config.form == "belief"
    assert (form.decomposition.k, form.decomposition.lambda_r) == (k, 10.0)
    assert (form.weight, form.lambda_b) == (0.01, lambda_b)


def test_every_preset_has_every_method() -> None:
    for preset in PRESETS.values():
        for method, forms in METHODS.items():
            for name, default in forms.items():
                assert type(preset.form("catch", method, name)) is type(default)
                assert isinstance(preset.agent("catch", method, name), AgentConfig)
