"""Inference: one step of an agent (`act`), and rollouts of agent and environments (`collect_rollout`).

Shapes: B parallel streams, T transitions of a rollout between its S = T + 1 steps, P policy parameters, W numbers that
encode an action, V value streams. The last step of a rollout is the first of the next one.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from derex.agents.network import AgentNetwork, NetworkOutput
from derex.agents.policy import Policy
from derex.types import EnvironmentSpec, TimeStep, Trajectories


@runtime_checkable
class EnvironmentStreams(Protocol):
    """B parallel environments with automatic reset: after the last step of an episode comes the first of the next."""

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def n(self) -> int: ...

    def reset(self, key: PRNGKeyArray, stagger: bool = True) -> tuple[Any, TimeStep]: ...

    def step(self, state: Any, actions: Array, key: PRNGKeyArray) -> tuple[Any, TimeStep]: ...

    def state_ids(self, state: Any) -> Int[Array, " B"]: ...


class Actor(NamedTuple):
    """State of the actor between rollouts. Every array begins with B."""

    environment: Any
    time_step: TimeStep
    previous_action: Float[Array, "B A"]  # encoded; 0 at first steps
    memory: Any  # of the core, before `time_step`


class Rollout(NamedTuple):
    """Experience of T transitions; transition t goes from step t to step t + 1."""

    trajectories: Trajectories  # S steps; previous actions are encoded
    memory: Any  # of the core before step 0
    action: Shaped[Array, "B T *action"]
    policy: Float[Array, "B T P"]  # parameters of the policy that acted
    value: Float[Array, "B S V"]  # of the network that acted
    reward: Float[Array, "B T"]
    discount: Float[Array, "B T"]  # 0 where step t + 1 terminated the episode
    last: Bool[Array, "B T"]  # whether step t + 1 ended the episode, by termination or truncation
    valid: Bool[Array, "B T"]  # False where step t was the last of an episode: the transition is a reset
    state_id: Int[Array, "B S"] | None
    """the environment's id of each state, where it has one; for diagnostics, never for learning"""


class AgentMemory(NamedTuple):
    """State that an agent carries from one step to the next. Every array begins with B."""

    previous_action: Float[Array, "B W"]  # encoded
    core: Any


class Decision(NamedTuple):
    """Output of one inference step (`act`)."""

    action: Shaped[Array, "B *action"]
    parameters: Float[Array, "B P"]  # of the policy
    value: Float[Array, "B V"]
    previous_action: Float[Array, "B W"]  # as the network saw it: encoded, 0 at first steps
    memory: AgentMemory  # for the next step


def init_memory(network: AgentNetwork, policy: Policy, streams: int) -> AgentMemory:
    """Memory before the first step of an episode."""
    return AgentMemory(jnp.zeros((streams, policy.width)), network.core.initial(streams))


def evaluate_step(
    network: AgentNetwork, observation: Any, first: Bool[Array, " B"], memory: AgentMemory
) -> tuple[Float[Array, "B W"], NetworkOutput]:
    """The previous action as the network sees it, and the network's output at one step (S = 1)."""
    previous = jnp.where(first[:, None], 0.0, memory.previous_action)
    seen, done, begins = jax.tree.map(lambda leaf: leaf[:, None], (observation, previous, first))
    return previous, network(Trajectories(seen, done, begins, jnp.ones_like(begins)), memory.core)


def act(
    network: AgentNetwork,
    policy: Policy,
    observation: Any,
    first: Bool[Array, " B"],
    memory: AgentMemory,
    key: PRNGKeyArray | None,
) -> Decision:
    """One inference step of B streams.

    Args:
        observation: a pytree of arrays (B, …).
        first: whether an episode begins here; the memory of that stream is then ignored.
        memory: from `init_memory` or the step before.
        key: samples the action from the policy; None takes the likeliest.
    """
    previous, output = evaluate_step(network, observation, first, memory)
    parameters = output.policy[:, 0]
    action = policy.mode(parameters) if key is None else policy.sample(parameters, key)
    after = AgentMemory(policy.encoded(action), output.memory)
    return Decision(action, parameters, output.value[:, 0], previous, after)


def init_actor(
    network: AgentNetwork, policy: Policy, streams: EnvironmentStreams, key: PRNGKeyArray
) -> Actor:
    """Resets all streams, staggered so that their episodes do not end at the same time."""
    environment, time_step = streams.reset(key, stagger=True)
    memory = init_memory(network, policy, streams.n)
    return Actor(environment, time_step, memory.previous_action, memory.core)


def collect_rollout(
    network: AgentNetwork,
    policy: Policy,
    streams: EnvironmentStreams,
    actor: Actor,
    key: PRNGKeyArray,
    length: int,
) -> tuple[Actor, Rollout]:
    """Acts for `length` transitions; returns the actor after them and the experience."""

    def step(actor: Actor, key: PRNGKeyArray):
        action_key, environment_key = jax.random.split(key)
        before, memory = actor.time_step, AgentMemory(actor.previous_action, actor.memory)
        decision = act(network, policy, before.observation, before.first, memory, action_key)
        environment, time_step = streams.step(actor.environment, decision.action, environment_key)
        previous = jnp.where(time_step.first[:, None], 0.0, decision.memory.previous_action)
        after = Actor(environment, time_step, previous, decision.memory.core)
        return after, (record(actor, decision.value), decision.action, decision.parameters)

    def record(actor: Actor, value: Array):
        """What the rollout keeps of a step."""
        number = streams.state_ids(actor.environment) if streams.spec.n_states else None
        return actor.time_step, actor.previous_action, value, number

    start = actor.memory
    actor, (steps, action, parameters) = jax.lax.scan(step, actor, jax.random.split(key, length))
    # The rollout is bootstrapped with the value of its last step.
    final, memory = actor.time_step, AgentMemory(actor.previous_action, actor.memory)
    _, output = evaluate_step(network, final.observation, final.first, memory)
    last = record(actor, output.value[:, 0])
    steps, previous, value, state_id = jax.tree.map(
        lambda behind, final: jnp.moveaxis(jnp.concatenate([behind, final[None]]), 0, 1), steps, last
    )
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
