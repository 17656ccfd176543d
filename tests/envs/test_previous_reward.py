"""The reward of the step before, as a part of what is seen."""

import pickle
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from derex.envs.diagnostic import Catch
from derex.envs.grid.rooms import FourRooms
from derex.envs.interface import (
    DrawnEnvironment,
    DrawnHostEnvironment,
    Environment,
    HostEnvironment,
    HostStep,
    NumberedEnvironment,
)
from derex.envs.wrappers import (
    PreviousReward,
    add_reward_part,
    make_streams,
    make_with_previous_reward,
)
from derex.types import Amount, Discrete, EnvironmentSpec, TimeStep


class Counting:
    """A host environment whose reward is the action, over after two steps."""

    spec = EnvironmentSpec("counting", jax.ShapeDtypeStruct((1,), np.float32), Discrete(5), 10)

    def begin(self, seed: int) -> Any:
        self.time = 0
        return np.full(1, seed, np.float32)

    def act(self, action: np.ndarray) -> HostStep:
        self.time += 1
        return HostStep(np.full(1, self.time, np.float32), float(action), self.time == 2, False)

    def close(self) -> None:
        self.time = -1


def test_the_spec_says_so() -> None:
    plain = Catch().spec
    spec = add_reward_part(plain)
    assert spec.observation == {"observation": plain.observation, "reward": Amount()}
    assert spec._replace(observation=plain.observation) == plain


def test_streams_show_the_reward_of_each_step_and_none_at_first_ones() -> None:
    """Everything else is as without it, to the last bit."""
    plain, shown = make_streams(Catch(), 16), make_streams(PreviousReward(Catch()), 16)

    def walk(streams: Any) -> TimeStep:
        state, step = streams.reset(jax.random.key(0))

        def go(state: Any, key: jax.Array) -> Any:
            state, step = streams.step(state, jax.random.randint(key, (16,), 0, 3), key)
            return state, step

        _, steps = jax.lax.scan(go, state, jax.random.split(jax.random.key(1), 30))
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), step, steps)

    without, with_it = jax.jit(walk, static_argnums=0)(plain), jax.jit(walk, static_argnums=0)(shown)
    np.testing.assert_array_equal(with_it.observation["reward"], without.reward)
    assert np.unique(with_it.observation["reward"]).size > 1
    assert not np.any(np.asarray(with_it.observation["reward"])[np.asarray(with_it.first)])
    assert with_it.observation["reward"].dtype == jnp.float32
    same = with_it._replace(observation=with_it.observation["observation"])
    jax.tree.map(np.testing.assert_array_equal, same, without)


def test_numbers_and_pictures_of_states_stay() -> None:
    plain, shown = FourRooms(), PreviousReward(FourRooms())
    assert isinstance(shown, Environment)
    assert isinstance(shown, NumberedEnvironment)
    state, _ = shown.reset(jax.random.key(0))
    assert shown.state_id(state) == plain.state_id(state)
    for env in (Catch(), FourRooms()):
        assert isinstance(PreviousReward(env), DrawnEnvironment) == isinstance(env, DrawnEnvironment)
    assert not isinstance(PreviousReward(Catch()), NumberedEnvironment)
    assert not hasattr(PreviousReward(Catch()), "reset_ratio")


def test_dear_resets_stay_few() -> None:
    class Dear(Catch):
        reset_ratio = 4

    assert make_streams(PreviousReward(Dear()), 16).streams.resets == 4


def test_a_host_environment_shows_it_too() -> None:
    source = pickle.loads(pickle.dumps(partial(make_with_previous_reward, Counting)))
    wrapped: Any = source()
    env = wrapped
    assert isinstance(env, HostEnvironment)
    assert not isinstance(env, DrawnHostEnvironment)
    assert env.spec == add_reward_part(Counting.spec)
    first = env.begin(3)
    assert (first["observation"].item(), first["reward"]) == (3.0, 0.0)
    for time, action in ((1, 4), (2, 1)):
        step = env.act(np.asarray(action))
        assert (step.observation["observation"].item(), step.observation["reward"]) == (time, action)
        assert step.observation["reward"].dtype == np.float32
        assert (step.reward, step.terminated) == (action, time == 2)
    assert env.begin(0)["reward"] == 0.0
    env.close()
    assert vars(wrapped.env) == {"time": -1}
