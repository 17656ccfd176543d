"""Loss and bonus inside a training loop of one's own.

The data are random walks on a line that all start at its left end: the further right, the rarer. Every update gets
fresh walks, the first half of them for one estimate of Σ and the second, independent, for the other.

Run: python examples/own_algorithm.py
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from derex.decomposition import DeRexObjective, Half, compute_bonus
from derex.decomposition.statistics import init_statistics, read_statistics, standardise, update_statistics

CELLS, WALKS, LENGTH, K = 16, 64, 60, 4
OPTIMISER = optax.adam(3e-3)
OBJECTIVE = DeRexObjective(lambda_r=10.0)


def random_walks(key: Array) -> Array:
    """Positions (WALKS, LENGTH + 1) of walks from cell 0 that stay where the line ends."""
    moves = jax.random.choice(key, jnp.array([-1, 1]), (LENGTH, WALKS))

    def move(cell: Array, step: Array) -> tuple[Array, Array]:
        cell = jnp.clip(cell + step, 0, CELLS - 1)
        return cell, cell

    start = jnp.zeros(WALKS, jnp.int32)
    return jnp.concatenate([start[None], jax.lax.scan(move, start, moves)[1]]).T


def outputs(network: eqx.nn.MLP, cells: Array) -> Array:
    """(cells, K); there are so few that each is encoded once."""
    return jax.vmap(network)(jnp.eye(CELLS))[cells.ravel()]


def loss(networks: Any, walks: Array) -> tuple[Array, Any]:
    """-L_diag + λ_r L̂_off of two independent sets of walks, and the statistics of the outputs."""
    f, g = networks
    halves = [Half(outputs(f, part[:, :-1]), outputs(g, part[:, 1:])) for part in jnp.split(walks, 2)]
    estimate = OBJECTIVE(*halves)
    return estimate.loss, estimate.statistics


@eqx.filter_jit
def update(networks: Any, optimiser_state: Any, running: Any, key: Array) -> tuple[Any, Any, Any]:
    """One update: act, differentiate, descend, and follow the outputs' statistics."""
    gradient, seen = eqx.filter_grad(loss, has_aux=True)(networks, random_walks(key))
    steps, optimiser_state = OPTIMISER.update(gradient, optimiser_state)
    return eqx.apply_updates(networks, steps), optimiser_state, update_statistics(running, seen)


def main(updates: int = 1000) -> dict[str, np.ndarray]:
    """Train, and return σ, and f and the bonus of every cell."""
    f_key, g_key, loop_key = jax.random.split(jax.random.key(0), 3)
    networks = [eqx.nn.MLP(CELLS, K, 64, 1, key=key) for key in (f_key, g_key)]
    optimiser_state = OPTIMISER.init(eqx.filter(networks, eqx.is_array))
    running = init_statistics(K)
    for key in jax.random.split(loop_key, updates):
        networks, optimiser_state, running = update(networks, optimiser_state, running, key)

    seen = read_statistics(running)
    sigma = jnp.diag(seen.sigma)
    f = standardise(outputs(networks[0], jnp.arange(CELLS)), seen.f)
    reward = np.asarray(compute_bonus(f, sigma))  # add it to the reward of the task
    print("singular values", np.sort(np.asarray(sigma))[::-1].round(3))
    print("bonus, left to right", reward.round(1))
    return {"sigma": np.asarray(sigma), "f": np.asarray(f), "bonus": reward}


if __name__ == "__main__":
    main()
