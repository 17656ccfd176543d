"""V-MPO (Song et al., 2020, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization"): advantages and loss.

Transition t goes from step t to step t+1; a rollout of T transitions has T+1 steps and values. The loss is on a batch
of N transitions. Advantages say which actions to make likelier; bounds on two divergences say by how much: ε_η on that
of the improved weights from uniform ones, ε_α on that of the new policy from the one that acted. Each bound has a dual
variable, learnt with the policy and kept positive by `projected` after every step. (Inside the loss, a projection would
have no gradient where it acts.)

Shapes: *B leading axes, T transitions of a rollout, N transitions of a batch, P parts of the policy's divergence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient as sg
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from derex._text import require


def generalised_advantage_estimation(
    reward: Float[Array, "*B T"],
    discount: Float[Array, "*B T"],
    last: Bool[Array, "*B T"],
    value: Float[Array, "*B steps"],
    gamma: float | Float[Array, ""],
    lambda_: float | Float[Array, ""],
) -> tuple[Float[Array, "*B T"], Float[Array, "*B T"]]:
    """Advantages A and value targets A + V.

        δ_t = r_t + γ d_t V_{t+1} - V_t
        A_t = δ_t + γ λ (1 - last_t) d_t A_{t+1},    A_T = 0

    With λ = 1, A_t + V_t is the return from t to the end of the episode or of the rollout, whichever comes first,
    plus the discounted value of the step where it stops: unless the episode terminated there (d = 0) the value
    counts, also at a truncation. λ = 0 looks one step ahead.

    A transition out of a last step is a reset: its advantage is meaningless and must be masked. It enters no other
    advantage, because `last` cuts the transition before it.

    Args:
        reward: r_t, for the transition from step t.
        discount: d_t, 0 where step t+1 terminated the episode, else 1.
        last: whether step t+1 ends the episode, by termination or truncation.
        value: V_0, …, V_T.
        gamma: γ.
        lambda_: λ; 1 for V-MPO's n-step returns.
    """
    T = reward.shape[-1]
    steps = f"{T + 1} steps for {T} transitions (the last to bootstrap from)"
    require(value.shape[-1] == T + 1, "value", steps, value.shape[-1])
    delta = reward + gamma * discount * value[..., 1:] - value[..., :-1]
    carried = gamma * lambda_ * jnp.where(last, 0.0, discount)

    def step(A_next: Array, transition: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, carried_t = transition
        A_t = delta_t + carried_t * A_next
        return A_t, A_t

    time_first = jnp.moveaxis(delta, -1, 0), jnp.moveaxis(carried, -1, 0)
    _, A = jax.lax.scan(step, jnp.zeros_like(delta[..., 0]), time_first, reverse=True)
    A = jnp.moveaxis(A, 0, -1)
    return A, A + value[..., :-1]


class Duals(NamedTuple):
    """Dual variables: positive, learnt like parameters."""

    temperature: Float[Array, ""]  # η
    multipliers: Float[Array, " P"]  # α, one for each part of the divergence


class VmpoTerms(NamedTuple):
    """The three summands of the loss, and diagnostics without gradient."""

    policy: Float[Array, ""]  # L_π
    temperature: Float[Array, ""]  # L_η
    kl: Float[Array, ""]  # L_α, all parts
    divergence: Float[Array, " P"]  # mean KL(π_old ‖ π), to be compared with ε_α
    relative_entropy: Float[Array, ""]
    """KL(ψ ‖ uniform), to be compared with ε_η: ∂L_η/∂η = ε_η - KL(ψ ‖ uniform)"""
    selected: Int[Array, ""]  # number of transitions with ψ > 0


def initial_duals(parts: int, temperature: float = 1.0, multiplier: float = 5.0) -> Duals:
    """η and α before the first step, for a divergence of `parts` parts."""
    return Duals(jnp.asarray(temperature, jnp.float32), jnp.full((parts,), multiplier, jnp.float32))


def projected(duals: Duals, smallest: float = 1e-8) -> Duals:
    """The duals clipped to at least `smallest`; applied after each optimiser step."""
    return Duals(*(jnp.maximum(dual, smallest) for dual in duals))


def vmpo_loss(
    log_prob: Float[Array, " N"],
    advantages: Float[Array, " N"],
    kl: Float[Array, "N P"],
    duals: Duals,
    *,
    epsilon_temperature: float | Float[Array, ""],
    epsilon_kl: float | Float[Array, " P"],
    weights: Bool[Array, " N"] | Float[Array, " N"] | None = None,
    top_fraction: float = 0.5,
) -> tuple[Float[Array, ""], VmpoTerms]:
    """L = L_π + L_η + L_α, to be minimised in the policy's parameters and in the duals.

        ψ_i = exp(A_i/η) / Σ_j exp(A_j/η)                  i, j in the top half of A
        L_π = -Σ_i sg(ψ_i) log π(a_i)
        L_η = η ε_η + η log mean_j exp(A_j/η)
        L_α = Σ_p α_p (ε_α,p - sg(KL_p)) + sg(α_p) KL_p    KL averaged over all transitions

    The top half is half of the transitions that count (rounded down, at least one), and all that tie with its
    smallest. If nothing counts, loss and gradients are 0.

    Args:
        log_prob: log π(a) of the action taken, under the policy being learnt.
        advantages: A; no gradient flows into them.
        kl: KL(π_old ‖ π) of each transition, in parts (`Policy.kl`).
        duals: η and α, positive.
        epsilon_temperature: ε_η.
        epsilon_kl: ε_α, one for each part or one for all.
        weights: 0 (False) for transitions to ignore, whatever their values; 1 for the others.
        top_fraction: share of the transitions that ψ is spread over.
    """
    require(0.0 < top_fraction <= 1.0, "top_fraction", "a number in (0, 1]", top_fraction)
    eta, alpha = duals
    parts = f"{alpha.shape[0]} parts, one for each multiplier"
    require(kl.shape[1:] == alpha.shape, "kl", parts, kl.shape[1])
    counted = jnp.ones(log_prob.shape, bool) if weights is None else weights > 0
    number = jnp.sum(counted)
    A = sg(advantages)
    top = top_advantages(A, counted, top_fraction)
    n = jnp.maximum(jnp.sum(top), 1)

    # With A* the largest A: log mean exp(A/η) = A*/η + log mean exp((A - A*)/η), where no exponent is positive.
    A_max = jnp.max(A, where=top, initial=-jnp.inf)
    exponent = jnp.where(top, A - A_max, 0.0) / eta
    unnormalised = jnp.where(top, jnp.exp(exponent), 0.0)
    log_mean = jnp.log(jnp.where(number > 0, jnp.sum(unnormalised), 1.0)) - jnp.log(n)
    psi = sg(jnp.where(top, jnp.exp(exponent - log_mean), 0.0) / n)

    divergence = jnp.sum(jnp.where(counted[:, None], kl, 0.0), axis=0) / jnp.maximum(number, 1)
    policy = -jnp.sum(psi * jnp.where(top, log_prob, 0.0))
    temperature = jnp.where(number > 0, eta * (epsilon_temperature + log_mean) + A_max, 0.0)
    penalty = jnp.sum(alpha * (epsilon_kl - sg(divergence)) + sg(alpha) * divergence)
    penalty = jnp.where(number > 0, penalty, 0.0)
    relative_entropy = sg(jnp.sum(psi * (exponent - log_mean)))
    terms = VmpoTerms(policy, temperature, penalty, sg(divergence), relative_entropy, jnp.sum(top))
    return policy + temperature + penalty, terms


def top_advantages(
    advantages: Float[Array, " N"], counted: Bool[Array, " N"], fraction: float
) -> Bool[Array, " N"]:
    """Mask of the transitions in the top fraction of those that count.

    The threshold comes from a sort of the whole array: on several devices this is the top half of the global batch,
    not of each device's shard.
    """
    k = jnp.maximum(jnp.floor(fraction * jnp.sum(counted)).astype(jnp.int32), 1)
    ascending = jnp.sort(_gathered(jnp.where(counted, advantages, -jnp.inf)))
    return counted & (advantages >= ascending[advantages.shape[0] - k])


def _gathered(x: Float[Array, " N"]) -> Float[Array, " N"]:
    """Replicates x where shardings are explicit: JAX then refuses to sort along a sharded axis."""
    sharding = jax.typeof(x).sharding
    if all(axis is None for axis in sharding.spec):
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec()))
