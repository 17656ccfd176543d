"""The worlds of the study and what can be said of them exactly.

Shapes: B trajectories, T steps, n states.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from derex.decomposition import exact, scores
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import FOUR_ROOMS, GridWorld, HiddenAgent
from derex.envs.hidden import Walk
from derex.experiments.pomdp.definition import Case, PomdpStudy
from derex.types import Trajectories


class Data(NamedTuple):
    """Trajectories of one case, three sets of them that share none."""

    env: HiddenAgent
    train: Trajectories
    decoder: Walk
    test: Walk


def make_data(study: PomdpStudy, case: Case) -> Data:
    """Draws the trajectories of a case; the same seed walks the same paths for every p."""
    env = HiddenAgent(GridWorld(FOUR_ROOMS, slip=case.slip), case.p, random_start=case.random_start)
    keys = jax.random.split(jax.random.key(case.seed), 3)
    sizes = (study.trajectories, study.decoder_trajectories, study.test_trajectories)
    train, decoder, test = (
        jax.tree.map(np.asarray, env.rollout(key, size, study.horizon))
        for key, size in zip(keys, sizes, strict=True)
    )
    return Data(env, env.trajectories(train), decoder, test)


def distances(world: GridWorld) -> Float[np.ndarray, "n n"]:
    """Manhattan distance between the cells of two states."""
    positions = np.asarray(world.positions, np.float64)
    return np.abs(positions[:, None] - positions[None]).sum(axis=-1)


def state_means(
    values: Float[np.ndarray, "B T"], state: Int[np.ndarray, "B T"], n: int
) -> Float[np.ndarray, " n"]:
    """Mean over all histories that end in each state; NaN where none does."""
    visits = np.bincount(state.ravel(), minlength=n)
    with np.errstate(invalid="ignore"):
        return np.bincount(state.ravel(), values.ravel(), minlength=n) / visits


def exact_spearman(state: Int[np.ndarray, "B T"], n: int, k: int) -> float:
    """Rank correlation with 1/d that the exact decomposition of (s_t, s_{t+1}) reaches on the same visits."""
    joint = np.asarray(exact.empirical_joint(state[:, :-1].ravel(), state[:, 1:].ravel(), n, n))
    if k >= min(np.count_nonzero(joint.sum(axis=axis)) for axis in (0, 1)):
        return float("nan")  # these visits have fewer singular functions
    bonus = exact.decompose(joint, k).bonus(floor=SIGMA_FLOOR)
    return scores.bonus_rank_correlation(bonus, joint.sum(axis=1))


def share_explained_by_time(f: Float[np.ndarray, "B T k"]) -> float:
    """Part of the variance of f that its mean at each t accounts for, averaged over features: 1 for clocks."""
    f = f - f.mean(axis=(0, 1))
    noise = f.var(axis=0, ddof=1) / len(f)  # of a mean over B: what chance alone would explain
    explained = np.square(f.mean(axis=0)) - noise
    variance = np.maximum(np.square(f).mean(axis=(0, 1)), np.finfo(np.float32).tiny)
    return float(np.clip(np.mean(explained.mean(axis=0) / variance), 0.0, 1.0))
