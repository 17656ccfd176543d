"""What a fitted model reads off its networks: the singular functions within their span, after a fit and along a stream.

Shapes: n rows, k functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from derex.decomposition import ritz, statistics

HALF_BLOCKS = 16  # of the rows, alternately of one half and of the other


class Reading(NamedTuple):
    """The singular functions that a model reads off its networks, and what is known about them."""

    functions: ritz.RitzFunctions
    errors: Float[np.ndarray, " k"]  # of the singular values
    confirmed: Float[np.ndarray, " k"]  # correlations on rows that the functions were not computed from
    energy: float  # on such rows
    moments: ritz.FeatureMoments  # of the outputs, of weight 1; a running mean in `partial_fit`
    rows: float  # that the moments stand for


def read_functions(
    f: Float[np.ndarray, "n k"],
    g: Float[np.ndarray, "n k"],
    counts: Float[np.ndarray, " n"] | None,
    k: int,
) -> Reading:
    """Solves for the singular functions within the span of f and g, with the ridge that the other half asks for.

    Rows that occur several times are divided at random into two halves of their visits, rows that do not in blocks:
    successive rows are alike.
    """
    if counts is None:
        blocks = np.arange(len(f)) * HALF_BLOCKS // len(f) % 2
        halves = [ritz.compute_feature_moments(f[blocks == i], g[blocks == i]) for i in (0, 1)]
    else:
        first = np.random.default_rng(0).binomial(np.asarray(counts, np.int64), 0.5)
        halves = [ritz.compute_feature_moments(f, g, part) for part in (first, counts - first)]
    ridge, energy, confirmed = ritz.choose_ridge(halves, k)
    moments = ritz.add_moments(halves)
    functions = ritz.solve_ritz(moments, k, ridge)
    f, g = (f - functions.mean_f) @ functions.f, (g - functions.mean_g) @ functions.g
    functions = functions.flipped(ritz.choose_signs(f))
    errors = ritz.compute_sampling_errors(f, g, functions.singular_values, counts)
    moments, rows = ritz.scale_moments(moments, 1.0 / moments.weight), moments.weight
    return Reading(functions, errors, confirmed, energy, moments, rows)


def update_reading(
    before: Reading | None, f: Float[np.ndarray, "n k"], g: Float[np.ndarray, "n k"]
) -> Reading:
    """The functions after one more batch of a stream, from running means of the outputs' moments.

    There are no other rows to confirm them; their errors are those of as many independent rows as the means stand for.
    """
    f, g = (side[: len(f) // 2 * 2] for side in (f, g))  # an odd last row is in neither half
    new, decay = ritz.compute_feature_moments(f, g), statistics.DECAY
    moments, rows = ritz.scale_moments(new, (1.0 - decay) / new.weight), new.weight
    if before is not None:
        moments = ritz.add_moments([ritz.scale_moments(before.moments, decay), moments])
        rows = decay * before.rows + new.weight
    functions = ritz.solve_ritz(moments, f.shape[1])
    functions = functions.flipped(ritz.choose_signs((f - functions.mean_f) @ functions.f))
    sigma = functions.singular_values
    errors = (1.0 - sigma**2) / np.sqrt(rows)
    return Reading(functions, errors, sigma, float(np.sum(sigma**2)), moments, rows)
