"""Point mass: a double integrator in the plane that has to come to rest on a target."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, PRNGKeyArray, UInt8

from derex.envs.drawing import AGENT, FAINT, FLOOR, GOAL, INK, box, canvas, disc, stroke
from derex.types import Box, EnvironmentSpec

SECONDS = 0.1  # of a step
MAX_SPEED = 1.0  # along each axis
WALL = 2.0  # the mass stays in [-2, 2]²
DISTANCE_COST = 0.1
ACTION_COST = 0.01


class PointMassState(NamedTuple):
    """Where the mass is, how fast it goes and where it should be."""

    position: Float32[Array, "2"]
    velocity: Float32[Array, "2"]
    target: Float32[Array, "2"]


class PointMass:
    """`point-mass`: the action is the acceleration, each part in [-1, 1]; a step costs 0.1 d + 0.01 |a|².

    d is the distance to the target after the step. Episodes start at rest in the middle with a target anywhere in
    [-1, 1]² and are cut after 100 steps. The observation is position, velocity and target. Speeds are cut at 1 along
    each axis, and the walls at ±2 stop the mass. Success is a return of at least -2: the controller
    4 (target - x) - 3 v reaches the farthest targets, the corners, with -1.63; to do nothing costs 10 d, 7.65 on
    average, and so succeeds only for the 3% of targets within 0.2.
    """

    spec = EnvironmentSpec(
        name="point-mass",
        observation=jax.ShapeDtypeStruct((6,), jnp.float32),
        action=Box(2, -1.0, 1.0),
        horizon=100,
        success_return=-2.0,
    )

    def reset(self, key: PRNGKeyArray) -> tuple[PointMassState, Float32[Array, "6"]]:
        """At rest in the middle, with a new target."""
        target = jax.random.uniform(key, (2,), jnp.float32, -1.0, 1.0)
        state = PointMassState(jnp.zeros(2, jnp.float32), jnp.zeros(2, jnp.float32), target)
        return state, jnp.concatenate(state)

    def step(
        self, state: PointMassState, action: Float32[Array, "2"], key: PRNGKeyArray
    ) -> tuple[PointMassState, Float32[Array, "6"], Float32[Array, ""], Bool[Array, ""]]:
        """Euler's step, velocity first."""
        action = jnp.clip(action, -1.0, 1.0)
        velocity = jnp.clip(state.velocity + SECONDS * action, -MAX_SPEED, MAX_SPEED)
        free = state.position + SECONDS * velocity
        position = jnp.clip(free, -WALL, WALL)
        velocity = jnp.where(position == free, velocity, 0)
        distance = jnp.linalg.norm(position - state.target)
        reward = -DISTANCE_COST * distance - ACTION_COST * jnp.sum(action**2)
        state = PointMassState(position, velocity, state.target)
        return state, jnp.concatenate(state), reward, jnp.zeros((), bool)

    def render(self, state: PointMassState) -> UInt8[np.ndarray, "H W 3"]:
        """From above: the mass with its velocity, the target as a ring, in a box where targets can be."""
        picture, unit = canvas(240, 240), 57.0

        def place(point: np.ndarray) -> tuple[float, float]:
            return 120 + unit * float(point[0]), 120 - unit * float(point[1])

        box(picture, (120 - unit, 120 - unit), (120 + unit, 120 + unit), FAINT)
        box(picture, (122 - unit, 122 - unit), (118 + unit, 118 + unit), FLOOR)
        position, velocity, target = (np.asarray(part) for part in state)
        disc(picture, place(target), 10, GOAL)
        disc(picture, place(target), 7, FLOOR)
        stroke(picture, place(position), place(position + velocity / 2), 2, INK)
        disc(picture, place(position), 6, AGENT)
        return picture
