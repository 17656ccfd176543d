"""A JAX environment of one's own, and an agent that learns it: walk along a corridor to its right end.

From the command line, in this folder:

    derex train --env jax:own_environment:Corridor --method vmpo --steps 1e6 --out runs/corridor

Run: python examples/own_environment.py
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from derex.agents import AgentConfig
from derex.training import TrainConfig, train
from derex.types import Discrete, EnvironmentSpec

LENGTH = 12


class Corridor:
    """State: the cell. Actions: left, right. A reward of 1 at the right end ends the episode."""

    spec = EnvironmentSpec(
        name="jax:own_environment:Corridor",
        observation=jax.ShapeDtypeStruct((LENGTH,), jnp.float32),
        action=Discrete(2),
        horizon=4 * LENGTH,
        success_return=1.0,
    )

    def reset(self, key: Array) -> tuple[Array, Array]:
        cell = jnp.int32(0)
        return cell, jax.nn.one_hot(cell, LENGTH)

    def step(self, cell: Array, action: Array, key: Array) -> tuple[Array, Array, Array, Array]:
        cell = jnp.clip(cell + 2 * action.astype(jnp.int32) - 1, 0, LENGTH - 1)
        reached = cell == LENGTH - 1
        return cell, jax.nn.one_hot(cell, LENGTH), reached.astype(jnp.float32), reached


def main(steps: float = 200_000) -> float:
    """Train V-MPO, and return the last share of episodes that reached the end."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            env=Corridor.spec.name,
            out=Path(folder) / "run",
            method="vmpo",
            steps=steps,
            streams=64,
            agent=AgentConfig(core="feed-forward", width=32),
        )
        success = train(config).final[0]["success"]
    print(f"episodes that reach the end: {success:.0%}")
    return success


if __name__ == "__main__":
    main()
