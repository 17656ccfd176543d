"""Acting: what an unroll records, and that the network sees the same when it reads the record.

The environment `Episodes` is known by heart: its observation says everything, so each record can be checked.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical, Policy, make_policy
from derex.agents.rollout import Actor, Rollout, collect_rollout, init_actor
from derex.envs.wrappers import EpisodeStatistics, make_streams
from derex.networks.encoders import InputSpec
from derex.networks.recurrent import CORES, FeedForward
from derex.types import ActionSpec, Box, Discrete, EnvironmentSpec, Trajectories

STREAMS, LENGTH, W = 8, 7, 8
ENDS, HORIZON = 3, 4  # one kind of episode terminates after 3 steps, the other is cut after 4


class EpisodeState(NamedTuple):
    """Whether this episode terminates, and its step."""

    terminates: Array
    time: Array


class Episodes:
    """Reward: 10 a + t."""

    def __init__(self, action: ActionSpec) -> None:
        self.spec = EnvironmentSpec(
            "episodes", jax.ShapeDtypeStruct((2,), jnp.float32), action, HORIZON, n_states=10
        )

    def reset(self, key: Array) -> tuple[EpisodeState, Array]:
        state = EpisodeState(jax.random.bernoulli(key).astype(jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(
        self, state: EpisodeState, action: Array, key: Array
    ) -> tuple[EpisodeState, Array, Array, Array]:
        state = EpisodeState(state.terminates, state.time + 1)
        reward = 10.0 * action.ravel()[0].astype(jnp.float32) + state.time
        return state, self._observe(state), reward, (state.terminates == 1) & (state.time == ENDS)

    def state_id(self, state: EpisodeState) -> Array:
        return 5 * state.terminates + state.time

    def _observe(self, state: EpisodeState) -> Array:
        return jnp.stack([state.terminates, state.time]).astype(jnp.float32)


class Acted(NamedTuple):
    """Two unrolls, one after the other."""

    network: AgentNetwork
    policy: Policy
    first: Rollout
    second: Rollout
    after: Actor


CASES = {
    "lstm": ("lstm", Discrete(3)),
    "feed-forward": ("feed-forward", Discrete(3)),
    "continuous": ("lstm", Box(2, -0.2, 0.2)),
}


@pytest.fixture(params=CASES, scope="module")
def acted(request: pytest.FixtureRequest) -> Acted:
    core, action = CASES[request.param]
    streams, policy = make_streams(Episodes(action), STREAMS), make_policy(action)
    parts = describe_parts(streams.spec.observation)
    network = AgentNetwork(AgentConfig(core=core, width=W), parts, policy, key=jax.random.key(0))
    actor = unstaggered(init_actor(network, policy, streams, jax.random.key(1)), streams)
    act = jax.jit(lambda actor, key: collect_rollout(network, policy, streams, actor, key, LENGTH))
    actor, first = act(actor, jax.random.key(2))
    actor, second = act(actor, jax.random.key(3))
    return Acted(network, policy, first, second, actor)


def unstaggered(actor: Actor, streams: EpisodeStatistics) -> Actor:
    """The time limits of first episodes are whole: what follows is known by heart."""
    environment, time_step = streams.reset(jax.random.key(4), stagger=False)
    return actor._replace(environment=environment, time_step=time_step)


def joined(acted: Acted) -> Any:
    """The trajectories of both unrolls as one; the step they share is there once."""
    return jax.tree.map(
        lambda a, b: jnp.concatenate([a[:, :-1], b], axis=1),
        acted.first.trajectories,
        acted.second.trajectories,
    )


def test_every_field_of_an_unroll(acted: Acted) -> None:
    """Terminations, truncations and resets are all there, each where the observations say that it must be."""
    kinds = {"reset": 0, "terminated": 0, "truncated": 0, "within": 0}
    for rollout in (acted.first, acted.second):
        observation, first = (
            np.asarray(x) for x in (rollout.trajectories.observation, rollout.trajectories.first)
        )
        assert np.all(rollout.trajectories.valid)
        for b in range(STREAMS):
            for t in range(LENGTH):
                (terminates, time), (terminates_next, time_next) = observation[b, t], observation[b, t + 1]
                was_last = (terminates == 1 and time == ENDS) or time == HORIZON
                found = tuple(float(x[b, t]) for x in (rollout.discount, rollout.last, rollout.valid))
                assert bool(first[b, t]) == (time == 0)
                if was_last:
                    assert time_next == 0
                    assert bool(first[b, t + 1])
                    assert found == (1.0, 0.0, 0.0)
                    assert rollout.reward[b, t] == 0.0
                    kinds["reset"] += 1
                    continue
                ended = terminates == 1 and time_next == ENDS
                cut = not ended and time_next == HORIZON
                assert (terminates_next, time_next) == (terminates, time + 1)
                assert found == (0.0 if ended else 1.0, float(ended or cut), 1.0)
                action = np.ravel(rollout.action[b, t])[0]
                assert rollout.reward[b, t] == pytest.approx(10.0 * action + time_next, abs=1e-5)
                kinds["terminated" if ended else "truncated" if cut else "within"] += 1
        np.testing.assert_array_equal(rollout.state_id, 5 * observation[..., 0] + observation[..., 1])
    assert min(kinds.values()) >= 5, kinds


def test_the_first_step_of_an_unroll_is_the_last_of_the_one_before(acted: Acted) -> None:
    ends = jax.tree.map(lambda leaf: leaf[:, -1], acted.first.trajectories)
    starts = jax.tree.map(lambda leaf: leaf[:, 0], acted.second.trajectories)
    jax.tree.map(np.testing.assert_array_equal, ends, starts)
    np.testing.assert_allclose(acted.second.value[:, 0], acted.first.value[:, -1], rtol=1e-5, atol=1e-6)


def test_previous_actions_are_those_taken_and_none_at_first_steps(acted: Acted) -> None:
    for rollout in (acted.first, acted.second):
        first, previous = (
            np.asarray(x) for x in (rollout.trajectories.first, rollout.trajectories.previous_action)
        )
        assert np.any(first[:, 1:])
        assert np.all(previous[first] == 0.0)
        wanted = np.where(first[:, 1:, None], 0.0, acted.policy.encoded(rollout.action))
        np.testing.assert_array_equal(previous[:, 1:], wanted)
        assert np.all(np.any(previous[:, 1:] != 0.0, axis=-1) == ~first[:, 1:])


def test_the_replayed_unroll_is_the_acted_one(acted: Acted) -> None:
    """Log-probabilities and values before the first update, with the memory that the unroll began with."""
    for rollout in (acted.first, acted.second):
        seen = eqx.filter_jit(acted.network)(rollout.trajectories, rollout.memory)
        np.testing.assert_allclose(seen.policy[:, :-1], rollout.policy, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(seen.value, rollout.value, rtol=1e-4, atol=1e-6)
        replayed, acting = (
            acted.policy.log_prob(parameters, rollout.action)
            for parameters in (seen.policy[:, :-1], rollout.policy)
        )
        np.testing.assert_allclose(replayed, acting, rtol=1e-4, atol=1e-5)
        with jax.enable_x64(True):  # in single precision the logarithms' own rounding is larger than this
            parameters = (np.asarray(x, np.float64) for x in (rollout.policy, seen.policy[:, :-1]))
            np.testing.assert_allclose(acted.policy.kl(*map(jnp.asarray, parameters)), 0.0, atol=1e-8)


def test_memory_goes_from_unroll_to_unroll(acted: Acted) -> None:
    """Both unrolls in one reading, from nothing: the same values, and the memory that acting goes on with."""
    whole = joined(acted)
    steps = jax.tree.map(lambda leaf: leaf[:, :-1], whole)  # the actor has not seen its last step yet
    seen = eqx.filter_jit(acted.network)(steps, acted.network.core.initial(STREAMS))
    wanted = jnp.concatenate([acted.first.value[:, :-1], acted.second.value[:, :-1]], axis=1)
    np.testing.assert_allclose(seen.value, wanted, rtol=1e-4, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), seen.memory, acted.after.memory
    )


def test_every_episode_begins_with_nothing_remembered(acted: Acted) -> None:
    """Each whole episode inside of an unroll, read by itself from an empty memory, has the values that acting saw."""
    read, checked = eqx.filter_jit(acted.network), 0
    rollout = acted.second
    first = np.asarray(rollout.trajectories.first)
    for b in range(STREAMS):
        for start in np.flatnonzero(first[b, : LENGTH - 2]):
            stop = start + 3  # each episode has at least three steps
            alone = jax.tree.map(lambda leaf, b=b, s=start: leaf[b : b + 1, s : s + 3], rollout.trajectories)
            value = read(alone, acted.network.core.initial(1)).value
            np.testing.assert_allclose(value[0], rollout.value[b, start:stop], rtol=1e-4, atol=1e-6)
            checked += 1
    assert checked >= STREAMS


def test_only_a_core_without_memory_is_memoryless() -> None:
    """Another past: another value with an LSTM, the same without; the present matters to both."""
    streams = make_streams(Episodes(Discrete(3)), STREAMS)
    policy = make_policy(Discrete(3))
    rng = np.random.default_rng(0)
    for core, remembers in (("lstm", True), ("feed-forward", False)):
        parts = describe_parts(streams.spec.observation)
        network = AgentNetwork(AgentConfig(core=core, width=W), parts, Categorical(3), key=jax.random.key(0))
        actor = init_actor(network, policy, streams, jax.random.key(1))
        _, rollout = jax.jit(
            lambda a, n=network: collect_rollout(n, policy, streams, a, jax.random.key(2), LENGTH)
        )(actor)
        trajectories = rollout.trajectories._replace(first=jnp.zeros((STREAMS, LENGTH + 1), bool))
        noise = jnp.asarray(rng.normal(size=trajectories.observation.shape), jnp.float32)
        read = eqx.filter_jit(network)

        def values(t: int, trajectories: Any = trajectories, noise: Any = noise, read: Any = read) -> Any:
            changed = trajectories.observation.at[:, t].add(noise[:, t])
            return read(trajectories._replace(observation=changed), rollout.memory).value  # noqa: B023

        plain = read(trajectories, rollout.memory).value
        for t in (0, 4):
            different = np.any(np.asarray(values(t) != plain), axis=(0, 2))
            assert not different[:t].any()
            assert different[t]
            assert np.all(different[t + 1 :] == remembers)


def test_the_previous_action_can_be_hidden() -> None:
    """From policy and value, at every step; by default it is seen."""
    for sees in (True, False):
        config = AgentConfig(core="feed-forward", width=W, previous_action=sees)
        network = AgentNetwork(config, (InputSpec((4,)),), Categorical(3), key=jax.random.key(0))
        observation, first = jnp.ones((2, 5, 4)), jnp.zeros((2, 5), bool)
        done = [jax.nn.one_hot(jnp.full((2, 5), a), 3) for a in (0, 2)]
        seen = [network(Trajectories(observation, each, first, ~first), ()) for each in done]
        same = all(bool(jnp.all(getattr(seen[0], of) == getattr(seen[1], of))) for of in ("policy", "value"))
        assert same is not sees


def test_a_core_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by its name as soon as it is in the table."""
    monkeypatch.setitem(CORES, "mine", FeedForward)
    config = AgentConfig(core="mine", width=W)
    network = AgentNetwork(config, (InputSpec((4,)),), make_policy(Discrete(3)), key=jax.random.key(0))
    assert isinstance(network.core, FeedForward)
