"""From an environment to many endless streams of time steps; one wrapper for each concern.

    AutoReset   one stream: the time limit, and the next episode after each last step
    Batched     n independent streams, whose first episodes need not end together
    EpisodeStatistics  returns, lengths and successes of the episodes that have finished

All are pure: state goes in and comes out, with the same types from `reset` and from `step`, so that a step can be the
body of a scan; an outer vmap runs several seeds. Letters in shapes: n streams.

The reward of the step before as a part of what is seen: {"observation": …, "reward": an `Amount`}.

An agent then knows what its last action brought. At a first step the reward is 0, as in every `TimeStep`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int32, PRNGKeyArray, Shaped

from derex.envs.interface import Environment, HostEnvironment, HostStep, NumberedEnvironment
from derex.types import Amount, EnvironmentSpec, TimeStep


class StreamState(NamedTuple):
    """Where a stream is; with a leading axis, where n of them are."""

    environment: Any
    steps: Int32[Array, "*n"]
    """steps of this episode so far, as the time limit counts them"""
    last: Bool[Array, "*n"]
    """whether the episode has ended, so that the next step begins another"""


class AutoReset:
    """An endless stream of episodes, each cut after `spec.horizon` steps; see `TimeStep` for the convention."""

    def __init__(self, env: Environment) -> None:
        self.env = env

    @property
    def spec(self) -> EnvironmentSpec:
        """That of the environment."""
        return self.env.spec

    def reset(
        self, key: PRNGKeyArray, elapsed: Int32[Array, ""] | None = None
    ) -> tuple[StreamState, TimeStep]:
        """The first step of the first episode.

        Args:
            key: a PRNG key, used here only.
            elapsed: where the time limit's counter starts for this one episode, in [0, horizon); None: at 0.
        """
        environment, observation = self.env.reset(key)
        false = jnp.zeros((), bool)
        state = StreamState(environment, jnp.zeros((), jnp.int32) if elapsed is None else elapsed, false)
        return state, TimeStep(observation, jnp.float32(0), jnp.float32(1), false, jnp.ones((), bool))

    def step(
        self, state: StreamState, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[StreamState, TimeStep]:
        """The next step; after a last one it is the first of another episode, whatever the action."""
        # The key serves twice, but only one of the two results is kept: each draw that counts is its own.
        return self.step_or_start(state, action, key, self.env.reset(key))

    def step_or_start(
        self,
        state: StreamState,
        action: Shaped[Array, "*action"],
        key: PRNGKeyArray,
        opening: tuple[Any, Any],
    ) -> tuple[StreamState, TimeStep]:
        """The same, where the state and the observation of the next episode's beginning are there already."""
        environment, observation, reward, terminated = self.env.step(state.environment, action, key)
        first = state.last
        environment, observation = jax.tree.map(
            partial(jnp.where, first), opening, (environment, observation)
        )
        steps = jnp.where(first, 0, state.steps + 1)
        terminated = terminated & ~first
        truncated = (steps >= self.spec.horizon) & ~terminated & ~first
        step = TimeStep(
            observation,
            reward=jnp.where(first, 0, reward),
            discount=1 - terminated.astype(jnp.float32),
            truncated=truncated,
            first=first,
        )
        return StreamState(environment, steps, terminated | truncated), step

    def state_id(self, state: StreamState) -> Int32[Array, ""]:
        """The number of the environment's state, where states are numbered."""
        if not isinstance(self.env, NumberedEnvironment) or self.spec.n_states == 0:
            raise TypeError(
                f"state_id: the states of {self.spec.name!r} have no numbers. Ask only where spec.n_states > 0."
            )
        return self.env.state_id(state.environment)


class Batched:
    """n independent streams, stepped together.

    Where the environment says that a reset is dear (`reset_ratio` r > 1), only ⌈n / r⌉ new episodes are made each step,
    and handed to the streams that have just ended, in turn (the optimistic resets of Craftax). Should more than that
    end at one time, some begin alike; what happens in them afterwards is drawn apart.
    """

    def __init__(self, stream: AutoReset, n: int) -> None:
        if n < 1:
            raise ValueError(f"n: expected at least one stream, got {n}.")
        ratio = getattr(stream.env, "reset_ratio", 1)
        if ratio < 1:
            raise ValueError(f"reset_ratio: expected 1 or more, got {ratio} of {stream.spec.name!r}.")
        self.stream = stream
        self.n = n
        self.openings = -(-n // ratio)

    @property
    def spec(self) -> EnvironmentSpec:
        """That of each stream's environment."""
        return self.stream.spec

    @property
    def success_return(self) -> float | None:
        """That of the environment."""
        return self.spec.success_return

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[StreamState, TimeStep]:
        """The first steps of all streams.

        Args:
            key: a PRNG key, used here only.
            stagger: True starts the time limit's counter of each first episode anywhere in [0, horizon), so that
                streams do not come to their ends, and begin anew, all at the same time.
        """
        reset_key, stagger_key = jax.random.split(key)
        elapsed = jnp.zeros(self.n, jnp.int32)
        if stagger:
            elapsed = jax.random.randint(stagger_key, (self.n,), 0, self.spec.horizon, jnp.int32)
        return jax.vmap(self.stream.reset)(jax.random.split(reset_key, self.n), elapsed)

    def step(
        self, state: StreamState, actions: Shaped[Array, "n *action"], key: PRNGKeyArray
    ) -> tuple[StreamState, TimeStep]:
        """The next step of each stream."""
        if self.openings == self.n:
            return jax.vmap(self.stream.step)(state, actions, jax.random.split(key, self.n))
        step_key, reset_key = jax.random.split(key)
        openings = jax.vmap(self.stream.env.reset)(jax.random.split(reset_key, self.openings))
        turn = (jnp.cumsum(state.last) - state.last) % self.openings  # of those that begin, 0, 1, 2, …
        handed = jax.tree.map(lambda leaf: leaf[turn], openings)
        keys = jax.random.split(step_key, self.n)
        return jax.vmap(self.stream.step_or_start)(state, actions, keys, handed)

    def state_ids(self, state: StreamState) -> Int32[Array, " n"]:
        """The number of each environment's state, where states are numbered."""
        return jax.vmap(self.stream.state_id)(state)


class EpisodeSums(NamedTuple):
    """Sums over finished episodes, for each stream."""

    episodes: Int32[Array, "*n"]
    returns: Float32[Array, "*n"]
    lengths: Int32[Array, "*n"]
    successes: Int32[Array, "*n"]
    """episodes that returned at least the `success_return` of their task; 0 where success is not defined"""

    def total(self) -> "EpisodeSums":
        """Summed over the streams, the last axis."""
        return EpisodeSums(*(field.sum(axis=-1) for field in self))


@runtime_checkable
class Stepped(Protocol):
    """Streams whose episodes can be counted: `Batched`, and `derex.envs.multitask.TaskStreams`."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    n: int

    @property
    def success_return(self) -> Any:
        """A number, or one for each stream; None: success is not defined."""
        ...

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[Any, TimeStep]: ...

    def step(
        self, state: Any, actions: Shaped[Array, "n *action"], key: PRNGKeyArray
    ) -> tuple[Any, TimeStep]:
        """The state has `steps`, as `StreamState` has."""
        ...

    def state_ids(self, state: Any) -> Int32[Array, " n"]: ...


class StatisticsState(NamedTuple):
    """The streams, the episode that each is in, and the episodes that each has finished."""

    streams: Any
    """a `StreamState`, or what else has `steps`"""
    episode_return: Float32[Array, "*n"]
    episode_length: Int32[Array, "*n"]
    sums: EpisodeSums


class EpisodeStatistics:
    """Streams that count what their finished episodes returned.

    A staggered first episode has less than the whole time limit. It is left out however it ends: to count such
    episodes only where they ended by themselves would favour the quick ones.
    """

    def __init__(self, streams: Stepped) -> None:
        self.streams: Any = streams

    @property
    def assigned(self) -> Any:
        """Which stream plays which task, where there are several (`derex.envs.multitask.TaskAssignment`); else None."""
        return getattr(self.streams, "assigned", None)

    @property
    def spec(self) -> EnvironmentSpec:
        """That of each stream's environment."""
        return self.streams.spec

    @property
    def n(self) -> int:
        """Number of streams."""
        return self.streams.n

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[StatisticsState, TimeStep]:
        """The first steps of all streams, nothing counted yet; `stagger` as in `Batched.reset`."""
        streams, step = self.streams.reset(key, stagger)
        zero, none = jnp.zeros(self.n, jnp.float32), jnp.zeros(self.n, jnp.int32)
        return StatisticsState(streams, zero, none, EpisodeSums(none, zero, none, none)), step

    def step(
        self, state: StatisticsState, actions: Shaped[Array, "n *action"], key: PRNGKeyArray
    ) -> tuple[StatisticsState, TimeStep]:
        """The next step of each stream, counted."""
        streams, step = self.streams.step(state.streams, actions, key)
        episode_return = jnp.where(step.first, 0, state.episode_return + step.reward)
        episode_length = jnp.where(step.first, 0, state.episode_length + 1)
        whole = streams.steps == episode_length  # else its time limit had begun before it
        counted = step.last & whole
        threshold = self.streams.success_return
        success = counted & (episode_return >= (jnp.inf if threshold is None else threshold))
        sums = EpisodeSums(
            state.sums.episodes + counted,
            state.sums.returns + jnp.where(counted, episode_return, 0),
            state.sums.lengths + jnp.where(counted, episode_length, 0),
            state.sums.successes + success,
        )
        return StatisticsState(streams, episode_return, episode_length, sums), step

    def state_ids(self, state: StatisticsState) -> Int32[Array, " n"]:
        """The number of each environment's state, where states are numbered."""
        return self.streams.state_ids(state.streams)

    def summary(self, state: StatisticsState) -> EpisodeSums:
        """What has been counted since the reset or since `cleared`, for each stream; `.total()` adds them up."""
        return state.sums

    def cleared(self, state: StatisticsState) -> StatisticsState:
        """The same streams with the sums at 0; episodes under way go on and will count whole."""
        return state._replace(sums=jax.tree.map(jnp.zeros_like, state.sums))


def make_streams(env: Environment, n: int) -> EpisodeStatistics:
    """n endless streams of the environment with statistics of their episodes."""
    return EpisodeStatistics(Batched(AutoReset(env), n))


OBSERVATION, REWARD = "observation", "reward"


def add_reward_part(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec of what is seen then."""
    return spec._replace(observation={OBSERVATION: spec.observation, REWARD: Amount()})


def seen(time_step: TimeStep) -> TimeStep:
    """A time step, of one stream or of many, of JAX or NumPy, as such an agent sees it."""
    return time_step._replace(observation=_both(time_step.observation, time_step.reward))


class PreviousReward:
    """A JAX environment that shows the reward; whether it numbers or draws its states stays as it is."""

    def __init__(self, env: Environment) -> None:
        self.env, self.spec = env, add_reward_part(env.spec)
        _pass_on(self, env, ("state_id", "render", "reset_ratio"))

    def reset(self, key: PRNGKeyArray) -> tuple[Any, Any]:
        """As the environment; there has been no reward."""
        state, observation = self.env.reset(key)
        return state, _both(observation, jnp.float32(0))

    def step(
        self, state: Any, action: Shaped[Array, "*action"], key: PRNGKeyArray
    ) -> tuple[Any, Any, Float32[Array, ""], Bool[Array, ""]]:
        """As the environment, with the reward that it gave."""
        state, observation, reward, terminated = self.env.step(state, action, key)
        return state, _both(observation, reward), reward, terminated


class HostPreviousReward:
    """The same for an environment that is no JAX."""

    def __init__(self, env: HostEnvironment) -> None:
        self.env, self.spec = env, add_reward_part(env.spec)
        _pass_on(self, env, ("picture",))

    def begin(self, seed: int) -> Any:
        """As the environment; there has been no reward."""
        return _both(self.env.begin(seed), np.float32(0))

    def act(self, action: Shaped[np.ndarray, "*action"]) -> HostStep:
        """As the environment, with the reward that it gave."""
        step = self.env.act(action)
        return step._replace(observation=_both(step.observation, np.float32(step.reward)))

    def close(self) -> None:
        """As the environment."""
        self.env.close()


def make_with_previous_reward(source: Callable[[], HostEnvironment]) -> HostPreviousReward:
    """What `source` makes, with the reward; `partial(make_with_previous_reward, source)` can go to another process."""
    return HostPreviousReward(source())


def _both(observation: Any, reward: Any) -> dict[str, Any]:
    return {OBSERVATION: observation, REWARD: reward}


def _pass_on(wrapper: Any, env: Any, names: tuple[str, ...]) -> None:
    """What an environment may have or not: as attributes, by which `isinstance` knows it."""
    for name in names:
        if hasattr(env, name):
            setattr(wrapper, name, getattr(env, name))
