"""What trained networks show on their training data.

Running statistics lag behind networks that still move: at the end of a fit they are replaced by those of the final
networks, so that `transform` is standardised on the training data whatever the number of updates.

Shapes: n pairs, k features.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from derex.decomposition.normalisation import READING_EPSILON, Moments, RunningStatistics, Statistics
from derex.estimators.data import PairData, map_rows
from derex.estimators.training import Networks

MEASURED_PAIRS = 1 << 16  # at most; fewer where the distinct pairs are known
SMALLEST_DIRECTION = 1e-6  # relative to the largest: below it there is only rounding


def measure(networks: Networks, data: PairData) -> RunningStatistics:
    """Moments of f and g, and Σ between them, over the training pairs: as running statistics that have settled."""
    numbers, counts = data.pairs(MEASURED_PAIRS)
    f, g = (
        map_rows(side, rows, dtype, numbers)
        for side, rows, dtype in zip(
            (networks.f, networks.g_or_f), (data.x, data.y), data.dtypes, strict=True
        )
    )
    return settled_statistics(f, g, counts)


def settled_statistics(
    f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"], counts: Float[np.ndarray, " n"] | None = None
) -> RunningStatistics:
    """Moments of f and g, and Σ between them, as running statistics that have settled; row i counts counts[i] times."""
    weights = np.full(len(f), 1.0 / len(f)) if counts is None else counts / counts.sum()
    (f, f_moments), (g, g_moments) = (_standardised(side, weights) for side in (f, g))
    return RunningStatistics(Statistics(f_moments, g_moments, jnp.asarray((f.T * weights) @ g)), jnp.ones(()))


def squared_correlation(f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"]) -> float:
    """‖C_f^-½ Cov(f, g) C_g^-½‖²_F: the sum of squared canonical correlations (VAMP-2)."""
    f_basis, g_basis = (_orthonormal(side - side.mean(axis=0, dtype=np.float64)) for side in (f, g))
    return float(np.sum((f_basis.T @ g_basis) ** 2))


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns' span."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, sizes > SMALLEST_DIRECTION * max(sizes[0], np.finfo(np.float64).tiny)]


def _standardised(
    z: Float[np.ndarray, "n k"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n k"], Moments]:
    """`batch_normalise` in double precision, on the host."""
    mean = weights @ z
    variance = weights @ (z - mean) ** 2
    return (z - mean) / np.sqrt(variance + READING_EPSILON), Moments(jnp.asarray(mean), jnp.asarray(variance))
