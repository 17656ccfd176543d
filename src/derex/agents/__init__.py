"""V-MPO agents: policies, network, rollouts, losses and updates, as pure functions on arrays."""

from derex.agents.config import AgentConfig
from derex.agents.policy import Categorical, Gaussian, MultiCategorical, Policy, make_policy
from derex.agents.update import Scale, initial_scale, scaled, update_scale
from derex.agents.vmpo import (
    Duals,
    VmpoTerms,
    generalised_advantage_estimation,
    initial_duals,
    projected,
    vmpo_loss,
)

__all__ = [
    "AgentConfig",
    "Categorical",
    "Duals",
    "Gaussian",
    "MultiCategorical",
    "Policy",
    "Scale",
    "VmpoTerms",
    "generalised_advantage_estimation",
    "initial_duals",
    "initial_scale",
    "make_policy",
    "projected",
    "scaled",
    "update_scale",
    "vmpo_loss",
]
