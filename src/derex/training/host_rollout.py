"""Acting in host environments: the policy on the device, the environments in workers, two groups of streams in turn.

While one group is stepped, the policy looks at the other. Every array of a group has the seeds in front.
Shapes: N seeds, b streams of a group, B streams of all groups, T transitions between S = T + 1 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Integer, Key, Shaped

from derex.agents.network import AgentNetwork
from derex.agents.policy import Policy
from derex.agents.rollout import AgentMemory, Rollout, act, evaluate_step, init_memory
from derex.envs.host import EpisodeCounter, HostSteps, JoinedPool, Pool, VectorPool, allocate_steps
from derex.envs.wrappers import EpisodeSums
from derex.training.learner import cleaned
from derex.types import EnvironmentSpec, Trajectories


class Acted(NamedTuple):
    """What the policy did at a step of a group."""

    action: Shaped[Array, "N b *action"]
    policy: Float[Array, "N b P"]
    value: Float[Array, "N b V"]
    previous_action: Float[Array, "N b W"]
    """encoded; 0 at first steps"""


class GroupUnroll(NamedTuple):
    """An unroll of a group, as it was gathered."""

    steps: HostSteps
    """S of them: arrays (S, N, b, …)"""
    memory: Any
    """of the core before step 0"""
    acted: list[Acted]
    """at each step but the last"""
    value: Float[Any, "N b V"]
    previous_action: Float[Any, "N b W"]
    """of the last step"""


class Unrolled(NamedTuple):
    """An unroll of all streams; numpy arrays throughout."""

    groups: tuple[GroupUnroll, ...]
    episodes: EpisodeSums
    """that ended in it: (N, B) each"""
    begun: Int[np.ndarray, "N B"]
    """how many episodes each stream has begun by its end"""


def group_sizes(streams: int) -> tuple[int, ...]:
    """Two halves, where there are two streams."""
    return (streams,) if streams == 1 else (streams - streams // 2, streams // 2)


class HostActor:
    """All streams of all seeds, from unroll to unroll."""

    def __init__(
        self,
        pool: Pool | VectorPool | JoinedPool,
        policy: Policy,
        seeds: int,
        success_returns: Float[np.ndarray, " n"] | None = None,
    ):
        """Of streams that are open and have not been stepped yet; in each group all those of a seed are together.

        What counts as success is said of each, where it is not the same for all.
        """
        self._pool, self._policy, self._seeds = pool, policy, seeds
        self._structure = jax.tree.structure(pool.spec.observation)
        self._memory: list[AgentMemory] | None = None
        self._now: list[HostSteps] = []
        shortened = np.split(pool.shortened, np.cumsum(pool.groups)[:-1])
        thresholds: list[Any] = [pool.spec.success_return] * len(shortened)
        if success_returns is not None:
            thresholds = np.split(success_returns, np.cumsum(pool.groups)[:-1])
        self._counters = [EpisodeCounter(*each) for each in zip(shortened, thresholds, strict=True)]

    def unroll(self, networks: AgentNetwork, keys: Key[Array, " N"], length: int) -> Unrolled:
        """Act for `length` transitions with one policy for each seed; each key serves for this alone.

        Raises:
            WorkerFailed: a worker had to be started again too often.
        """
        pool, groups = self._pool, range(len(self._pool.groups))
        if self._memory is None:
            self._begin(networks)
        assert self._memory is not None
        steps = [allocate_steps(pool.spec, length + 1, size) for size in pool.groups]
        seen = [self._with_seeds(each, 1) for each in steps]
        starts, acted = list(self._memory), [[] for _ in groups]
        leaves, structure = jax.tree.flatten(networks)
        act_once = _act_once(self._policy, structure)
        for t in range(length):
            for g in groups:
                self._arrive(g, steps[g], t)
                draw = np.array([t, g], np.uint32)
                memory, did = act_once(leaves, self._memory[g], *self._shown(seen[g], t), keys, draw)
                pool.send(g, _flat(np.asarray(did.action)))
                self._memory[g] = memory
                acted[g].append(did)
        final = []
        for g in groups:
            self._arrive(g, steps[g], length)
            self._now[g] = steps[g].at(length)
            memory, *last = look(networks, self._memory[g], *self._shown(seen[g], length))
            self._memory[g] = memory
            final.append(last)
        unrolls = (GroupUnroll(seen[g], starts[g].core, acted[g], *final[g]) for g in groups)
        counted = [self._with_seeds(counter.take(), 0) for counter in self._counters]
        episodes = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *counted)
        return Unrolled(tuple(jax.device_get(list(unrolls))), episodes, self._begun())

    def _begin(self, networks: AgentNetwork) -> None:
        """The first step of every stream."""
        pool = self._pool
        for g in range(len(pool.groups)):
            pool.send(g)
        sizes = [size // self._seeds for size in pool.groups]
        self._memory = [_fresh_memories(networks, self._policy, size) for size in sizes]
        for g, size in enumerate(pool.groups):
            self._now.append(allocate_steps(pool.spec, size))
            cut = pool.receive(g, self._now[g])
            self._counters[g].add(self._now[g], cut)

    def _arrive(self, g: int, steps: HostSteps, t: int) -> None:
        """Fills in step t; step 0 is the last of the unroll before.

        The pool ends an episode that a fault has cut one step late, by showing its last observation again: nothing led
        there, and the action before it was never executed. Here the episode is truncated where it was really last seen
        and bootstrapped with the value of that, and the step shown again stands alone: no transition leads to it or
        from it, for the agent or for representations. An unroll that ends with the real one is bootstrapped there.
        """
        if t == 0:
            for array, now in zip(jax.tree.leaves(steps), jax.tree.leaves(self._now[g]), strict=True):
                array[0] = now
            return
        here, before = steps.at(t), steps.at(t - 1)
        cut = self._pool.receive(g, here, before.observation)
        self._counters[g].add(here, cut)
        before.truncated[cut] = here.first[cut] = True

    def _shown(self, seen: HostSteps, t: int) -> tuple[Any, Any]:
        """Observation and `first` of step t, of steps with the seeds in front."""
        step = seen.at(t)
        return jax.tree.unflatten(self._structure, step.observation), step.first

    def _with_seeds(self, tree: Any, axis: int) -> Any:
        """The streams of a group, at `axis`, as seeds and streams."""
        return jax.tree.map(
            lambda leaf: leaf.reshape(*leaf.shape[:axis], self._seeds, -1, *leaf.shape[axis + 1 :]), tree
        )

    def _begun(self) -> Int[np.ndarray, "N B"]:
        parts = np.split(self._pool.begun, np.cumsum(self._pool.groups)[:-1])
        return np.concatenate([part.reshape(self._seeds, -1) for part in parts], axis=1)


@partial(jax.jit, static_argnums=(1, 2))
def _fresh_memories(networks: AgentNetwork, policy: Policy, streams: int) -> AgentMemory:
    """Of one group, for all seeds."""
    return jax.vmap(lambda network: init_memory(network, policy, streams))(networks)


@cache
def _act_once(policy: Policy, structure: Any) -> Callable[..., tuple[AgentMemory, Acted]]:
    """`act_seeds` for networks given as leaves: flattening one at each step costs more than the call."""
    return jax.jit(lambda leaves, *rest: act_seeds(policy, jax.tree.unflatten(structure, leaves), *rest))


def act_seeds(
    policy: Policy,
    networks: AgentNetwork,
    memory: AgentMemory,
    observation: Any,
    first: Any,
    keys: Key[Array, " N"],
    draw: Integer[Any, "2"],
) -> tuple[AgentMemory, Acted]:
    """One step of a group for all seeds; `draw` is the number of the step and that of the group."""

    def of_seed(network: AgentNetwork, memory: AgentMemory, observation: Any, first: Any, key: Any):
        key = jax.random.fold_in(jax.random.fold_in(key, draw[0]), draw[1])
        decision = act(network, policy, observation, first, memory, key)
        # What is not finite would stay in the memory, and an environment would refuse it as an action; the
        # observation that it came from is kept, and the update skipped for it.
        action = cleaned(decision.action)
        after = cleaned(AgentMemory(policy.encoded(action), decision.memory.core))
        return after, Acted(action, decision.parameters, decision.value, decision.previous_action)

    return jax.vmap(of_seed)(networks, memory, observation, first, keys)


@jax.jit
def look(
    networks: AgentNetwork, memory: AgentMemory, observation: Any, first: Any
) -> tuple[AgentMemory, Any, Any]:
    """The value of a step, with which an unroll is bootstrapped, and the action before it, encoded.

    The memory is the one before that step: the next unroll begins with it. What is not finite in it is 0 from now on.
    """

    def of_seed(network: AgentNetwork, memory: AgentMemory, observation: Any, first: Any):
        previous, step = evaluate_step(network, observation, first, memory)
        return cleaned(memory), step.value[:, 0], previous

    return jax.vmap(of_seed)(networks, memory, observation, first)


def joined(spec: EnvironmentSpec, groups: tuple[GroupUnroll, ...]) -> Rollout:
    """The groups as one rollout of all seeds: arrays (N, B, …); streams are in the order of the groups."""
    steps = _all([_streams_first(group.steps, 2) for group in groups])
    acted = _all([_streams_first(_stacked(group.acted), 2) for group in groups])
    value, previous = (
        jnp.concatenate([whole, _all([getattr(group, name) for group in groups])[:, :, None]], axis=2)
        for whole, name in ((acted.value, "value"), (acted.previous_action, "previous_action"))
    )
    structure = jax.tree.structure(spec.observation)
    observation = jax.tree.unflatten(structure, steps.observation)
    return Rollout(
        trajectories=Trajectories(observation, previous, steps.first, jnp.ones_like(steps.first)),
        memory=_all([group.memory for group in groups]),
        action=acted.action,
        policy=acted.policy,
        value=value,
        reward=steps.reward[:, :, 1:],
        discount=steps.discount[:, :, 1:],
        last=steps.last[:, :, 1:],
        valid=~steps.first[:, :, 1:],
        state_id=None,
    )


def _flat(actions: np.ndarray) -> np.ndarray:
    return actions.reshape(-1, *actions.shape[2:])


def _stacked(acted: list[Acted]) -> Acted:
    return jax.tree.map(lambda *steps: jnp.stack(steps), *acted)


def _streams_first(tree: Any, axis: int) -> Any:
    """(S, N, b, …) as (N, b, S, …)."""
    return jax.tree.map(lambda leaf: jnp.moveaxis(jnp.asarray(leaf), 0, axis), tree)


def _all(groups: list[Any]) -> Any:
    """Groups side by side: (N, b, …) each."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *groups)
