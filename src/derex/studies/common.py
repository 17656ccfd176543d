"""What the studies share: results, output folders, summaries over seeds, enumerable problems, and scored fits."""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from derex._text import to_plain
from derex._version import __version__
from derex.decomposition import exact, scores
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import FOUR_ROOMS, GridWorld, Map, frames, random_maze, random_rooms
from derex.estimators import DeRex, FitWarning
from derex.report import GridMap, RepresentationView, Table
from derex.report.files import read_json, write_atomically
from derex.report.statistics import mean_interval
from derex.studies.definitions import Setting

METRICS = "metrics.json"
UNFINISHED = (
    "cases/study.json"  # marks the folder of a study whose finished cases are kept, before there are metrics
)
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")

Row = dict[str, Any]


class StudyResult(NamedTuple):
    """Where a study's page is, and the few numbers worth a line on the terminal."""

    page: Path
    """the HTML page to open"""
    table: Table
    """cells as they are printed"""


def check_minimum(study: Any, **least: int) -> None:
    """Refuses options below the given values."""
    for name, smallest in least.items():
        if getattr(study, name) < smallest:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}: expected at least {smallest}, got {getattr(study, name)}.")


def claim_folder(folder: Path, study: str) -> None:
    """Creates the folder, or takes it over from an earlier run of the same study; refuses anybody else's."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    claims = [folder / name for name in (METRICS, UNFINISHED) if (folder / name).exists()]
    if claims:
        owner = (read_json(claims[0]) or {}).get("study")
        if owner != study:
            raise FileExistsError(
                f"--out: {folder} holds {'another study' if owner is None else repr(owner)}; choose another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"--out: {folder} is not empty and not of this study; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)


def start_cases(study: Any) -> None:
    """Marks the output folder as that of an unfinished run of the study, whose finished cases are in cases/."""
    write_atomically(study.out / UNFINISHED, json.dumps({"study": study.name}).encode())


def report_damage(path: Path, consequence: str) -> None:
    """Prints that a file of a finished case cannot be used."""
    print(f"derex: {path} is missing or damaged; {consequence}.", file=sys.stderr, flush=True)


def write_metrics(study: Any, **body: Any) -> Path:
    """Writes metrics.json: results, and what is needed to get them again: resolved options and versions."""
    device = jax.local_devices()[0]
    versions = {"derex": __version__, "python": platform.python_version()}
    content = {
        "study": study.name,
        "config": study,
        "versions": versions | {name: version(name) for name in PACKAGES},
        "device": f"{device.platform}: {device.device_kind}",
        **body,
    }
    text = json.dumps(to_plain(content), indent=1, allow_nan=False) + "\n"
    return write_atomically(study.out / METRICS, text.encode())


def group_rows(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values of the keys, in the order in which these first appear."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def summarise_groups(rows: Iterable[Row], keys: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Summarises the rows of each group: mean over seeds, 95 % t interval and range of every score.

    Args:
        rows: one for each seed and setting.
        keys: names whose values identify a setting.
        names: scores; None where a row has none, and left out of the summary where no row has one.
    """
    summary = []
    for values, members in group_rows(rows, keys).items():
        entry: Row = {**dict(zip(keys, values, strict=True)), "seeds": len(members)}
        for name in names:
            known = [member[name] for member in members if member[name] is not None]
            if known:
                entry[name] = mean_interval_of(known) | {"min": min(known), "max": max(known)}
        summary.append(entry)
    return summary


def mean_interval_of(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % t interval, as metrics.json has them."""
    return dict(zip(("mean", "low", "high"), mean_interval(values), strict=True))


def format_interval(score: dict[str, float] | None, digits: int) -> str | None:
    """Formats as "mean [low, high]", or the mean alone if the interval is a point; None for no score."""
    if score is None:
        return None
    mean, low, high = (f"{score[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return mean if score["low"] == score["high"] else f"{mean} [{low}, {high}]"


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

    def observations(self, encoder: str) -> np.ndarray:
        """What the encoder sees of each state: its id, its coordinates, or its picture."""
        states = np.arange(self.world.n_states)
        if encoder == "tabular":
            return states.astype(np.int32)
        return np.asarray(frames(self.world) if encoder == "conv" else self.world.coordinates(states))


def grid_map(map_: Map) -> GridMap:
    """The map as figures have it."""
    return GridMap(map_.name, tuple(map_.rows), np.asarray(map_.positions))


@lru_cache(maxsize=1)  # the fits of one problem follow one another
def make_problem(name: str, seed: int, transitions: int, closed_room: int | None = None) -> Problem:
    """Samples a problem; with `closed_room` the agent cannot enter that room, so the data has nothing of it."""
    map_, horizon = named_map(name, seed)
    world = GridWorld(map_)
    walked = world if closed_room is None else world.close(world.rooms == closed_room)
    data: Any = walked.sample_transitions(jax.random.key(seed), transitions, horizon=horizon)
    return Problem(name, world, np.asarray(data.state), np.asarray(data.next_state))


def fit(problem: Problem, encoder: str, setting: Setting, seed: int, **options: Any) -> DeRex:
    """Trains a model as the setting says."""
    observations, next_state = problem.observations(encoder), problem.next_state
    if setting.control == "shuffled":
        next_state = np.random.default_rng(seed).permutation(next_state)
    if setting.control == "untrained":  # statistics are gathered, parameters stay as they were drawn
        options |= {"learning_rate": 1e-30, "steps": 100}
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
    with ignore_fit_warnings():
        return model.fit(observations[problem.state], observations[next_state])


@contextmanager
def ignore_fit_warnings() -> Iterator[None]:
    """Studies fit controls too, and say in their reports what a fit is worth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        yield


def fit_and_score(
    problem: Problem, encoder: str, setting: Setting, seed: int, **options: Any
) -> tuple[RepresentationView, dict[str, float]]:
    """Trains, evaluates at every state, and compares with the exact decomposition of the same data."""
    start = time.perf_counter()
    model = fit(problem, encoder, setting, seed, **options)
    seconds = time.perf_counter() - start
    observations, known = problem.observations(encoder), exact.decompose(problem.joint, setting.k)
    f, g, bonus = model.transform(observations), model.transform_y(observations), model.bonus(observations)
    # Singular functions have free signs: those that agree with the exact ones, for pictures.
    agreement = np.sum(problem.d[:, None] * known.left * f, axis=0)
    signs = np.where(agreement < 0, -1.0, 1.0).astype(np.float32)
    f, g = f * signs, g * signs
    exact_bonus = known.bonus(sigma_floor=SIGMA_FLOOR)  # the floor on σ that the learnt one has
    numbers = {
        "captured_energy": scores.captured_energy(problem.joint, f),
        "trace_ratio": scores.trace_ratio(problem.joint, f, g),
        "largest_off_diagonal": scores.largest_off_diagonal(problem.joint, f, g) if setting.k > 1 else 0.0,
        "spearman": scores.bonus_rank_correlation(bonus, problem.d),
        "spearman_exact": scores.bonus_rank_correlation(exact_bonus, problem.d),
        "seconds": seconds,
    }
    label = f"Control: {setting.control}" if setting.control else f"De-Rex ({setting.objective}), learnt"
    return RepresentationView(label, f, model.singular_values_, bonus), numbers
