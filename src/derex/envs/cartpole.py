"""Cart-pole (Barto, Sutton and Anderson 1983), with the constants of gym's CartPole-v1."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int, PRNGKeyArray, UInt8

from derex.envs.drawing import FAINT, INK, ORANGE, box, canvas, disc, stroke
from derex.types import Discrete, EnvironmentSpec

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.1  # cart and pole
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02  # of a step
MAX_POSITION = 2.4
MAX_ANGLE = 0.20943951  # 12 degrees


class CartPoleState(NamedTuple):
    """Position and speed of the cart, angle (0 is upright) and angular speed of the pole."""

    x: Float32[Array, ""]
    v: Float32[Array, ""]
    angle: Float32[Array, ""]
    spin: Float32[Array, ""]


class CartPole:
    """`cartpole`: push the cart left or right; 1 for each step until the pole leans by 12° or the cart is 2.4 away.

    Episodes start near the upright rest and are cut after 500 steps. The observation is the state, unscaled.
    """

    spec = EnvironmentSpec(
        name="cartpole",
        observation=jax.ShapeDtypeStruct((4,), jnp.float32),
        action=Discrete(2),
        horizon=500,
        success_return=475.0,
    )

    def reset(self, key: PRNGKeyArray) -> tuple[CartPoleState, Float32[Array, "4"]]:
        """Each number of the state uniform in [-0.05, 0.05]."""
        observation = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return CartPoleState(*observation), observation

    def step(
        self, state: CartPoleState, action: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[CartPoleState, Float32[Array, "4"], Float32[Array, ""], Bool[Array, ""]]:
        """Euler's step of the published equations, positions first, as gym takes it."""
        x, v, angle, spin = state
        force = jnp.where(action == 1, jnp.float32(FORCE), jnp.float32(-FORCE))
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        push = (force + POLE_MASS * HALF_LENGTH * spin**2 * sine) / TOTAL_MASS
        swing = (GRAVITY * sine - cosine * push) / (
            HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / TOTAL_MASS)
        )
        acceleration = push - POLE_MASS * HALF_LENGTH * swing * cosine / TOTAL_MASS
        state = CartPoleState(
            x + SECONDS * v, v + SECONDS * acceleration, angle + SECONDS * spin, spin + SECONDS * swing
        )
        fallen = (jnp.abs(state.x) > MAX_POSITION) | (jnp.abs(state.angle) > MAX_ANGLE)
        return state, jnp.stack(state), jnp.float32(1), fallen

    def render(self, state: CartPoleState) -> UInt8[np.ndarray, "H W 3"]:
        """Cart and pole from the side; the marks on the track are as far as the cart may go."""
        picture, metre, ground = canvas(480, 240), 90.0, 190.0
        ends = [240 + side * MAX_POSITION * metre for side in (-1, 1)]
        stroke(picture, (0, ground), (480, ground), 2, FAINT)
        for x in ends:
            stroke(picture, (x, ground - 8), (x, ground + 8), 2, FAINT)
        x, angle = 240 + float(state.x) * metre, float(state.angle)
        hinge, length = (x, ground - 24), 2 * HALF_LENGTH * metre
        tip = hinge[0] + length * np.sin(angle), hinge[1] - length * np.cos(angle)
        box(picture, (x - 24, ground - 26), (x + 24, ground - 6), INK)
        stroke(picture, hinge, (float(tip[0]), float(tip[1])), 8, ORANGE)
        disc(picture, hinge, 4, FAINT)
        return picture
