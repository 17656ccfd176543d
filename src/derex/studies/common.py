"""What the studies share: results, output folders, kept cases, enumerable problems, and scored fits."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from derex._text import to_plain
from derex._version import __version__
from derex.decomposition import exact, scores
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import FOUR_ROOMS, GridWorld, Map, frames, random_maze, random_rooms
from derex.estimators import DeRex
from derex.report.files import write_atomically


@dataclass(frozen=True)
class StudyResult:
    """Where a study's page is and the few numbers worth a line on the terminal."""

    page: Path
    """the HTML page to open"""
    columns: tuple[str, ...]
    """heads of the table, for instance ("what", "learnt", "exact")"""
    rows: tuple[tuple[str, ...], ...]
    """cells as they are printed, one for each column"""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"rows: {row} has {len(row)} cells and there are {len(self.columns)} columns "
                    f"{self.columns}; give one cell for each column."
                )


METRICS = "metrics.json"
UNFINISHED = "cases/study.json"  # whose finished parts are kept, before there are metrics
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")


def claim_folder(folder: Path, study: str) -> None:
    """Create the folder, or take it over from an earlier run of the same study; refuse anybody else's."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    claims = [folder / name for name in (METRICS, UNFINISHED) if (folder / name).exists()]
    if claims:
        owner = _owner(claims[0])
        if owner != study:
            raise FileExistsError(
                f"--out: {folder} holds {'another study' if owner is None else repr(owner)}; choose another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"--out: {folder} is not empty and not of this study; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)


def write_metrics(folder: Path, study: str, config: Any, body: dict[str, Any]) -> Path:
    """metrics.json with what is needed to run it again: resolved config and versions."""
    content = {
        "study": study,
        "config": config,
        "versions": {"derex": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "device": _device(),
        **body,
    }
    text = json.dumps(to_plain(content), indent=1, allow_nan=False) + "\n"
    return write_atomically(folder / METRICS, text.encode())


def _owner(metrics: Path) -> str | None:
    try:
        return json.loads(metrics.read_text()).get("study")
    except (ValueError, AttributeError):
        return None


def _device() -> str:
    device = jax.local_devices()[0]
    return f"{device.platform}: {device.device_kind}"


def start_cases(folder: Path, study: str) -> Path:
    """The folder of a study's finished cases; marks `folder` as that of an unfinished run of this study."""
    write_atomically(folder / UNFINISHED, json.dumps({"study": study}).encode())
    return folder / "cases"


def report_damage(path: Path, consequence: str) -> None:
    """Prints that a file of a finished case cannot be used."""
    print(f"derex: {path} is missing or damaged; {consequence}.", file=sys.stderr, flush=True)


def format_interval(score: dict[str, float] | None, digits: int) -> str | None:
    """ "mean [low, high]", or the mean alone if the interval is a point; None for a score that is not defined."""
    if score is None:
        return None
    text = f"{score['mean']:.{digits}f}"
    if score["low"] == score["high"]:
        return text
    return f"{text} [{score['low']:.{digits}f}, {score['high']:.{digits}f}]"


FRESH_MAPS = 100  # generator seeds of mazes start here


def named_map(name: str, seed: int) -> tuple[Map, int]:
    """A map and the horizon of its episodes. Mazes and rooms are new for every seed and have one-way doors."""
    if name == "four-rooms":
        return FOUR_ROOMS, 100
    if name == "maze":
        return random_maze(FRESH_MAPS + seed, size=17, loops=0.2, one_way=0.2), 300
    if name == "rooms":
        return random_rooms(FRESH_MAPS + seed, rows=3, cols=3, room=4, one_way=0.5), 100
    raise ValueError(f"maps: expected 'four-rooms', 'maze' or 'rooms', got {name!r}.")


@dataclass(frozen=True, eq=False)
class Problem:
    """Transitions of the uniform random policy in a grid world, as state ids."""

    name: str
    world: GridWorld
    state: Int[np.ndarray, " n"]
    next_state: Int[np.ndarray, " n"]

    @cached_property
    def joint(self) -> Float[np.ndarray, "s s"]:
        """A_n of this data set (Section 3)."""
        size = self.world.n_states
        return np.asarray(exact.empirical_joint(self.state, self.next_state, size, size))

    @cached_property
    def d(self) -> Float[np.ndarray, " s"]:
        """Visitation of each state in this data set."""
        return self.joint.sum(axis=1)

    def largest_k(self) -> int:
        """Most singular functions that the data has."""
        return int(min((self.d > 0).sum(), (self.joint.sum(axis=0) > 0).sum())) - 1

    def exact_bonus(self, k: int) -> Float[np.ndarray, " s"]:
        """The bonus of the exact truncated decomposition, with the floor on σ that the learnt one has."""
        return exact.decompose(self.joint, k).bonus(sigma_floor=SIGMA_FLOOR)

    def observations(self, encoder: str) -> np.ndarray:
        """What the encoder sees of each state: its id, its coordinates, or its picture."""
        states = np.arange(self.world.n_states)
        if encoder == "tabular":
            return states.astype(np.int32)
        return np.asarray(frames(self.world) if encoder == "conv" else self.world.coordinates(states))


def make_problem(name: str, seed: int, transitions: int, closed_room: int | None = None) -> Problem:
    """Sample a problem; with `closed_room` the agent cannot enter that room, so the data has nothing of it."""
    map_, horizon = named_map(name, seed)
    world = GridWorld(map_)
    walked = world if closed_room is None else world.close(world.rooms == closed_room)
    data: Any = walked.sample_transitions(jax.random.key(seed), transitions, horizon=horizon)
    return Problem(name, world, np.asarray(data.state), np.asarray(data.next_state))


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
        verbose=False,
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
