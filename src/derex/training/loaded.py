"""An exported agent as its user sees it: observations in, actions out, NumPy on both sides."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from derex.agents.distributions import Policy, policy_for
from derex.agents.network import AgentNetwork
from derex.training.players import Decision, Memory, decide, fresh_memory
from derex.types import ActionSpec, Box


class Agent:
    """Acts on observations, one at a time or many side by side.

    Attributes:
        card: what it is: environment, options, score, commit, versions.
        observation: what it sees, a pytree of jax.ShapeDtypeStruct.
        action: what it can do.
    """

    def __init__(self, network: AgentNetwork, observation: Any, action: ActionSpec, card: dict[str, Any]):
        self._network, self._policy = network, policy_for(action)
        self.observation, self.action, self.card = observation, action, card

    def __repr__(self) -> str:
        return f"Agent({self.card.get('environment')!r}, seed={self.card.get('seed')}, step={self.card.get('step')})"

    def initial(self, streams: int = 1) -> Memory:
        """Before the first step of an episode, of one stream or of several side by side."""
        if streams < 1:
            raise ValueError(f"streams: expected at least 1, got {streams}.")
        return fresh_memory(self._network, self._policy, streams)

    def act(
        self, observation: Any, memory: Memory, first: Any = False, key: PRNGKeyArray | None = None
    ) -> tuple[Any, Memory]:
        """The action, within its bounds, and the memory for the next step.

        Args:
            observation: of one stream, or with their axis in front, of all streams of `memory`.
            memory: from `initial` or the step before.
            first: whether an episode begins here, one for all or one each: what came before is forgotten.
            key: draws the action from the policy; None takes the likeliest.
        """
        one, decision = self._decide(observation, memory, first, key)
        action = np.asarray(decision.action)
        if isinstance(self.action, Box):  # as environments do
            action = np.clip(action, self.action.low, self.action.high)
        return action[0] if one else action, decision.memory

    def parameters(self, observation: Any, memory: Memory, first: Any = False) -> np.ndarray:
        """The numbers that parametrise the policy: logits, or means and raw scales."""
        one, decision = self._decide(observation, memory, first, None)
        numbers = np.asarray(decision.parameters)
        return numbers[0] if one else numbers

    def _decide(self, observation: Any, memory: Memory, first: Any, key: Any) -> tuple[bool, Decision]:
        streams = len(memory.previous_action)
        one, batch = self._batched(observation, streams)
        begins = np.broadcast_to(np.asarray(first, bool), (streams,))
        return one, _decided(self._network, self._policy, batch, jnp.asarray(begins), memory, key)

    def _batched(self, observation: Any, streams: int) -> tuple[bool, Any]:
        """Whether it is of a single stream; and the observation with an axis of streams."""
        expected, structure = jax.tree.flatten(self.observation)
        came = jax.tree.map(np.asarray, observation, is_leaf=lambda node: isinstance(node, list))
        if jax.tree.structure(came) != structure:
            raise ValueError(f"observation: expected the parts {structure}, got {jax.tree.structure(came)}.")
        leaves = jax.tree.leaves(came)
        shapes = [leaf.shape for leaf in leaves]
        single = shapes == [spec.shape for spec in expected]
        if not single and shapes != [(streams, *spec.shape) for spec in expected]:
            wanted = [spec.shape for spec in expected]
            raise ValueError(
                f"observation: expected shape {_joined(wanted)} of one stream, or as many of them as the memory has "
                f"streams, {streams}, side by side; got {_joined(shapes)}."
            )
        if single and streams != 1:
            raise ValueError(
                f"observation: one came, of shape {_joined(shapes)}, and the memory is of {streams} streams. Use "
                "initial() for one stream."
            )
        leaves = [_cast(leaf, np.dtype(spec.dtype)) for leaf, spec in zip(leaves, expected, strict=True)]
        return single, jax.tree.unflatten(structure, [leaf[None] if single else leaf for leaf in leaves])


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To the type that was trained on; only between floats, since other types mean other scales."""
    floats = values.dtype.kind == dtype.kind == "f"
    if not floats and values.dtype != dtype:
        raise ValueError(
            f"observation: expected {dtype}, as the agent was trained on, got {values.dtype}. Convert it as the "
            "environment does, scale included."
        )
    if floats and not np.all(np.isfinite(values)):
        raise ValueError("observation: expected finite numbers, got NaN or infinity.")
    return values.astype(dtype)


def _joined(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


@partial(jax.jit, static_argnums=1)
def _decided(
    network: AgentNetwork, policy: Policy, observation: Any, first: Any, memory: Memory, key: Any
) -> Decision:
    return decide(network, policy, observation, first, memory, key)
