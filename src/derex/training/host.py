"""Training on host environments: the learner on the device, the environments in worker processes.

While the learner learns from rollout i, the workers collect rollout i + 1 with the parameters from before that update.
The lag is always one update, so a run depends on its seeds alone. V-MPO's loss compares with the policy that acted,
which the rollout holds together with its values and memories. Streams form two groups that take turns: while one is
stepped, the policy acts on the other.

Shapes: N seeds, B streams of all groups, b streams of a group, T transitions between S = T + 1 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, PRNGKeyArray

from derex.agents.network import AgentNetwork
from derex.agents.policy import Policy
from derex.agents.rollout import Actor, AgentMemory, Decision, Rollout, act, init_memory
from derex.envs import host as envs
from derex.envs.host import HostSteps, HostTask, WorkerFailed
from derex.envs.multitask import TaskAssignment, assign_tasks
from derex.envs.wrappers import EpisodeSums
from derex.training.config import TrainConfig
from derex.training.learner import Loop, Training, TrainState, zero_nonfinite
from derex.types import EnvironmentSpec, Trajectories

TRAINING = 0  # first number of the keys that episodes are seeded from; those of evaluation are others


class GroupRollout(NamedTuple):
    """The rollout of a group, as it was collected."""

    steps: HostSteps
    """arrays (S, N, b, …)"""
    memory: Any
    """of the core before step 0"""
    decisions: list[Decision]
    """at each step, without memories; at the last one only for its value: it is decided again in the next rollout"""


class HostCounts(NamedTuple):
    """Episodes of each stream: what a state holds of host environments, which cannot be saved themselves."""

    begun: Int[Any, "*B"]
    """that under way included"""
    sums: EpisodeSums


class HostRollout(NamedTuple):
    """The rollout of all streams, in NumPy arrays."""

    groups: tuple[GroupRollout, ...]
    counts: HostCounts
    """episodes begun by its end, and sums of those that ended in it: (N, B) each"""


@dataclass(frozen=True)
class HostStreams:
    """`n` streams of a host environment for each seed; takes the place of JAX streams in a `Training`."""

    task: HostTask
    n: int

    def __post_init__(self) -> None:
        _ = self.assigned  # raises on too few streams for the tasks, before anything is written

    @property
    def spec(self) -> EnvironmentSpec:
        """Of the environment."""
        return self.task.spec

    @property
    def assigned(self) -> TaskAssignment | None:
        """The task of each stream, where there are several tasks."""
        return assign_tasks([task.spec for task in self.task.tasks], self.n) if self.task.tasks else None


class HostTraining(Training):
    """A training whose rollouts come from workers."""

    def init_actor(self, network: AgentNetwork, key: PRNGKeyArray) -> Actor:
        """Counts only: the first step is taken by the workers."""
        none, zero = jnp.zeros(self.streams.n, jnp.int32), jnp.zeros(self.streams.n)
        counts = HostCounts(none, EpisodeSums(none, zero, none, none))
        return Actor(counts, None, None, None)  # type: ignore[arg-type]

    def iterate(self, state: TrainState) -> TrainState:
        """Learn from a rollout of zeros; traced for the shapes of its results."""
        one = jax.tree.map(lambda leaf: leaf[None], state)
        return jax.tree.map(lambda leaf: leaf[0], self.learn_all(one, self.zero_rollout(one)))

    def open_loop(self, config: TrainConfig, notify: Callable[..., None]) -> Loop:
        return HostLoop(self, config, notify)

    @partial(jax.jit, static_argnums=0)
    def learn_all(self, state: TrainState, groups: tuple[GroupRollout, ...]) -> TrainState:
        """Learn from a rollout, each seed from its own."""

        def of_seed(state: TrainState, rollout: Any) -> TrainState:
            key, _, observing, learning = jax.random.split(state.key, 4)
            return self.learn_from(state, rollout, observing, learning)._replace(key=key)

        return jax.vmap(of_seed)(state, join_groups(self.streams.spec, groups))

    @partial(jax.jit, static_argnums=0)
    def acting_keys(self, state: TrainState, ahead: Any) -> Key[Array, " N"]:
        """Keys for the rollout that is collected while the state learns (`ahead`), or before."""
        return jax.vmap(lambda key: jax.random.fold_in(jax.random.split(key, 4)[1], ahead))(state.key)

    def zero_rollout(self, state: TrainState) -> tuple[GroupRollout, ...]:
        """A rollout of zeros, of all seeds."""
        seeds, length, policy = len(state.key), self.config.unroll + 1, self.policy
        networks, values = state.learner.trained.network, 2 if self.config.two_values else 1
        groups = []
        for size in group_sizes(self.streams.n):
            steps = jax.tree.map(np.zeros_like, envs.allocate_steps(self.streams.spec, length, seeds, size))
            parameters = jnp.zeros((seeds, size, policy.size))
            action = jax.eval_shape(policy.mode, parameters)
            value, previous = jnp.zeros((seeds, size, values)), jnp.zeros((seeds, size, policy.width))
            decision = Decision(jnp.zeros(action.shape, action.dtype), parameters, value, previous, None)  # type: ignore[arg-type]
            memory = jax.vmap(lambda network, n=size: network.core.initial(n))(networks)
            groups.append(GroupRollout(steps, memory, [decision] * length))
        return tuple(groups)


class HostLoop(Loop):
    """Advances a host training one iteration at a time; workers stay between calls; `notify` gets their restarts."""

    longest: int | None = 1
    """between two iterations a run can be stopped and saved"""

    def __init__(self, training: HostTraining, config: TrainConfig, notify: Callable[..., None]):
        self._training, self._config, self._notify = training, config, notify
        self._learner = ThreadPoolExecutor(1, "derex-learner")
        self._pool: Any = None
        self.ahead: HostRollout | None = None
        """collected during the last update, for the next one"""
        self._failure: WorkerFailed | None = None
        self._reported = 0  # restarts

    def advance(
        self, state: TrainState, iterations: int, reset_metrics: bool = False, more: bool = True
    ) -> TrainState:
        """As `Loop.advance`; 0 iterations start the workers, compile, and collect the first rollout.

        Raises:
            WorkerFailed: a worker was restarted too often. Raised before anything changes: the last state is valid.
        """
        if self._failure is not None:
            raise self._failure
        if self._pool is None:
            self._open(state)
        if iterations == 0:
            self.ahead = self.ahead or self._collect(state, ahead=False)
            jax.block_until_ready(self._training.learn_all(state, self._training.zero_rollout(state)))
            return state
        if reset_metrics:
            state = self._training.clear(state)
        for number in range(iterations):
            state = self._iterate(state, more or number + 1 < iterations)
        return state

    def numbers(self) -> dict[str, int]:
        """Restarts of workers since the last call."""
        restarts = 0 if self._pool is None else self._pool.restarts
        before, self._reported = self._reported, restarts
        return {"worker_restarts": restarts - before}

    def close(self) -> None:
        """Stop all workers; may be repeated."""
        self._learner.shutdown()
        if self._pool is not None:
            self._pool.close()

    def _iterate(self, state: TrainState, more: bool) -> TrainState:
        rollout = self.ahead or self._collect(state, ahead=False)
        self.ahead = None
        learn_all = self._training.learn_all
        learning = self._learner.submit(lambda: jax.block_until_ready(learn_all(state, rollout.groups)))
        try:
            if more:
                self.ahead = self._collect(state, ahead=True)
        except WorkerFailed as failure:
            self._failure = failure  # the update under way still counts
        return _add_episodes(learning.result(), rollout)

    def _collect(self, state: TrainState, ahead: bool) -> HostRollout:
        keys = self._training.acting_keys(state, np.uint32(ahead))
        return self._actor.collect(state.learner.trained.network, keys, self._config.agent.unroll)

    def _open(self, state: TrainState) -> None:
        """Start workers, with the episodes after those that the state has begun."""
        config, streams = self._config, self._training.streams
        parts = _split_groups(np.arange(config.streams), group_sizes(config.streams))
        keys = [(TRAINING, seed, b) for part in parts for seed in config.all_seeds for b in part.tolist()]
        numbers = [number for _, _, number in keys]
        begun: Int[np.ndarray, "N B"] = jax.device_get(state.actor.environment.begun)
        self._pool = envs.open_streams(
            streams.task,
            keys,
            tuple(len(part) * config.seeds for part in parts),
            envs.PoolOptions(config.workers, config.worker_timeout, config.worker_restarts),
            self._notify,
            stagger=True,
            begun=np.concatenate([begun[:, part].reshape(-1) for part in parts]),
            numbers=numbers,
        )
        thresholds = None if streams.assigned is None else streams.assigned.success_returns[numbers]
        self._actor = HostActor(self._pool, self._training.policy, config.seeds, thresholds)


def _add_episodes(state: TrainState, rollout: HostRollout) -> TrainState:
    """Add the episodes of the rollout to the state that has learnt from it."""
    before: HostCounts = state.actor.environment
    begun, sums = jax.tree.map(
        lambda leaf, like: jax.device_put(jnp.asarray(leaf, like.dtype), like.sharding),
        rollout.counts,
        before,
    )
    after = HostCounts(begun, jax.tree.map(jnp.add, before.sums, sums))
    return state._replace(actor=state.actor._replace(environment=after))


def group_sizes(streams: int) -> tuple[int, ...]:
    """Sizes of the groups: two halves; a single stream is one group."""
    return (streams,) if streams == 1 else (streams - streams // 2, streams // 2)


def _split_groups(rows: np.ndarray, groups: tuple[int, ...]) -> list[np.ndarray]:
    """Split an array with a row for each stream into those of each group."""
    return np.split(rows, np.cumsum(groups)[:-1])


class HostActor:
    """Collects rollouts from all streams of all seeds, with a pool that was not stepped yet.

    Each of its groups is ordered by seed. `success_returns` has the threshold of each stream, where they differ.
    """

    def __init__(
        self,
        pool: envs.Pool | envs.VectorPool | envs.JoinedPool,
        policy: Policy,
        seeds: int,
        success_returns: Float[np.ndarray, " n"] | None = None,
    ):
        self._pool, self._policy, self._seeds = pool, policy, seeds
        self._memory: list[AgentMemory] = []
        self._now: list[HostSteps] = []
        shortened = _split_groups(pool.shortened, pool.groups)
        if success_returns is None:
            thresholds: list[Any] = [pool.spec.success_return] * len(shortened)
        else:
            thresholds = _split_groups(success_returns, pool.groups)
        self._counters = [envs.EpisodeCounter(*each) for each in zip(shortened, thresholds, strict=True)]

    def collect(self, networks: AgentNetwork, keys: Key[Array, " N"], length: int) -> HostRollout:
        """Act for `length` transitions with one network and one fresh key for each seed; may raise `WorkerFailed`."""
        pool, groups = self._pool, range(len(self._pool.groups))
        if not self._memory:
            self._begin(networks)
        steps = [envs.allocate_steps(pool.spec, length + 1, size) for size in pool.groups]
        seen = [split_seeds(each, self._seeds, 1) for each in steps]
        starts, decisions = [memory.core for memory in self._memory], [[] for _ in groups]
        leaves, structure = jax.tree.flatten(networks)
        act_all_seeds = compile_act(self._policy, structure)
        for t in range(length + 1):
            for g in groups:
                self._receive(g, steps[g], t)
                shown, draw = show_step(pool.spec, seen[g].at(t)), np.array([t, g], np.uint32)
                memory, decision = act_all_seeds(leaves, self._memory[g], *shown, keys, draw)
                decisions[g].append(decision)
                if t < length:
                    self._memory[g] = memory
                    action = np.asarray(decision.action)
                    pool.send(g, action.reshape(-1, *action.shape[2:]))
                else:
                    self._now[g] = steps[g].at(t)
        rollouts = tuple(GroupRollout(*parts) for parts in zip(seen, starts, decisions, strict=True))
        counts = [
            split_seeds(HostCounts(begun, counter.take()), self._seeds, 0)
            for counter, begun in zip(self._counters, _split_groups(pool.begun, pool.groups), strict=True)
        ]
        joined = jax.tree.map(lambda *parts: np.concatenate(parts, 1), *counts)
        return HostRollout(jax.device_get(rollouts), joined)

    def _begin(self, networks: AgentNetwork) -> None:
        """Take the first step of every stream."""
        pool = self._pool
        for g in range(len(pool.groups)):
            pool.send(g)
        for g, size in enumerate(pool.groups):
            self._memory.append(init_memories(networks, self._policy, size // self._seeds))
            self._now.append(envs.allocate_steps(pool.spec, size))
            self._counters[g].add(self._now[g], pool.receive(g, self._now[g]))

    def _receive(self, g: int, steps: HostSteps, t: int) -> None:
        """Receive step t; step 0 is the last of the rollout before.

        The pool ends an episode that a fault has cut one step late, by showing its last observation again: nothing led
        there, and the action before it was never executed. Here the episode is truncated where it was really last seen
        and bootstrapped with the value of that, and the step shown again stands alone: no transition leads to it or
        from it, for the agent or for representations. A rollout that ends with the real one is bootstrapped there.
        """
        if t == 0:
            for array, now in zip(jax.tree.leaves(steps), jax.tree.leaves(self._now[g]), strict=True):
                array[0] = now
            return
        here, before = steps.at(t), steps.at(t - 1)
        cut = self._pool.receive(g, here, before.observation)
        self._counters[g].add(here, cut)
        before.truncated[cut] = here.first[cut] = True


def split_seeds(tree: Any, seeds: int, axis: int) -> Any:
    """Split the streams of a group, at `axis` of each array, into seeds and streams."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(*leaf.shape[:axis], seeds, -1, *leaf.shape[axis + 1 :]), tree
    )


def show_step(spec: EnvironmentSpec, step: HostSteps) -> tuple[Any, Any]:
    """Observation, in the structure of the spec, and `first` of a step: arrays (N, b, …)."""
    return jax.tree.unflatten(jax.tree.structure(spec.observation), step.observation), step.first


@partial(jax.jit, static_argnums=(1, 2))
def init_memories(networks: AgentNetwork, policy: Policy, streams: int) -> AgentMemory:
    """Memories of the streams of each seed before the first step."""
    return jax.vmap(lambda network: init_memory(network, policy, streams))(networks)


@cache
def compile_act(policy: Policy, structure: Any) -> Callable[..., tuple[AgentMemory, Decision]]:
    """One step of the streams of all seeds, compiled: arrays (N, b, …).

    Args:
        policy: of the agents.
        structure: of their networks, which are given as leaves: flattening them at each step costs more than the call.

    Returns:
        (leaves, memory, observation, first, keys, draw) -> memory and decision. The numbers in `draw` are folded into
        the key of each seed, in order; None takes the likeliest actions.
    """

    def act_all_seeds(leaves: Any, memory: Any, observation: Any, first: Any, keys: Any, draw: Any):
        def of_seed(network: AgentNetwork, memory: AgentMemory, observation: Any, first: Any, key: Any):
            key = (
                None if draw is None else reduce(jax.random.fold_in, [draw[i] for i in range(len(draw))], key)
            )
            decision = act(network, policy, observation, first, memory, key)
            # Non-finite values would persist in the memory, and an environment refuses them as actions. The
            # observation that they came from is kept, and its update is skipped.
            action = zero_nonfinite(decision.action)
            after = zero_nonfinite(AgentMemory(policy.encoded(action), decision.memory.core))
            return after, decision._replace(action=action, memory=None)  # type: ignore[arg-type]

        return jax.vmap(of_seed)(jax.tree.unflatten(structure, leaves), memory, observation, first, keys)

    return jax.jit(act_all_seeds)


def join_groups(spec: EnvironmentSpec, groups: tuple[GroupRollout, ...]) -> Rollout:
    """Concatenate the groups, in order, into one rollout of all seeds: arrays (N, B, …)."""

    def join(parts: list[Any]) -> Any:
        """Streams of the groups side by side: (N, b, …) each to (N, B, …)."""
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *parts)

    def join_steps(parts: list[Any]) -> Any:
        """The same for steps: (S, N, b, …) each to (N, B, S, …)."""
        return join(jax.tree.map(lambda leaf: jnp.moveaxis(jnp.asarray(leaf), 0, 2), parts))

    steps: HostSteps = join_steps([group.steps for group in groups])
    stacked = [jax.tree.map(lambda *each: jnp.stack(each), *group.decisions) for group in groups]
    decision: Decision = join_steps(stacked)
    observation, first = show_step(spec, steps)
    return Rollout(
        trajectories=Trajectories(observation, decision.previous_action, first, jnp.ones_like(first)),
        memory=join([group.memory for group in groups]),
        action=decision.action[:, :, :-1],
        policy=decision.parameters[:, :, :-1],
        value=decision.value,
        reward=steps.reward[:, :, 1:],
        discount=steps.discount[:, :, 1:],
        last=steps.last[:, :, 1:],
        valid=~first[:, :, 1:],
        state_id=None,
    )
