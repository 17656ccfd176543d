"""One case of the study: fit, decode, and hold against the Bayes filter and the controls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from derex.decomposition import scores
from derex.envs import HiddenAgent
from derex.envs.hidden import Walk
from derex.estimators import HistoryDeRex, fit_together
from derex.estimators.decoder import belief_scores, fit_readout
from derex.estimators.history_training import untrained
from derex.experiments.pomdp.definition import Case, PomdpStudy
from derex.experiments.pomdp.exact import decompose_tests
from derex.experiments.pomdp.world import (
    Data,
    distances,
    exact_spearman,
    make_data,
    share_explained_by_time,
    state_means,
)

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
    group: list[Case],
    checkpoints: list[Path] | None = None,
    watch: Callable[..., None] | None = None,
) -> Iterator[tuple[Case, Outcome]]:
    """Train on some trajectories, fit decoders on others, score on others again; all seeds train side by side."""
    sets = [make_data(study, case) for case in group]
    start = time.perf_counter()
    models = [_model(study, case) for case in group]
    fit_together(models, [data.train for data in sets], checkpoints=checkpoints, watch=watch)
    seconds = (time.perf_counter() - start) / len(group)
    for case, data, model in zip(group, sets, models, strict=True):
        yield case, _outcome(study, case, data, model, seconds)


def _outcome(study: PomdpStudy, case: Case, data: Data, model: HistoryDeRex, seconds: float) -> Outcome:
    f_decoder, f_test = (_represent(model, data.env, walk) for walk in (data.decoder, data.test))
    beliefs = {"decoded": _decoded(data, f_decoder, f_test)} | _references(study, case, data)
    # Filters and decoders see the same steps; all of them count.
    true, distance = data.test.state.ravel(), distances(data.env.world)
    n = data.env.world.n_states
    numbers = {name: belief_scores(belief.reshape(-1, n), true, distance) for name, belief in beliefs.items()}
    bonus = _bonus(model, data, f_decoder, f_test)
    row = {
        "seconds": seconds,
        "singular_values": [float(s) for s in model.singular_values_],
        "trace": float(np.sum(model.singular_values_)),
        "trace_exact": _exact_trace(case, data),
        "largest_off_diagonal": float(np.max(np.abs(model.sigma_ - np.diag(np.diag(model.sigma_))))),
        "time_share": share_explained_by_time(f_test),
        **{f"{name}_{score}": value for name, found in numbers.items() for score, value in found.items()},
        **bonus.numbers,
    }
    known = {
        name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()
    }
    return Outcome(known, {**_pictures(data, f_test, beliefs), "bonus": bonus.mean, "d": bonus.d})


def _model(study: PomdpStudy, case: Case) -> HistoryDeRex:
    options: dict[str, Any] = {
        "objective": case.objective,
        "width": study.width,
        "tests": case.tests,
        "test_actions": case.test_actions,
        "lambda_r": case.lambda_r,
        "batch_size": study.batch,
        "steps": case.steps(study),
        "random_state": case.seed,
    }
    return HistoryDeRex(case.k, **options)


def _represent(model: HistoryDeRex, env: HiddenAgent, walk: Walk) -> Float[np.ndarray, "B T k"]:
    return model.transform(env.trajectories(walk))


def _decoded(data: Data, f_decoder: np.ndarray, f_test: np.ndarray) -> Float[np.ndarray, "B T n"]:
    """Belief by one linear layer on the representation."""
    k, n = f_decoder.shape[-1], data.env.world.n_states
    readout = fit_readout(f_decoder.reshape(-1, k), data.decoder.state.ravel(), n)
    return np.asarray(readout.probabilities(f_test))


def _references(study: PomdpStudy, case: Case, data: Data) -> dict[str, np.ndarray]:
    """The exact filter, the same decoder on its belief, an untrained network, and the last frame alone."""
    fresh = _model(study, case)
    untrained(fresh, data.train)
    features = [_represent(fresh, data.env, walk) for walk in (data.decoder, data.test)]
    filters = [np.asarray(data.env.filter(walk)) for walk in (data.decoder, data.test)]
    return {
        "filter": filters[1],
        "filter_decoded": _decoded(data, *filters),
        "untrained": _decoded(data, *features),
        "memoryless": _memoryless(data),
    }


def _memoryless(data: Data) -> Float[np.ndarray, "B T n"]:
    """The best belief given the last frame alone: how often each state goes with each frame."""
    n = data.env.world.n_states
    frames = [np.where(walk.hidden, n, walk.state) for walk in (data.decoder, data.test)]
    counts = np.full((n + 1, n), MEMORYLESS_PRIOR / n)
    np.add.at(counts, (frames[0].ravel(), data.decoder.state.ravel()), 1.0)
    return (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)[frames[1]]


def _exact_trace(case: Case, data: Data) -> float | None:
    """Σ of the k largest singular values of states and tests, where histories tell the state and tests end early."""
    if case.slip or case.random_start or not isinstance(case.tests, int):
        return None
    walk = Walk(*(part[:EXACT_TRAJECTORIES] for part in data.decoder))
    found = decompose_tests(data.env, walk, case.tests, case.test_actions)
    return float(found.singular_values[: case.k].sum())


@dataclass(frozen=True, eq=False)
class BonusScores:
    """The bonus averaged over histories that end in each state, and how it ranks them."""

    mean: Float[np.ndarray, " n"]
    d: Float[np.ndarray, " n"]
    numbers: dict[str, float]


def _bonus(model: HistoryDeRex, data: Data, f_decoder: np.ndarray, f_test: np.ndarray) -> BonusScores:
    state = np.concatenate([data.decoder.state, data.test.state])
    n, k = data.env.world.n_states, f_test.shape[-1]
    values = model.bonus_of(np.concatenate([f_decoder, f_test]))
    mean = state_means(values, state, n)
    d = np.bincount(state.ravel(), minlength=n) / state.size
    learnt = scores.bonus_rank_correlation(np.where(d > 0, mean, 0.0), d)
    return BonusScores(mean, d, {"spearman": learnt, "spearman_exact": exact_spearman(state, n, k)})


def _pictures(data: Data, f_test: np.ndarray, beliefs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the figures need: many histories, and one trajectory with all its beliefs."""
    k, n = f_test.shape[-1], data.env.world.n_states
    rng = np.random.default_rng(0)
    size = data.test.state.size
    chosen = np.sort(rng.choice(size, min(PICTURED_HISTORIES, size), replace=False))
    pictured: dict[str, np.ndarray] = {
        "cloud_state": np.asarray(data.test.state, np.int32).ravel()[chosen],
        "cloud": np.asarray(f_test.reshape(-1, k)[chosen][:, :4]),
        "track_state": np.asarray(data.test.state[0], np.int32),
        "track_frame": np.where(data.test.hidden, n, data.test.state)[0].astype(np.int32),
    }
    return pictured | {f"track_{name}": belief[0].astype(np.float32) for name, belief in beliefs.items()}
