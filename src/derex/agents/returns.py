"""Advantages and value targets of an unroll.

Transition t goes from step t to step t+1; an unroll of T transitions has T+1 steps and values. Letters in shapes: *B
streams side by side (any leading axes), T transitions. Several kinds of reward (with their own γ and values) are
several calls, or one under `jax.vmap`.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float


def generalised_advantages(
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

    With λ = 1, A_t + V_t is the return from t to the end of the episode or of the unroll, whichever comes first,
    plus the discounted value of the step where it stops: unless the episode terminated there (d = 0) the value
    counts, also at a truncation, which cuts the sum but is no end of the world. λ = 0 looks one step ahead.

    A transition out of a last step is only the reset: its advantage means nothing and is to be masked; it flows into
    no other, because the transition before it is cut by `last`.

    Args:
        reward: r_t, for the transition from step t.
        discount: d_t, 0 where step t+1 terminated the episode, else 1.
        last: whether step t+1 ends the episode, by termination or truncation.
        value: V_0, …, V_T.
        gamma: γ.
        lambda_: λ; 1 for V-MPO's n-step returns.
    """
    T = reward.shape[-1]
    if value.shape[-1] != T + 1:
        raise ValueError(
            f"value: expected {T + 1} steps for {T} transitions (the last to bootstrap from), got {value.shape[-1]}."
        )
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
