"""It learns from what it is told: tasks in which one part of the observation alone decides; without it, chance."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from derex.agents.config import AgentConfig
from derex.envs.suites.common import encode
from derex.envs.wrappers import PreviousReward, make_streams
from derex.representations import find_representation
from derex.training.learner import JaxTraining
from derex.types import Discrete, EnvironmentSpec, Words

STREAMS = 64
WORDS = Words(6, 100)
ENCODERS = ["plain", "appendix"]
COMMANDS = ("Go to the left.", "go to the right", "do not go to the left", "stay")


pytestmark = pytest.mark.usefixtures("optimised_compilation")


class Told:
    """One step: the action with the instruction's number gives 1. A mute one says nothing."""

    def __init__(self, mute: bool) -> None:
        self.texts = (0 if mute else 1) * np.stack([encode(text, WORDS) for text in COMMANDS])
        self.spec = EnvironmentSpec("told", {"text": WORDS}, Discrete(len(COMMANDS)), 1, 0.5)

    def reset(self, key: Array) -> tuple[Array, Any]:
        number = jax.random.randint(key, (), 0, len(COMMANDS))
        return number, {"text": jnp.asarray(self.texts, jnp.int32)[number]}

    def step(self, state: Array, action: Array, key: Array) -> tuple[Array, Any, Array, Array]:
        observation = {"text": jnp.asarray(self.texts, jnp.int32)[state]}
        return state, observation, (action == state).astype(jnp.float32), jnp.asarray(True)


class EchoState(NamedTuple):
    bit: Array
    time: Array


class Echo:
    """The first action gives 0 or 1, whatever it is; the second has to name which. Right: 3 in all."""

    spec = EnvironmentSpec("echo", jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2), 2, 2.5)

    def reset(self, key: Array) -> tuple[EchoState, Array]:
        state = EchoState(jax.random.bernoulli(key).astype(jnp.int32), jnp.int32(0))
        return state, jnp.ones(1)

    def step(self, state: EchoState, action: Array, key: Array) -> tuple[EchoState, Array, Array, Array]:
        asked = state.time == 1
        right = jnp.where(action == state.bit, 3 - state.bit, 0)
        reward = jnp.where(asked, right, state.bit).astype(jnp.float32)
        state = state._replace(time=state.time + 1)
        return state, jnp.where(asked, 0.0, -1.0) * jnp.ones(1), reward, asked


def success(env: Any, iterations: int, **options: Any) -> float:
    """Share of successes in the last ten iterations."""
    config = AgentConfig(
        core="feed-forward", width=32, unroll=8, learning_rate=3e-3, epsilon_kl=0.02, **options
    )
    training = JaxTraining(make_streams(env, STREAMS), find_representation("vmpo").build(), config)
    state = training.advance(training.init_seeds((0,)), iterations - 10)
    state = training.advance(training.clear(state), 10)
    sums = training.streams.summary(state.actor.environment).total()
    return float(sums.successes[0]) / float(sums.episodes[0])


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_instruction_decides(encoder: str) -> None:
    """31 000 steps; four commands, two of which share most words in the same order."""
    assert success(Told(mute=False), 60, encoder=encoder) > 0.95


@pytest.mark.slow
def test_without_the_instruction_it_is_chance() -> None:
    assert success(Told(mute=True), 60) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_previous_reward_decides(encoder: str) -> None:
    assert success(PreviousReward(Echo()), 60, encoder=encoder) > 0.95


@pytest.mark.slow
def test_without_the_previous_reward_it_is_chance() -> None:
    assert 0.35 < success(Echo(), 60) < 0.65
