"""Wrappers from one environment to many endless streams of time steps.

    AutoReset          one stream: the time limit, and the next episode after each last step
    Batched            n independent streams, whose first episodes need not end together
    EpisodeStatistics  returns, lengths and successes of finished episodes
    PreviousReward     the reward of the step before as a part of the observation

All are pure: state goes in and comes out, with the same types from `reset` and from `step`, so that a step can be the
body of a scan; an outer vmap runs several seeds. Letters in shapes: n streams.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, Shaped

from derex.envs.interface import Environment, HostEnvironment, HostStep, NumberedEnvironment
from derex.types import Amount, EnvironmentSpec, TimeStep


class StreamState(NamedTuple):
    """The state of a stream; with a leading axis, of n streams."""

    environment: Any
    steps: Int32[Array, "*n"]
    """steps of this episode so far, for the time limit"""
    last: Bool[Array, "*n"]
    """whether the episode has ended; the next step begins another"""


StreamOutput = tuple[StreamState, TimeStep]
Action = Shaped[Array, "*action"]
Actions = Shaped[Array, "n *action"]


class AutoReset:
    """An endless stream of episodes, truncated after `spec.horizon` steps; see `TimeStep` for the convention."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.spec = env.spec

    def reset(self, key: PRNGKeyArray, elapsed: Int32[Array, ""] | None = None) -> StreamOutput:
        """Returns the first step of the first episode; `elapsed` steps are counted for its time limit, by default 0."""
        environment, observation = self.env.reset(key)
        false = jnp.zeros((), bool)
        state = StreamState(environment, jnp.zeros((), jnp.int32) if elapsed is None else elapsed, false)
        return state, TimeStep(observation, jnp.float32(0), jnp.float32(1), false, jnp.ones((), bool))

    def step(
        self, state: StreamState, action: Action, key: PRNGKeyArray, start: tuple[Any, Any] | None = None
    ) -> StreamOutput:
        """Returns the next step; after a last step it is the first of another episode, whatever the action.

        `start` is the state and observation with which that episode would start; None: those of a reset.
        """
        # Step and reset share the key. Only one of the two results is kept, so no draw is used twice.
        start = self.env.reset(key) if start is None else start
        environment, observation, reward, terminated = self.env.step(state.environment, action, key)
        first = state.last
        environment, observation = jax.tree.map(partial(jnp.where, first), start, (environment, observation))
        steps = jnp.where(first, 0, state.steps + 1)
        terminated = terminated & ~first
        truncated = (steps >= self.spec.horizon) & ~terminated & ~first
        reward, discount = jnp.where(first, 0, reward), 1 - terminated.astype(jnp.float32)
        step = TimeStep(observation, reward, discount, truncated, first)
        return StreamState(environment, steps, terminated | truncated), step


class Batched:
    """n independent streams, stepped together.

    If the environment has expensive resets (`reset_ratio` r > 1), only ⌈n / r⌉ are computed each step and given in turn
    to the streams whose episodes have ended (the optimistic resets of Craftax). If more episodes than that end at once,
    some begin in the same state; later draws differ.
    """

    def __init__(self, stream: AutoReset, n: int) -> None:
        if n < 1:
            raise ValueError(f"n: expected at least one stream, got {n}.")
        ratio = getattr(stream.env, "reset_ratio", 1)
        if ratio < 1:
            raise ValueError(f"reset_ratio: expected 1 or more, got {ratio} of {stream.spec.name!r}.")
        self.stream, self.n, self.resets = stream, n, -(-n // ratio)
        self.spec, self.success_return = stream.spec, stream.spec.success_return

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> StreamOutput:
        """Returns the first steps of all streams.

        Args:
            key: a PRNG key, used here only.
            stagger: draw the initial step count of each first episode from [0, horizon), so that the episodes of
                different streams do not all end at the same time.
        """
        reset_key, stagger_key = jax.random.split(key)
        elapsed = jnp.zeros(self.n, jnp.int32)
        if stagger:
            elapsed = jax.random.randint(stagger_key, (self.n,), 0, self.spec.horizon, jnp.int32)
        return jax.vmap(self.stream.reset)(jax.random.split(reset_key, self.n), elapsed)

    def step(self, state: StreamState, actions: Actions, key: PRNGKeyArray) -> StreamOutput:
        """Returns the next step of each stream."""
        if self.resets == self.n:
            return jax.vmap(self.stream.step)(state, actions, jax.random.split(key, self.n))
        step_key, reset_key = jax.random.split(key)
        starts = jax.vmap(self.stream.env.reset)(jax.random.split(reset_key, self.resets))
        turn = (jnp.cumsum(state.last) - state.last) % self.resets  # 0, 1, 2, … among the streams that begin
        starts = jax.tree.map(lambda leaf: leaf[turn], starts)
        keys = jax.random.split(step_key, self.n)
        return jax.vmap(self.stream.step)(state, actions, keys, starts)

    def state_ids(self, state: StreamState) -> Int32[Array, " n"]:
        """Returns the number of each environment's state; needs `spec.n_states > 0`."""
        env = self.stream.env
        if not isinstance(env, NumberedEnvironment) or self.spec.n_states == 0:
            raise TypeError(
                f"state_id: the states of {self.spec.name!r} are not numbered. Call it only if spec.n_states > 0."
            )
        return jax.vmap(env.state_id)(state.environment)


class EpisodeSums(NamedTuple):
    """Sums over the finished episodes of each stream."""

    episodes: Int32[Array, "*n"]
    returns: Float32[Array, "*n"]
    lengths: Int32[Array, "*n"]
    successes: Int32[Array, "*n"]
    """episodes with at least the `success_return` of their task; 0 where success is not defined"""

    def total(self) -> "EpisodeSums":
        """Sums over the streams, the last axis."""
        return EpisodeSums(*(field.sum(axis=-1) for field in self))


class StatisticsState(NamedTuple):
    """The streams, the current episode of each, and sums over its finished episodes."""

    streams: Any
    """a `StreamState`, or another record with `steps`"""
    episode_return: Float32[Array, "*n"]
    episode_length: Int32[Array, "*n"]
    sums: EpisodeSums


StatisticsOutput = tuple[StatisticsState, TimeStep]


class EpisodeStatistics:
    """Streams with statistics of their finished episodes, of `Batched` or `derex.envs.multitask.TaskStreams`.

    A staggered first episode has less than the full time limit and is never counted: counting such episodes only if
    they terminate would favour short ones.
    """

    def __init__(self, streams: Any) -> None:
        self.streams, self.spec, self.n = streams, streams.spec, streams.n
        self.assigned: Any = getattr(streams, "assigned", None)
        """which stream plays which task (`derex.envs.multitask.TaskAssignment`); None for a single task"""

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> StatisticsOutput:
        """Returns the first steps of all streams and zero sums; `stagger` as in `Batched.reset`."""
        streams, step = self.streams.reset(key, stagger)
        zero, none = jnp.zeros(self.n, jnp.float32), jnp.zeros(self.n, jnp.int32)
        return StatisticsState(streams, zero, none, EpisodeSums(none, zero, none, none)), step

    def step(self, state: StatisticsState, actions: Actions, key: PRNGKeyArray) -> StatisticsOutput:
        """Returns the next step of each stream and updates the sums."""
        streams, step = self.streams.step(state.streams, actions, key)
        episode_return = jnp.where(step.first, 0, state.episode_return + step.reward)
        episode_length = jnp.where(step.first, 0, state.episode_length + 1)
        whole = streams.steps == episode_length  # False for a staggered first episode
        counted = step.last & whole
        threshold = self.streams.success_return
        success = counted & (episode_return >= (jnp.inf if threshold is None else threshold))
        finished = jnp.where(counted, episode_return, 0), jnp.where(counted, episode_length, 0)
        sums = jax.tree.map(jnp.add, state.sums, EpisodeSums(counted, *finished, success))
        return StatisticsState(streams, episode_return, episode_length, sums), step

    def state_ids(self, state: StatisticsState) -> Int32[Array, " n"]:
        """Returns the number of each environment's state; needs `spec.n_states > 0`."""
        return self.streams.state_ids(state.streams)

    def summary(self, state: StatisticsState) -> EpisodeSums:
        """The sums of each stream since `reset` or `cleared`; `.total()` adds the streams."""
        return state.sums

    def cleared(self, state: StatisticsState) -> StatisticsState:
        """The same streams with zero sums; current episodes continue and will count in full."""
        return state._replace(sums=jax.tree.map(jnp.zeros_like, state.sums))


def make_streams(env: Environment, n: int) -> EpisodeStatistics:
    """Makes n endless streams of the environment with statistics of their episodes."""
    return EpisodeStatistics(Batched(AutoReset(env), n))


# --- observations ---------------------------------------------------------------------------------------------------


Conversion = Callable[[Any, Any], Any]
"""(observation, reward) -> another observation; the reward is 0 at a first step"""


class MappedEnvironment:
    """A JAX environment with converted observations."""

    def __init__(self, env: Environment, spec: EnvironmentSpec, convert: Conversion) -> None:
        self.env, self.spec, self._convert = env, spec, convert
        _copy_attributes(env, self, "render", "reset_ratio", *(["state_id"] if spec.n_states else []))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """As the environment."""
        state, observation = self.env.reset(key)
        return state, self._convert(observation, jnp.float32(0))

    def step(self, state: Any, action: Action, key: PRNGKeyArray) -> tuple[Any, Any, Array, Array]:
        """As the environment."""
        state, observation, reward, terminated = self.env.step(state, action, key)
        return state, self._convert(observation, reward), reward, terminated


class MappedHostEnvironment:
    """A host environment with converted observations."""

    def __init__(self, env: HostEnvironment, spec: EnvironmentSpec, convert: Conversion) -> None:
        self.env, self.spec, self._convert, self.close = env, spec, convert, env.close
        _copy_attributes(env, self, "picture")

    def begin(self, seed: int) -> Any:
        """As the environment."""
        return self._convert(self.env.begin(seed), np.float32(0))

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """As the environment."""
        step = self.env.act(action)
        return step._replace(observation=self._convert(step.observation, np.float32(step.reward)))


def _copy_attributes(env: Any, wrapper: Any, *names: str) -> None:
    """Copies the attributes that exist: `isinstance` of the protocols looks for them."""
    for name in names:
        if hasattr(env, name):
            setattr(wrapper, name, getattr(env, name))


OBSERVATION, REWARD = "observation", "reward"


def add_reward_part(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec with the previous reward in its observation."""
    return spec._replace(observation={OBSERVATION: spec.observation, REWARD: Amount()})


def _add_reward(observation: Any, reward: Any) -> dict[str, Any]:
    return {OBSERVATION: observation, REWARD: reward}


class PreviousReward(MappedEnvironment):
    """A JAX environment whose observation is {"observation": …, "reward": that of the step before, 0 at first}."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env, add_reward_part(env.spec), _add_reward)


def make_with_previous_reward(source: Callable[[], HostEnvironment]) -> MappedHostEnvironment:
    """`PreviousReward` of the host environment that `source` makes; a partial of this function can be pickled."""
    env = source()
    return MappedHostEnvironment(env, add_reward_part(env.spec), _add_reward)
