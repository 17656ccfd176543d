"""Fit a model to a problem and hold it against the exact decomposition, and the same for the controls."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from derex.decomposition import exact, scores
from derex.estimators import DeRex
from derex.experiments.problems import Problem

UNTRAINED_RATE = 1e-30  # statistics are gathered, parameters stay as they were drawn
UNTRAINED_STEPS = 100


@dataclass(frozen=True)
class Setting:
    """One cell of a study's grid."""

    objective: str
    k: int
    lambda_r: float | str = 10.0
    control: str = ""  # "", "untrained" or "shuffled"

    @property
    def label(self) -> str:
        weight = f", λ_r = {self.lambda_r}" if self.objective == "derex" else ""
        return f"{self.control or self.objective}, k = {self.k}{weight}"


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fitted model says of every state, and how good that is."""

    setting: Setting
    f: Float[np.ndarray, "s k"]
    bonus: Float[np.ndarray, " s"]
    singular_values: Float[np.ndarray, " k"]
    scores: dict[str, float]


def fit(problem: Problem, encoder: str, setting: Setting, seed: int, **options: Any) -> DeRex:
    """A model trained as the setting says."""
    observations = problem.observations(encoder)
    next_state = problem.next_state
    if setting.control == "shuffled":
        next_state = np.random.default_rng(seed).permutation(next_state)
    if setting.control == "untrained":
        options |= {"learning_rate": UNTRAINED_RATE, "steps": UNTRAINED_STEPS}
    if encoder == "tabular":
        options["n_states"] = problem.world.n_states
    model = DeRex(
        setting.k,
        objective=setting.objective,
        encoder=encoder,
        lambda_r=setting.lambda_r,
        random_state=seed,
        **options,
    )
    return model.fit(observations[problem.state], observations[next_state])


def fit_and_score(problem: Problem, encoder: str, setting: Setting, seed: int, **options: Any) -> Fitted:
    """Train, evaluate at every state, and compare with the exact decomposition of the same data."""
    start = time.perf_counter()
    model = fit(problem, encoder, setting, seed, **options)
    seconds = time.perf_counter() - start
    observations = problem.observations(encoder)
    f, g, bonus = model.transform(observations), model.transform_y(observations), model.bonus(observations)
    signs = aligned_signs(problem, f)
    f, g = f * signs, g * signs
    exact_bonus = problem.exact_bonus(setting.k)
    numbers = {
        "captured_energy": scores.captured_energy(problem.joint, f),
        "trace_ratio": scores.trace_ratio(problem.joint, f, g),
        "largest_off_diagonal": scores.largest_off_diagonal(problem.joint, f, g) if setting.k > 1 else 0.0,
        "spearman": scores.bonus_rank_correlation(bonus, problem.d),
        "spearman_exact": scores.bonus_rank_correlation(exact_bonus, problem.d),
        "seconds": seconds,
    }
    return Fitted(setting, f, bonus, model.singular_values_, numbers)


def aligned_signs(problem: Problem, f: Float[np.ndarray, "s k"]) -> Float[np.ndarray, " k"]:
    """Singular functions have free signs: those that agree with the exact ones, for pictures."""
    left = exact.decompose(problem.joint, f.shape[1]).left
    agreement = np.sum(problem.d[:, None] * left * f, axis=0)
    return np.where(agreement < 0, -1.0, 1.0).astype(np.float32)
