"""A small chain whose decomposition LAPACK knows."""

from typing import NamedTuple

import numpy as np
import pytest

from derex import exact

N = 8  # states


class Chain(NamedTuple):
    """Pairs of states, and the exact decomposition of their empirical joint."""

    x: np.ndarray
    y: np.ndarray
    joint: np.ndarray
    exact: exact.Decomposition


def sampled(n_pairs, seed=0):
    """Pairs (s, s') of a random chain that is not reversible, some states ten times as frequent as others."""
    P = np.random.default_rng(12).dirichlet(
        np.full(N, 0.25), N
    )  # singular values 0.82, 0.66, 0.51, 0.34, ...
    d = np.geomspace(1.0, 0.1, N)
    rng = np.random.default_rng(seed)
    x = rng.choice(N, n_pairs, p=d / d.sum())
    y = (rng.random(n_pairs)[:, None] > P.cumsum(axis=1)[x]).sum(axis=1)
    return x, np.minimum(y, N - 1)


@pytest.fixture(scope="session")
def chain():
    x, y = sampled(4000)
    joint = exact.empirical_joint(x, y, N, N)
    return Chain(x, y, joint, exact.decompose(joint, 3))


@pytest.fixture(scope="session")
def sample_chain():
    return sampled


@pytest.fixture(scope="session")
def vectors():
    """60 pairs of Gaussian vectors, y depending on x; of different sizes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x[:, :2] + 0.3 * rng.normal(size=(60, 2))).astype(np.float32)
    return x, y
