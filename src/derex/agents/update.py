"""Learning from a rollout: scaled rewards with bonuses, advantages, and V-MPO's updates.

Rewards are divided by a running standard deviation (BYOL-Explore, appendix A.3):

    m₁ ← β m₁ + (1 - β) mean r,    m₂ ← β m₂ + (1 - β) mean r²,    w ← β w + (1 - β)
    μ = m₁/w,  μ₂ = m₂/w,    σ = √(max(μ₂ - μ², 0) + 10⁻⁸),    r/σ

No mean is subtracted: 0 stays 0. The environment's reward and the bonus each have their own `Scale`.

Shapes: B streams, T transitions, V reward streams.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork
from derex.agents.policy import Policy
from derex.agents.rollout import Rollout
from derex.agents.vmpo import Duals, generalised_advantage_estimation, initial_duals, projected, vmpo_loss
from derex.networks.layers import clipped_adam, init_optimiser, run_gradient_steps
from derex.representations.base import BonusUse, Representation, RepresentationState

DECAY = 0.99
EPSILON = 1e-8  # added to the variance
CLIP = 10.0  # the first reward after a hundred batches without any comes out at about 1400 otherwise


class Scale(NamedTuple):
    """Exponential means of r and r². Dividing by `weight` corrects their start at zero."""

    first: Float[Array, ""]
    second: Float[Array, ""]
    weight: Float[Array, ""]


def initial_scale() -> Scale:
    """A scale before any update."""
    return Scale(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))


def update_scale(
    scale: Scale,
    values: Float[Array, "*B"],
    weights: Bool[Array, "*B"] | Float[Array, "*B"] | None = None,
    decay: float = DECAY,
) -> Scale:
    """Adds a batch. Values of weight 0 (False) do not count; a batch without any that counts changes nothing."""
    counted = jnp.ones(values.shape, values.dtype) if weights is None else weights.astype(values.dtype)
    total = jnp.sum(counted)
    r = jnp.where(counted > 0, values, 0.0)
    mean, mean_square = (jnp.sum(counted * x) / jnp.maximum(total, 1.0) for x in (r, jnp.square(r)))
    seen = Scale(mean, mean_square, jnp.ones_like(total))
    mixed = (decay * old + (1.0 - decay) * new for old, new in zip(scale, seen, strict=True))
    return Scale(*(jnp.where(total > 0, new, old) for old, new in zip(scale, mixed, strict=True)))


def deviation(scale: Scale) -> Float[Array, ""]:
    """σ; 1 before any update."""
    weight = jnp.where(scale.weight > 0, scale.weight, 1.0)
    variance = jnp.maximum(scale.second / weight - jnp.square(scale.first / weight), 0.0)
    return jnp.where(scale.weight > 0, jnp.sqrt(variance + EPSILON), 1.0)


def scaled(
    values: Float[Array, "*B"], scale: Scale, clip: float | None = CLIP, smallest: float = 0.0
) -> Float[Array, "*B"]:
    """r/max(σ, smallest), clipped to ±clip (None: not clipped). σ = 1 before any update."""
    divided = values / jnp.maximum(deviation(scale), smallest)
    return divided if clip is None else jnp.clip(divided, -clip, clip)


ADAM_EPSILON = 1e-5  # otherwise rounding errors move parameters whose gradient is 0
SMALLEST_DEVIATION = 0.01  # of advantages, in units of normalised reward


class Trained(NamedTuple):
    """Everything that the agent's optimiser trains."""

    network: AgentNetwork
    joint: Any  # networks of the representation that are trained with the agent
    duals: Duals


class Learner(NamedTuple):
    """State of learning."""

    trained: Trained
    optimiser: optax.OptState
    reward_scale: Scale
    bonus_scale: Scale


class RewardStreams(NamedTuple):
    """One reward stream, or several that each have a value function."""

    rewards: Float[Array, "B T V"]
    weights: Float[Array, " V"]  # of their advantages
    gammas: Float[Array, " V"]


class AdvantageBatch(NamedTuple):
    """A rollout with its advantages and value targets."""

    rollout: Rollout
    advantages: Float[Array, "B T"]
    targets: Float[Array, "B T V"]


def optimiser(config: AgentConfig) -> optax.GradientTransformation:
    """Adam on clipped gradients for the networks; a separate Adam for the duals, which must follow the policy."""
    networks = clipped_adam(config.learning_rate, config.clip, ADAM_EPSILON)
    labels = Trained("networks", "networks", "duals")  # type: ignore[arg-type]
    return optax.multi_transform({"networks": networks, "duals": optax.adam(config.dual_rate)}, labels)


def init_learner(config: AgentConfig, policy: Policy, network: AgentNetwork, joint: Any) -> Learner:
    """State before the first update."""
    duals = initial_duals(len(policy.kl_parts), config.temperature, config.multiplier)
    trained = Trained(network, joint, duals)
    state = init_optimiser(optimiser(config), trained)
    return Learner(trained, state, initial_scale(), initial_scale())


def combine_rewards(
    config: AgentConfig, learner: Learner, rollout: Rollout, bonus: Float[Array, "B S"], use: BonusUse
) -> tuple[Learner, RewardStreams]:
    """R_t + λ_b Bonus_t, or both as separate streams, each divided by its running deviation (appendix B).

    Bonus_t is the bonus of step t + 1, and 0 where the episode ends there: nothing can be explored after it.
    """
    counted = rollout.valid & ~rollout.last
    reward_scale = update_scale(learner.reward_scale, rollout.reward, rollout.valid, config.scale_decay)
    bonus_scale = update_scale(learner.bonus_scale, bonus[:, 1:], counted, config.scale_decay)
    learner = learner._replace(reward_scale=reward_scale, bonus_scale=bonus_scale)
    R = scaled(rollout.reward, reward_scale, config.reward_clip, config.reward_floor)
    extra = scaled(bonus[:, 1:], bonus_scale, None)
    extra = extra - jnp.mean(extra, where=counted) if use.centred else extra
    extra = jnp.where(counted, jnp.clip(extra, -config.reward_clip, config.reward_clip), 0.0)
    if config.two_values:
        weights, gammas = jnp.asarray([1.0, use.lambda_b]), jnp.asarray([config.gamma, config.bonus_gamma])
        return learner, RewardStreams(jnp.stack([R, extra], -1), weights, gammas)
    combined = (R + use.lambda_b * extra)[..., None]
    return learner, RewardStreams(combined, jnp.ones(1), jnp.asarray([config.gamma]))


def compute_advantages(config: AgentConfig, rollout: Rollout, streams: RewardStreams) -> AdvantageBatch:
    """Advantages and value targets. The weighted advantages of several reward streams are added."""

    def of_stream(reward: Array, value: Array, gamma: Array):
        advantages, targets = generalised_advantage_estimation(
            reward, rollout.discount, rollout.last, value, gamma, config.gae_lambda
        )
        if config.normalise_advantages:  # those that hardly vary (no reward yet) stay small
            advantages -= jnp.mean(advantages, where=rollout.valid)
            deviation = jnp.sqrt(jnp.mean(jnp.square(advantages), where=rollout.valid))
            advantages /= jnp.maximum(deviation, SMALLEST_DEVIATION)
        return advantages, targets

    each = jax.vmap(of_stream, in_axes=(-1, -1, 0), out_axes=-1)
    advantages, targets = each(streams.rewards, rollout.value, streams.gammas)
    return AdvantageBatch(rollout, jnp.sum(advantages * streams.weights, axis=-1), targets)


def agent_loss(
    config: AgentConfig,
    policy: Policy,
    representation: Representation,
    trained: Trained,
    batch: AdvantageBatch,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], tuple[Any, dict[str, Array]]]:
    """RL_loss - w_H H(π) + w_loss Rep_loss (appendix B; w_H is ours, 0 by default).

    Returns:
        The loss, and (statistics for `Representation.track`, metrics).
    """
    rollout = batch.rollout
    output = trained.network(rollout.trajectories, rollout.memory)
    parameters = output.policy[:, :-1]
    N = rollout.valid.size
    epsilon = jnp.asarray([config.epsilon_kl, config.epsilon_covariance][: len(policy.kl_parts)])
    rl, terms = vmpo_loss(
        policy.log_prob(parameters, rollout.action).reshape(N),
        batch.advantages.reshape(N),
        policy.kl(rollout.policy, parameters).reshape(N, -1),
        trained.duals,
        epsilon_temperature=config.epsilon_temperature,
        epsilon_kl=epsilon,
        weights=rollout.valid.reshape(N),
    )
    errors = jnp.sum(jnp.square(output.value[:, :-1] - batch.targets), axis=-1)
    value = jnp.sum(errors, where=rollout.valid) / jnp.maximum(jnp.sum(rollout.valid), 1)
    auxiliary, statistics = representation.auxiliary(trained.joint, output.view, key)
    entropies = jnp.sum(policy.entropy(parameters), where=rollout.valid)
    entropy = entropies / jnp.maximum(jnp.sum(rollout.valid), 1)
    metrics = {
        "policy_loss": terms.policy,
        "value_loss": value,
        "auxiliary_loss": auxiliary,
        "kl": jnp.sum(terms.divergence),
        "relative_entropy": terms.relative_entropy,
        "entropy": entropy,
        "temperature": trained.duals.temperature,
        "multiplier": jnp.mean(trained.duals.multipliers),
    }
    if config.entropy_weight:
        rl = rl - config.entropy_weight * entropy
    return rl + config.value_weight * value + auxiliary, (statistics, metrics)


def update_agent(
    config: AgentConfig,
    policy: Policy,
    representation: Representation,
    learner: Learner,
    state: RepresentationState,
    batch: AdvantageBatch,
    key: PRNGKeyArray,
) -> tuple[Learner, RepresentationState, dict[str, Array]]:
    """`epochs` passes over the rollout, in `minibatches` of whole streams, against the policy that acted."""
    B = len(batch.advantages)

    def loss(trained: Trained, inputs: tuple[Array, PRNGKeyArray]):
        chosen, key = inputs
        part = jax.tree.map(lambda leaf: leaf[chosen], batch)
        return agent_loss(config, policy, representation, trained, part, key)

    order_key, loss_key = jax.random.split(key)
    orders = jax.vmap(lambda key: jax.random.permutation(key, B))(jax.random.split(order_key, config.epochs))
    updates = config.epochs * config.minibatches
    after = run_gradient_steps(
        loss,
        optimiser(config),
        learner.trained,
        learner.optimiser,
        (orders.reshape(updates, -1), jax.random.split(loss_key, updates)),
        carry=state._replace(joint=None),
        update_carry=representation.track,
        project=lambda trained: trained._replace(duals=projected(trained.duals)),
    )
    learner = learner._replace(trained=after.networks, optimiser=after.optimiser)
    return learner, after.carry._replace(joint=after.networks.joint), jax.tree.map(jnp.mean, after.outputs)
