"""Your own Equinox modules as encoders, and how to save and load such a model.

A module maps one observation to k numbers. With a `features` method (what its last, linear layer reads) it also tells
inputs unlike its training data apart, and gives them the largest bonus. Run:

    python examples/own_encoder.py
"""

import tempfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from derex import DeRex
from derex.envs import FOUR_ROOMS, GridWorld


class FourierEncoder(eqx.Module):
    """Waves over the floor, and a linear layer."""

    out: eqx.nn.Linear
    waves: int = eqx.field(static=True)

    def __init__(self, k: int, waves: int = 8, *, key: Array):
        self.out = eqx.nn.Linear(waves**2, k, key=key)
        self.waves = waves

    def features(self, position: Array) -> Array:
        row, column = jnp.cos(jnp.pi / 2 * jnp.arange(self.waves)[:, None] * (1.0 + position)).T
        return jnp.outer(row, column).ravel()

    def __call__(self, position: Array) -> Array:
        return self.out(self.features(position))


def make_encoder(key: Array, shape: tuple[int, ...], k: int) -> FourierEncoder:
    """What `DeRex` calls for each side."""
    assert shape == (2,)
    return FourierEncoder(k, key=key)


def main(n: int = 50_000, steps: int = 1500) -> dict[str, float]:
    """Coordinates in four rooms to next coordinates."""
    world = GridWorld(FOUR_ROOMS)
    walk = world.sample_transitions(jax.random.key(0), n)
    x, y = world.coordinates(walk.state), world.coordinates(walk.next_state)
    model = DeRex(
        4, objective="nested", encoder=make_encoder, steps=steps, learning_rate=1e-2, random_state=0
    )
    model.fit(x, y)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fourier.derex"
        model.save(path)
        again = DeRex.load(path, encoder=make_encoder)  # a file holds numbers, never code
    same = bool(np.array_equal(again.transform(x), model.transform(x)))
    print("singular values", np.round(model.singular_values_, 3))
    print("captured on these pairs", round(model.score(x, y), 3))
    print("the loaded model gives the same numbers:", same)
    return {"score": model.score(x, y), "same": float(same)}


if __name__ == "__main__":
    main()
