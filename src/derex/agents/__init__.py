"""V-MPO agents: policies, network, rollouts, losses and updates, as pure functions on arrays."""

from derex.agents.config import AgentConfig

__all__ = ["AgentConfig"]
