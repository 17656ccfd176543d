"""One case of the study of hidden agents: data, fit, decoders, the Bayes filter, and the exact decomposition.

The exact decomposition of states and tests is the limit of f of histories where histories determine the state. With a
known start and moves that never fail f(h_t) = φ(s_t), and g(τ) = E[φ(s)|τ] up to scale. The operator is known up to an
average over tests:

    (M Mᵀ)_{s s'} = E_τ[ P(s|τ) P(s'|τ) ] / √(d(s) d(s')),

where P(s|τ) ∝ d(s) P(τ|s) comes from an exact backward recursion over the test. Its eigenvalues are σ_i².

Shapes: B trajectories, T steps, n states, A actions, k features.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist

from derex._text import to_plain
from derex.decomposition import exact, scores
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import FOUR_ROOMS, GridWorld, HiddenAgent
from derex.envs.grid.hidden import Walk
from derex.estimators import HistoryDeRex, fit_together
from derex.estimators.decoder import belief_scores, fit_readout
from derex.estimators.histories import fit_untrained
from derex.studies.common import ignore_fit_warnings
from derex.studies.definitions import PomdpCase, PomdpStudy
from derex.types import Trajectories


class Data(NamedTuple):
    """Trajectories of one case, three sets of them that share none."""

    env: HiddenAgent
    train: Trajectories
    decoder: Walk
    test: Walk


def make_data(study: PomdpStudy, case: PomdpCase) -> Data:
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
    return cdist(world.positions, world.positions, "cityblock")


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
    bonus = exact.decompose(joint, k).bonus(sigma_floor=SIGMA_FLOOR)
    return scores.bonus_rank_correlation(bonus, joint.sum(axis=1))


def share_explained_by_time(f: Float[np.ndarray, "B T k"]) -> float:
    """Part of the variance of f that its mean at each t accounts for, averaged over features: 1 for clocks."""
    f = f - f.mean(axis=(0, 1))
    noise = f.var(axis=0, ddof=1) / len(f)  # of a mean over B: what chance alone would explain
    explained = np.square(f.mean(axis=0)) - noise
    variance = np.maximum(np.square(f).mean(axis=(0, 1)), np.finfo(np.float32).tiny)
    return float(np.clip(np.mean(explained.mean(axis=0) / variance), 0.0, 1.0))


class TestDecomposition(NamedTuple):
    """Singular values and functions of states and their tests, the constant mode left out."""

    __test__ = False  # not for pytest

    singular_values: Float[np.ndarray, " m"]
    left: Float[np.ndarray, "n m"]  # φ_i(s), unit variance under d; 0 where never visited
    d: Float[np.ndarray, " n"]


def decompose_tests(
    env: HiddenAgent, walk: Walk, longest: int, actions: bool = True, seed: int = 0
) -> TestDecomposition:
    """All singular values for tests of 1 ≤ L ≤ `longest` steps, averaged over the tests of a walk.

    Args:
        env: the world.
        walk: trajectories of the uniform random policy.
        longest: L_max.
        actions: whether tests hold their actions.
        seed: of the tests' ends.
    """
    state = np.asarray(walk.state)
    n, T = env.world.n_states, state.shape[1]
    if longest >= T:
        raise ValueError(f"longest: expected less than the {T} steps of the walk, got {longest}.")
    counted = T - longest
    prior = np.bincount(state[:, :counted].ravel(), minlength=n) / state[:, :counted].size
    total = np.zeros((n, n))
    for t, likelihood in _likelihoods(env, walk, longest, actions, np.random.default_rng(seed)):
        if t < counted:
            posterior = likelihood * prior
            posterior /= posterior.sum(axis=1, keepdims=True)
            total += posterior.T @ posterior
    total /= total.sum()
    d = total.sum(axis=1)
    seen = d > 0
    root = np.sqrt(d[seen])
    values, vectors = np.linalg.eigh(total[np.ix_(seen, seen)] / np.outer(root, root) - np.outer(root, root))
    order = np.argsort(-values)[: int(seen.sum()) - 1]
    left = np.zeros((n, len(order)))
    left[seen] = vectors[:, order] / root[:, None]
    return TestDecomposition(np.sqrt(np.maximum(values[order], 0.0)), left, d)


def _likelihoods(env: HiddenAgent, walk: Walk, longest: int, actions: bool, rng: np.random.Generator):
    """P(τ_t | s_t = s) up to a factor, for t = T - 2, …, 0: ℓ_t(s) = Σ_s' P(s'|s, a_t) O(o_{t+1}|s') ℓ_{t+1}(s')."""
    state, hidden, previous = (np.asarray(part) for part in (walk.state, walk.hidden, walk.previous_action))
    (B, T), n = state.shape, env.world.n_states
    moves = env.world.transition_tensor()  # (n, A, n)
    phase = rng.integers(0, longest, B)
    later = np.ones((B, n))
    for t in range(T - 2, -1, -1):
        ends: Bool[np.ndarray, " B"] = (t + 1 - phase) % longest == 0
        shown = state[:, t + 1, None] == np.arange(n)
        emission = np.where(hidden[:, t + 1, None], 1.0, shown)
        later = np.where(ends[:, None], 1.0, later) * emission
        by_action = np.einsum("bm,nam->ban", later, moves, optimize=True)
        later = by_action[np.arange(B), previous[:, t + 1]] if actions else by_action.mean(axis=1)
        later = later / later.max(axis=1, keepdims=True)
        yield t, later


PICTURED_HISTORIES = 10_000
EXACT_TRAJECTORIES = 256  # over which the exact decomposition of tests is averaged
MEMORYLESS_PRIOR = 0.1  # added to the counts of the memoryless decoder


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a case says: numbers for the tables, arrays for the pictures."""

    row: dict[str, Any]
    arrays: dict[str, np.ndarray]


def evaluate(
    study: PomdpStudy,
    group: list[PomdpCase],
    checkpoints: list[Path] | None = None,
    watch: Callable[..., None] | None = None,
) -> Iterator[tuple[PomdpCase, Outcome]]:
    """Trains on some trajectories, fits decoders on others, scores on others again; all seeds train side by side."""
    sets = [make_data(study, case) for case in group]
    start = time.perf_counter()
    models = [_make_model(study, case) for case in group]
    with ignore_fit_warnings():
        fit_together(models, [data.train for data in sets], checkpoints=checkpoints, watch=watch)
    seconds = (time.perf_counter() - start) / len(group)
    for case, data, model in zip(group, sets, models, strict=True):
        yield case, _describe(study, case, data, model, seconds)


def _make_model(study: PomdpStudy, case: PomdpCase) -> HistoryDeRex:
    return HistoryDeRex(
        case.k,
        objective=case.objective,
        width=study.width,
        tests=case.tests,
        test_actions=case.test_actions,
        lambda_r=case.lambda_r,
        batch_size=study.batch,
        steps=case.steps(study),
        random_state=case.seed,
        verbose=False,
    )


def _describe(study: PomdpStudy, case: PomdpCase, data: Data, model: HistoryDeRex, seconds: float) -> Outcome:
    """The outcome of a fitted model; filters and decoders see the same steps, and all of them count."""
    n = data.env.world.n_states
    f_decoder, f_test = (model.transform(data.env.trajectories(walk)) for walk in (data.decoder, data.test))
    beliefs = {"decoded": _decode(data, f_decoder, f_test)} | _reference_beliefs(study, case, data)
    true, distance = data.test.state.ravel(), distances(data.env.world)
    numbers = {name: belief_scores(belief.reshape(-1, n), true, distance) for name, belief in beliefs.items()}
    state = np.concatenate([data.decoder.state, data.test.state])
    bonus = state_means(model.bonus_of(np.concatenate([f_decoder, f_test])), state, n)
    d = np.bincount(state.ravel(), minlength=n) / state.size
    row = {
        "seconds": seconds,
        "singular_values": [float(s) for s in model.singular_values_],
        "trace": float(np.sum(model.singular_values_)),
        "trace_exact": _exact_trace(case, data),
        "largest_off_diagonal": float(model.history_["off_diagonal"][-1]) if model.n_iter_ else 0.0,
        "time_share": share_explained_by_time(f_test),
        **{f"{name}_{score}": value for name, found in numbers.items() for score, value in found.items()},
        "spearman": scores.bonus_rank_correlation(np.where(d > 0, bonus, 0.0), d),
        "spearman_exact": exact_spearman(state, n, case.k),
    }
    return Outcome(to_plain(row), {**_pictures(data, f_test, beliefs), "bonus": bonus, "d": d})


def _decode(data: Data, f_decoder: np.ndarray, f_test: np.ndarray) -> Float[np.ndarray, "B T n"]:
    """Belief by one linear layer on the representation."""
    k, n = f_decoder.shape[-1], data.env.world.n_states
    readout = fit_readout(f_decoder.reshape(-1, k), data.decoder.state.ravel(), n)
    return np.asarray(readout.probabilities(f_test))


def _reference_beliefs(study: PomdpStudy, case: PomdpCase, data: Data) -> dict[str, np.ndarray]:
    """The exact filter, the same decoder on its belief, an untrained network, and the last frame alone."""
    walks = data.decoder, data.test
    untrained = _make_model(study, case)
    with ignore_fit_warnings():
        fit_untrained(untrained, data.train)
    features = [untrained.transform(data.env.trajectories(walk)) for walk in walks]
    filters = [np.asarray(data.env.filter(walk)) for walk in walks]
    # The best belief given the last frame alone: how often each state goes with each frame.
    n = data.env.world.n_states
    frames = [np.where(walk.hidden, n, walk.state) for walk in walks]
    counts = np.full((n + 1, n), MEMORYLESS_PRIOR / n)
    np.add.at(counts, (frames[0].ravel(), data.decoder.state.ravel()), 1.0)
    return {
        "filter": filters[1],
        "filter_decoded": _decode(data, *filters),
        "untrained": _decode(data, *features),
        "memoryless": (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)[frames[1]],
    }


def _exact_trace(case: PomdpCase, data: Data) -> float | None:
    """Σ of the k largest singular values of states and tests, where histories tell the state and tests end early."""
    if case.slip or case.random_start or not isinstance(case.tests, int):
        return None
    walk = Walk(*(part[:EXACT_TRAJECTORIES] for part in data.decoder))
    found = decompose_tests(data.env, walk, case.tests, case.test_actions)
    return float(found.singular_values[: case.k].sum())


def _pictures(data: Data, f_test: np.ndarray, beliefs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the figures need: many histories, and one trajectory with all its beliefs."""
    k, n = f_test.shape[-1], data.env.world.n_states
    size = data.test.state.size
    chosen = np.sort(np.random.default_rng(0).choice(size, min(PICTURED_HISTORIES, size), replace=False))
    pictured: dict[str, np.ndarray] = {
        "cloud_state": np.asarray(data.test.state, np.int32).ravel()[chosen],
        "cloud": np.asarray(f_test.reshape(-1, k)[chosen][:, :4]),
        "track_state": np.asarray(data.test.state[0], np.int32),
        "track_frame": np.where(data.test.hidden, n, data.test.state)[0].astype(np.int32),
    }
    return pictured | {f"track_{name}": belief[0].astype(np.float32) for name, belief in beliefs.items()}
