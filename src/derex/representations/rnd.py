"""Random network distillation (Burda et al. 2019; appendix C): the error of a predictor of a random network.

Bonus: the mean squared error on the observation, before the predictor is trained on it. Observations are standardised
by running statistics and clipped, as in the original, after symbols and words are encoded
(`derex.networks.inputs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex._text import check_ranges
from derex.networks.encoders import MLP
from derex.networks.histories import apply_per_step
from derex.networks.inputs import Part, compute_flat_size, flatten_observation
from derex.networks.layers import Fixed
from derex.representations import base
from derex.representations.base import (
    OptimisedTraining,
    RepresentationState,
    RolloutView,
    Sizes,
    StateAndBonus,
)

OBSERVATION_CLIP = 5.0


class ObservationMoments(NamedTuple):
    """Running moments of every component of an observation."""

    count: Float[Array, ""]
    mean: Float[Array, " size"]
    square: Float[Array, " size"]  # sum of squared deviations


class Distillation(eqx.Module):
    """The predictor, and the fixed random network that it imitates."""

    predictor: MLP
    target: Fixed
    parts: tuple[Part, ...] = eqx.field(static=True)  # of the observations


@dataclass(frozen=True)
class RndConfig:
    """Options of random network distillation."""

    k: int = 64
    """outputs"""
    lambda_b: float = base.LAMBDA_B
    """λ_b: weight of the bonus; 0: none"""
    centre_bonus: bool = True
    """subtract the rollout's mean from the bonus"""
    width: int = 128
    training: OptimisedTraining = field(
        default_factory=lambda: OptimisedTraining(steps=4, learning_rate=1e-4)
    )
    normalise: bool = True
    """standardise observations by running statistics"""

    def __post_init__(self) -> None:
        check_ranges(self, "representation.", counts=("k", "width"), weights=("lambda_b",))

    def build(self) -> base.Representation:
        """Builds the record."""
        use = base.BonusUse(self.lambda_b, self.centre_bonus)
        return base.Representation(
            self._init, base.no_auxiliary, base.track_nothing, self._observe, base.report_nothing, use
        )

    def _init(self, key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
        size = compute_flat_size(sizes.observation)
        target, predictor = (
            MLP(size, self.k, width=self.width, depth=2, key=part) for part in jax.random.split(key)
        )
        own = self.training.init(Distillation(predictor, Fixed(target), sizes.observation))
        moments = ObservationMoments(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))
        return RepresentationState(None, own, moments, None)

    def _observe(self, state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus:
        """Computes the bonus of the rollout, then trains on it."""
        parts = state.own.networks.parts
        rows = flatten_observation(parts, view.trajectories.observation, view.trajectories.shape)
        moments = _including(state.tracked, rows[:, 1:])  # step 0 was the last of the previous rollout
        if self.normalise:
            spread = jnp.sqrt(moments.square / jnp.maximum(moments.count, 1.0)) + 1e-8
            rows = jnp.clip((rows - moments.mean) / spread, -OBSERVATION_CLIP, OBSERVATION_CLIP)
        bonus = jnp.mean(_errors(state.own.networks, rows), axis=-1)

        def loss(networks: Distillation, rows: Array, key: PRNGKeyArray):
            return jnp.mean(_errors(networks, rows))

        own = self.training.run(state.own, rows, loss, key)
        return RepresentationState(None, own, moments, None), bonus


def _errors(networks: Distillation, rows: Float[Array, "B T size"]) -> Float[Array, "B T k"]:
    return jnp.square(apply_per_step(networks.predictor, rows) - apply_per_step(networks.target.value, rows))


def _including(moments: ObservationMoments, rows: Float[Array, "B T size"]) -> ObservationMoments:
    """Moments with these rows added (Chan's update)."""
    added = jnp.asarray(rows.shape[0] * rows.shape[1], jnp.float32)
    mean = jnp.mean(rows, axis=(0, 1))
    square = jnp.sum(jnp.square(rows - mean), axis=(0, 1))
    count, delta = moments.count + added, mean - moments.mean
    square = moments.square + square + jnp.square(delta) * moments.count * added / count
    return ObservationMoments(count, moments.mean + delta * added / count, square)
