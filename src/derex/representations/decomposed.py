"""What all decompositions track, and the bonus and numbers that are read off it (Section 4, exploration)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from derex.decomposition.bonus import SIGMA_FLOOR, bonus
from derex.decomposition.normalisation import (
    RunningStatistics,
    Statistics,
    initial_statistics,
    read_statistics,
    standardise,
    update_statistics,
)
from derex.decomposition.objectives import Objective, make_objective

STATISTICS_DECAY = 0.8  # the policy moves: what f meant a hundred updates ago is gone


@dataclass(frozen=True)
class Decomposition:
    """Objective and reading, shared by all forms of De-Rex and by graph drawing."""

    k: int = 64
    objective: str = "derex"
    """derex (the paper's loss), nested, or laplacian (graph drawing: g = f)"""
    lambda_r: float | str = 10.0
    """weight of the off-diagonal penalty, or "grow" """
    weighted: bool = True
    """weigh the norm by Σ̃⁻² as in the paper"""
    sigma_floor: float = SIGMA_FLOOR
    """smaller σ count as this"""
    statistics_decay: float = STATISTICS_DECAY
    """of Σ̃ and the moments, at every step of training"""

    @property
    def loss(self) -> Objective:
        """The objective."""
        return make_objective(self.objective, self.k, self.lambda_r)

    @property
    def tied(self) -> bool:
        """Whether g is f."""
        return self.loss.tied

    def initial(self) -> RunningStatistics:
        """Nothing seen."""
        return initial_statistics(self.k)

    def track(self, running: RunningStatistics, seen: Statistics) -> RunningStatistics:
        """Σ̃ and moments after one more step."""
        return update_statistics(running, seen, self.statistics_decay)

    def bonus(self, f: Float[Array, "*b k"], running: RunningStatistics) -> Float[Array, "*b"]:
        """‖f‖ of the standardised features, weighted by Σ̃⁻²."""
        seen = read_statistics(running)
        return bonus(standardise(f, seen.f), jnp.diag(seen.sigma), self.weighted, self.sigma_floor)

    def report(self, running: RunningStatistics) -> dict[str, Array]:
        """The spectrum, its sum, and how far Σ̃ is from diagonal."""
        sigma = read_statistics(running).sigma
        spectrum = jnp.diag(sigma)
        off = jnp.max(jnp.abs(sigma - jnp.diag(spectrum)))
        return {"spectrum": spectrum, "sigma_mean": jnp.mean(spectrum), "off_diagonal": off}
