"""Acting: the policy and the environment step by step, B streams side by side.

Shapes: B streams, T transitions of an unroll between its S = T + 1 steps. The last step of an unroll is the first of
the next one.

A trained network at play: one step of B streams at a time, with what it has to remember.

Shapes: B streams, P parameters of the policy, W numbers an action is encoded in.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from derex.agents.network import AgentNetwork, Seen
from derex.agents.policy import Policy
from derex.types import EnvironmentSpec, TimeStep, Trajectories


@runtime_checkable
class Streams(Protocol):
    """B environments that go on for ever: after the last step of an episode comes the first of the next."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def n(self) -> int: ...

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[Any, TimeStep]: ...

    def step(self, state: Any, actions: Array, key: PRNGKeyArray) -> tuple[Any, TimeStep]: ...

    def state_ids(self, state: Any) -> Int[Array, " B"]: ...


class Actor(NamedTuple):
    """Where acting stands; every array begins with B."""

    environment: Any
    time_step: TimeStep
    previous_action: Float[Array, "B A"]
    """encoded; 0 at first steps"""
    memory: Any
    """of the core, before `time_step` is seen"""


class Rollout(NamedTuple):
    """What happened in an unroll; transition t goes from step t to step t + 1."""

    trajectories: Trajectories
    """S steps; previous actions are encoded"""
    memory: Any
    """of the core before step 0"""
    action: Shaped[Array, "B T *action"]
    policy: Float[Array, "B T P"]
    """parameters of the policy that acted"""
    value: Float[Array, "B S V"]
    """as the acting network sees it"""
    reward: Float[Array, "B T"]
    discount: Float[Array, "B T"]
    """0 where step t + 1 terminated the episode"""
    last: Bool[Array, "B T"]
    """whether step t + 1 ended the episode, by termination or truncation"""
    valid: Bool[Array, "B T"]
    """False where step t was a last one: what follows is a reset"""
    state_id: Int[Array, "B S"] | None
    """the environment's own number of each step's state, where it has one; for diagnostics, never for learning"""


def begin(network: AgentNetwork, policy: Policy, streams: Streams, key: PRNGKeyArray) -> Actor:
    """All streams at the first step of an episode, staggered so that episodes do not end in step."""
    environment, time_step = streams.reset(key, stagger=True)
    return Actor(
        environment,
        time_step,
        jnp.zeros((streams.n, policy.width)),
        network.core.initial(streams.n),
    )


def unroll(
    network: AgentNetwork, policy: Policy, streams: Streams, actor: Actor, key: PRNGKeyArray, length: int
) -> tuple[Actor, Rollout]:
    """Act for `length` transitions."""

    def act(actor: Actor, key: PRNGKeyArray):
        action_key, environment_key = jax.random.split(key)
        seen = network(_one_step(actor), actor.memory)
        parameters = seen.policy[:, 0]
        action = policy.sample(parameters, action_key)
        environment, time_step = streams.step(actor.environment, action, environment_key)
        previous = jnp.where(time_step.first[:, None], 0.0, policy.encoded(action))
        after = Actor(environment, time_step, previous, seen.memory)
        return after, (step_of(actor, seen), action, parameters)

    def step_of(actor: Actor, seen: Seen):
        """What is kept of a step."""
        number = streams.state_ids(actor.environment) if streams.spec.n_states else None
        return actor.time_step, actor.previous_action, seen.value[:, 0], number

    start = actor.memory
    actor, (steps, action, parameters) = jax.lax.scan(act, actor, jax.random.split(key, length))
    # The value of the last step is what the unroll is bootstrapped with.
    last = step_of(actor, network(_one_step(actor), actor.memory))
    steps, previous, value, state_id = jax.tree.map(_with_last, steps, last)
    trajectories = Trajectories(steps.observation, previous, steps.first, jnp.ones_like(steps.first))
    return actor, Rollout(
        trajectories=trajectories,
        memory=start,
        action=jnp.moveaxis(action, 0, 1),
        policy=jnp.moveaxis(parameters, 0, 1),
        value=value,
        reward=steps.reward[:, 1:],
        discount=steps.discount[:, 1:],
        last=steps.last[:, 1:],
        valid=~steps.first[:, 1:],
        state_id=state_id,
    )


def _one_step(actor: Actor) -> Trajectories:
    observation, previous, first = jax.tree.map(
        lambda leaf: leaf[:, None],
        (actor.time_step.observation, actor.previous_action, actor.time_step.first),
    )
    return Trajectories(observation, previous, first, jnp.ones_like(first))


def _with_last(
    behind: Shaped[Array, "T B *rest"], final: Shaped[Array, "B *rest"]
) -> Shaped[Array, "B S *rest"]:
    return jnp.moveaxis(jnp.concatenate([behind, final[None]]), 0, 1)


class Memory(NamedTuple):
    """What an agent takes from one step to the next; every array begins with B."""

    previous_action: Float[Array, "B W"]
    """encoded"""
    core: Any


class Decision(NamedTuple):
    """What an agent does at a step."""

    action: Shaped[Array, "B *action"]
    parameters: Float[Array, "B P"]
    """of the policy"""
    memory: Memory


def init_memory(network: AgentNetwork, policy: Policy, streams: int) -> Memory:
    """Nothing seen and nothing done."""
    return Memory(jnp.zeros((streams, policy.width)), network.core.initial(streams))


def decide(
    network: AgentNetwork,
    policy: Policy,
    observation: Any,
    first: Bool[Array, " B"],
    memory: Memory,
    key: PRNGKeyArray | None,
) -> Decision:
    """One step; `first` forgets what came before, and without a key the action is the likeliest."""
    previous = jnp.where(first[:, None], 0.0, memory.previous_action)
    seen, done, begins = jax.tree.map(lambda leaf: leaf[:, None], (observation, previous, first))
    step = network(Trajectories(seen, done, begins, jnp.ones_like(begins)), memory.core)
    parameters = step.policy[:, 0]
    action = policy.mode(parameters) if key is None else policy.sample(parameters, key)
    return Decision(action, parameters, Memory(policy.encoded(action), step.memory))
