"""Options of the agent. Plain data without JAX, so that the CLI can show them quickly."""

from __future__ import annotations

from dataclasses import dataclass

from derex._text import check_ranges, require

ENCODERS = ("plain", "appendix", "appendix-conv")
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class AgentConfig:
    """V-MPO (Song et al.) and its network, with the papers' symbols."""

    core: str = "lstm"
    """lstm, feed-forward (no memory), or your own in `derex.networks.recurrent.CORES`"""
    width: int = 128
    """units of every layer"""
    encoder: str = "plain"
    """plain, or appendix B's: appendix (residual network for images) or appendix-conv (smaller)"""
    previous_action: bool = True
    """include the previous action in the observation"""
    previous_reward: bool = False
    """include the previous reward in the observation"""
    compute: str = "float32"
    """precision of matrix products in encoder and core: float32 or bfloat16; all else stays float32"""
    unroll: int = 32
    """T: transitions between updates"""
    epochs: int = 4
    """passes over each rollout"""
    minibatches: int = 4
    """parts of a rollout, each of whole streams; epochs × minibatches is T_target"""
    learning_rate: float = 3e-4
    clip: float = 1.0
    """maximum global gradient norm"""
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
    """weight of the squared value error in the loss"""
    entropy_weight: float = 0.0
    """weight of the policy's entropy, subtracted from the loss; V-MPO has none. With rare rewards, many passes over the
    same transitions make a policy deterministic too early"""
    normalise_advantages: bool = True
    """centre advantages and divide them by their standard deviation in the rollout, per reward stream"""
    scale_decay: float = 0.99
    """decay of the running deviations that rewards and bonuses are divided by"""
    reward_floor: float = 0.0
    """lower bound on the deviation that rewards are divided by: small costs stay small until there is a reward"""
    reward_clip: float = 10.0
    """rewards are clipped to ± this after the division"""
    bonus_gamma: float = 0.99
    """γ of the bonus, with `two_values`"""
    two_values: bool = False
    """separate value functions and discounts for reward and bonus; advantages are A + λ_b A_bonus"""

    def __post_init__(self) -> None:
        positive = ["learning_rate", "clip", "dual_rate", "temperature", "reward_clip"]
        positive += ["epsilon_temperature", "epsilon_kl", "epsilon_covariance"]
        shares = ["gamma", "bonus_gamma", "gae_lambda", "scale_decay"]
        weights = ["multiplier", "value_weight", "entropy_weight", "reward_floor"]
        counts = ["width", "unroll", "epochs", "minibatches"]
        check_ranges(self, "agent.", counts=counts, positive=positive, shares=shares, weights=weights)
        for name, known in (("encoder", ENCODERS), ("compute", PRECISIONS)):
            value = getattr(self, name)
            require(value in known, f"agent.{name}", f"one of {', '.join(known)}", value)
