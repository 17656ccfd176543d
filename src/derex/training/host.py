"""Training on host environments: the same learner, fed by workers.

While the learner learns from unroll i, the workers are at unroll i + 1, with the parameters from before that update.
The lag is always one update, so that a run depends on its seeds alone. V-MPO's loss compares with the policy that
acted, which the rollout holds; values and memories are those of the network that acted too.

Shapes: N seeds, B streams.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key, PRNGKeyArray

from derex.agents.network import AgentNetwork
from derex.agents.rollout import Actor
from derex.envs.host import HostTask, PoolOptions, WorkerFailed, allocate_steps, open_streams
from derex.envs.multitask import TaskAssignment, assign_tasks
from derex.envs.wrappers import EpisodeSums
from derex.training.config import TrainConfig
from derex.training.host_rollout import Acted, GroupUnroll, HostActor, Unrolled, group_sizes, joined
from derex.training.learner import Training, TrainState
from derex.types import EnvironmentSpec

TRAINING = 0  # first number of the keys that episodes are seeded from; those of evaluation are others


class HostCounts(NamedTuple):
    """What a training state holds of its environments, which themselves are not saved."""

    begun: Int[Array, "*B"]
    """episodes of each stream, that under way included"""
    sums: EpisodeSums


@dataclass(frozen=True)
class HostStreams:
    """So many streams of a host environment, for each seed; stands where JAX streams stand."""

    task: HostTask
    n: int

    def __post_init__(self) -> None:
        _ = self.assigned  # refuses too few streams for the tasks, before anything is written

    @property
    def spec(self) -> EnvironmentSpec:
        """That of the environment."""
        return self.task.spec

    @property
    def assigned(self) -> TaskAssignment | None:
        """Which stream plays which task, where there are several."""
        return assign_tasks([task.spec for task in self.task.tasks], self.n) if self.task.tasks else None

    def summary(self, counts: HostCounts) -> EpisodeSums:
        """What was counted since the last line, for each stream."""
        return counts.sums

    def cleared(self, counts: HostCounts) -> HostCounts:
        """The same with the sums at 0."""
        return counts._replace(sums=jax.tree.map(jnp.zeros_like, counts.sums))


class HostTraining(Training):
    """A host environment, agent and representation, joined."""

    def init_actor(self, network: AgentNetwork, key: PRNGKeyArray) -> Actor:
        """Nothing but counts: workers begin where they are opened."""
        none, zero = jnp.zeros(self.streams.n, jnp.int32), jnp.zeros(self.streams.n)
        counts = HostCounts(none, EpisodeSums(none, zero, none, none))
        return Actor(counts, None, None, None)  # type: ignore[arg-type]

    def iterate(self, state: TrainState) -> TrainState:
        """Learns from an unroll in which nothing happened; for the shapes of what comes of it."""
        one = jax.tree.map(lambda leaf: leaf[None], state)
        return jax.tree.map(lambda leaf: leaf[0], self.learn_all(one, self.nothing(one)))

    def advance(self, state: TrainState, iterations: Any, reset_metrics: Any = False) -> TrainState:  # type: ignore[override]
        """There are no workers here."""
        raise TypeError(
            "advance: the steps of a host environment come from workers. Use HostLoop(training, config, tell).advance."
        )

    @partial(jax.jit, static_argnums=0)
    def learn_all(self, state: TrainState, groups: tuple[GroupUnroll, ...]) -> TrainState:
        """Learns from an unroll, each seed from its own."""

        def of_seed(state: TrainState, rollout: Any) -> TrainState:
            key, _, observing, learning = jax.random.split(state.key, 4)
            return self.learn_from(state, rollout, observing, learning)._replace(key=key)

        return jax.vmap(of_seed)(state, joined(self.streams.spec, groups))

    @partial(jax.jit, static_argnums=0)
    def acting_keys(self, state: TrainState, ahead: Any) -> Key[Array, " N"]:
        """For the unroll that is gathered while the state learns (`ahead`), or before it does."""
        return jax.vmap(lambda key: jax.random.fold_in(jax.random.split(key, 4)[1], ahead))(state.key)

    def nothing(self, state: TrainState) -> tuple[GroupUnroll, ...]:
        """An unroll of zeros, of all seeds."""
        seeds, length, policy = len(state.key), self.config.unroll, self.policy
        networks, values = state.learner.trained.network, 2 if self.config.two_values else 1
        groups = []
        for size in group_sizes(self.streams.n):
            steps = jax.tree.map(np.zeros_like, allocate_steps(self.streams.spec, length + 1, seeds, size))
            parameters = jnp.zeros((seeds, size, policy.size))
            action = jax.eval_shape(policy.mode, parameters)
            did = Acted(
                jnp.zeros(action.shape, action.dtype),
                parameters,
                jnp.zeros((seeds, size, values)),
                jnp.zeros((seeds, size, policy.width)),
            )
            memory = jax.vmap(lambda network, n=size: network.core.initial(n))(networks)
            groups.append(GroupUnroll(steps, memory, [did] * length, did.value, did.previous_action))
        return tuple(groups)


class HostLoop:
    """Carries a training forward, one iteration at a time, with workers that stay."""

    longest: int | None = 1
    """iterations at a time: between two of them a run can be stopped and saved"""

    def __init__(self, training: HostTraining, config: TrainConfig, tell: Callable[..., None]):
        """`tell` is told of workers that are started again: an event's name, and details by name."""
        self._training, self._config, self._tell = training, config, tell
        self._learner = ThreadPoolExecutor(1, "derex-learner")
        self._pool: Any = None
        self._ahead: Unrolled | None = None
        self._failure: WorkerFailed | None = None
        self._told = 0

    def advance(
        self, state: TrainState, iterations: int, reset_metrics: bool = False, more: bool = True
    ) -> TrainState:
        """The state after so many iterations; none at all opens the workers, compiles, and gathers the first unroll.

        Args:
            state: of all seeds.
            iterations: how many.
            reset_metrics: clears the tally before.
            more: whether others will follow: the last one has no unroll to gather meanwhile.

        Raises:
            WorkerFailed: a worker had to be started again too often. It is raised before anything is changed, so that
                the last state is good.
        """
        if self._failure is not None:
            raise self._failure
        if self._pool is None:
            self._open(state)
        if iterations == 0:
            self._ahead = self._ahead or self._unroll(state, ahead=False)
            jax.block_until_ready(self._training.learn_all(state, self._training.nothing(state)))
            return state
        if reset_metrics:
            state = self._training.clear(state)
        for number in range(iterations):
            state = self._iterate(state, more or number + 1 < iterations)
        return state

    def numbers(self) -> dict[str, int]:
        """For a line of metrics: what happened since the last."""
        restarts = 0 if self._pool is None else self._pool.restarts
        new, self._told = restarts - self._told, restarts
        return {"worker_restarts": new}

    def close(self) -> None:
        """Ends all workers; harmless when repeated."""
        self._learner.shutdown()
        if self._pool is not None:
            self._pool.close()

    def _iterate(self, state: TrainState, more: bool) -> TrainState:
        gathered = self._ahead or self._unroll(state, ahead=False)
        self._ahead = None
        learning = self._learner.submit(self._learn, state, gathered.groups)
        try:
            if more:
                self._ahead = self._unroll(state, ahead=True)
        except WorkerFailed as failure:
            self._failure = failure  # what is being learnt still counts
        return _counted(learning.result(), gathered)

    def _learn(self, state: TrainState, groups: tuple[GroupUnroll, ...]) -> TrainState:
        return jax.block_until_ready(self._training.learn_all(state, groups))

    def _unroll(self, state: TrainState, ahead: bool) -> Unrolled:
        keys = self._training.acting_keys(state, np.uint32(ahead))
        return self._actor.unroll(state.learner.trained.network, keys, self._config.agent.unroll)

    def _open(self, state: TrainState) -> None:
        """Workers begin new episodes, after those that the state has begun."""
        config = self._config
        sizes = group_sizes(config.streams)
        ends = np.cumsum(sizes)
        parts = [range(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]
        keys = [(TRAINING, seed, b) for part in parts for seed in config.all_seeds for b in part]
        numbers = [number for _, _, number in keys]
        counts: HostCounts = jax.device_get(state.actor.environment)
        begun = np.concatenate([counts.begun[:, part.start : part.stop].reshape(-1) for part in parts])
        self._pool = open_streams(
            self._training.streams.task,
            keys,
            tuple(size * config.seeds for size in sizes),
            PoolOptions(config.workers, config.worker_timeout, config.worker_restarts),
            self._tell,
            stagger=True,
            begun=begun,
            numbers=numbers,
        )
        tasks = self._training.streams.assigned
        thresholds = None if tasks is None else tasks.success_returns[numbers]
        self._actor = HostActor(self._pool, self._training.policy, config.seeds, thresholds)


def _counted(state: TrainState, gathered: Unrolled) -> TrainState:
    """The state with the episodes of the unroll that it has learnt from."""
    counts: HostCounts = state.actor.environment
    sums = EpisodeSums(
        *(before + _as(new, before) for before, new in zip(counts.sums, gathered.episodes, strict=True))
    )
    after = HostCounts(_as(gathered.begun, counts.begun), sums)
    return state._replace(actor=state.actor._replace(environment=after))


def _as(new: Any, like: Array) -> Array:
    """Where the other is, and of its type."""
    return jax.device_put(new.astype(like.dtype), like.sharding)
