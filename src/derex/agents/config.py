"""How an agent is built and trained; plain data, without JAX, so that commands can show it quickly."""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST = 1 << 20  # of what is counted
ENCODERS = ("plain", "appendix", "appendix-conv")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class AgentConfig:
    """V-MPO (Song et al.) and its network. Each value has its paper's symbol where it has one."""

    core: str = "lstm"
    """lstm, or feed-forward for an agent without memory; or one of your own in `derex.networks.recurrent.CORES`"""
    width: int = 128
    """units of every layer"""
    encoder: str = "plain"
    """plain, or that of appendix B: appendix (pictures by a residual network), appendix-conv (by a smaller one)"""
    previous_action: bool = True
    """show the agent what it did at the step before; one without memory can keep notes there"""
    previous_reward: bool = False
    """show the agent the reward of the step before, as a part of what it sees"""
    compute: str = "float32"
    """precision of the products of encoder and core: float32, or bfloat16; parameters, heads and losses stay float32"""
    unroll: int = 32
    """T: transitions between updates"""
    epochs: int = 4
    """how often each transition is learnt from before the policy that acts is refreshed"""
    minibatches: int = 4
    """parts of an unroll, each of whole streams; epochs × minibatches is T_target"""
    learning_rate: float = 3e-4
    clip: float = 1.0
    """largest global norm of a gradient"""
    dual_rate: float = 0.01
    """learning rate of η and α"""
    gamma: float = 0.99
    """γ of the reward"""
    gae_lambda: float = 0.95
    """λ of generalised advantages; 1 gives V-MPO's n-step returns"""
    epsilon_temperature: float = 0.02
    """ε_η"""
    epsilon_kl: float = 0.002
    """ε_α of the policy, of its mean where actions are continuous"""
    epsilon_covariance: float = 0.0001
    """ε_α of the covariance, where actions are continuous"""
    temperature: float = 1.0
    """η at the start"""
    multiplier: float = 5.0
    """α at the start"""
    value_weight: float = 0.5
    """of the squared error of the values in the loss"""
    entropy_weight: float = 0.0
    """of the policy's entropy, which is then taken off the loss; V-MPO has none. Where rewards are rare, pass on pass
    over the same transitions makes a policy certain of what it happened to do"""
    normalise_advantages: bool = True
    """divide advantages by their standard deviation in the unroll, each stream of reward by its own, and centre them"""
    scale_decay: float = 0.99
    """of the running deviations that rewards and bonuses are divided by"""
    reward_floor: float = 0.0
    """rewards are divided by their running deviation or by this, if it is larger: small costs stay small until there is
    a reward to weigh them against"""
    reward_clip: float = 10.0
    """largest reward after that division"""
    bonus_gamma: float = 0.99
    """γ of the bonus, with two values"""
    two_values: bool = False
    """value reward and bonus apart, each with its own discount, and add A + λ_b A_bonus"""

    def __post_init__(self) -> None:
        counts = ("width", "unroll", "epochs", "minibatches")
        positive = ("learning_rate", "clip", "dual_rate", "temperature", "reward_clip")
        positive += ("epsilon_temperature", "epsilon_kl", "epsilon_covariance")
        shares = ("gamma", "bonus_gamma", "gae_lambda", "scale_decay")
        for name in counts:
            self._check(name, 1 <= getattr(self, name) <= LARGEST, f"at least 1 and at most {LARGEST}")
        for name in positive:
            self._check(name, 0.0 < getattr(self, name) < math.inf, "a finite number above 0")
        for name in shares:
            self._check(name, 0.0 <= getattr(self, name) <= 1.0, "a number in [0, 1]")
        for name in ("multiplier", "value_weight", "entropy_weight", "reward_floor"):
            self._check(name, 0.0 <= getattr(self, name) < math.inf, "a finite number, 0 or more")
        for name, known in (("encoder", ENCODERS), ("compute", PRECISIONS)):
            self._check(name, getattr(self, name) in known, f"one of {', '.join(known)}")

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ValueError(f"agent.{name}: expected {expected}, got {getattr(self, name)}.")
