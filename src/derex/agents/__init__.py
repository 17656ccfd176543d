"""V-MPO: policies, losses, returns and the scale of rewards, as pure functions on arrays."""

from derex.agents.config import AgentConfig
from derex.agents.policy import Categorical, Gaussian, MultiCategorical, Policy, policy_for
from derex.agents.update import Scale, initial_scale, scaled, update_scale
from derex.agents.vmpo import Duals, VmpoTerms, generalised_advantages, initial_duals, projected, vmpo_loss

__all__ = [
    "AgentConfig",
    "Categorical",
    "Duals",
    "Gaussian",
    "MultiCategorical",
    "Policy",
    "Scale",
    "VmpoTerms",
    "generalised_advantages",
    "initial_duals",
    "initial_scale",
    "policy_for",
    "projected",
    "scaled",
    "update_scale",
    "vmpo_loss",
]
