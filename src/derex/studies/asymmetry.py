"""Runs the comparison of De-Rex and graph drawing under one-way doors."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from derex.decomposition import exact
from derex.envs import GridWorld, one_way_doors, random_rooms
from derex.progress import ProgressBar
from derex.report import (
    Curve,
    Table,
    curves_figure,
    curves_section,
    image_section,
    table_section,
    text_section,
    write_page,
)
from derex.report.statistics import mean_interval
from derex.studies.common import (
    Problem,
    Setting,
    StudyResult,
    claim_folder,
    fit,
    write_metrics,
)
from derex.studies.definitions import AsymmetryStudy, resolved

LABELS = {
    "derex": "De-Rex, learnt",
    "nested": "De-Rex (nested), learnt",
    "laplacian": "graph drawing, learnt",
    "exact-svd": "SVD, exact",
    "exact-laplacian": "Laplacian, exact",
}
DOORS_LABEL, ERROR_LABEL = "one-way doors", "relative error of the best linear value function"

READING = """
For every state j there is a value function v = (I - γP)⁻¹ e_j: that of a reward at j alone. Each is fitted by least
squares, weighted with the visitation d, from a constant and the k features of a method; the error is the part of its
standard deviation that stays unexplained, averaged over all j. No features explain everything at k far below the number
of states, and without one-way doors the walk is nearly reversible: the two decompositions nearly agree there.
Graph drawing spends one of its k functions on the constant, which every method is given anyway; the exact Laplacian's k
functions leave it out, so the *exact* columns compare like with like.
**Excess** is the error of graph drawing minus that of De-Rex on the *same* mazes: positive where keeping the direction
of the dynamics pays. In brackets the 95 % t interval over mazes.
"""


def run(study: AsymmetryStudy) -> StudyResult:
    """More and more one-way doors; every method on the same mazes and data."""
    if study.seeds < 1:
        raise ValueError(f"--seeds: expected at least 1, got {study.seeds}.")
    if not 0.0 < study.gamma < 1.0:
        raise ValueError(f"--gamma: expected a discount between 0 and 1, got {study.gamma}.")
    claim_folder(study.out, study.name)
    config = resolved(study)
    rows: list[dict[str, Any]] = []
    with ProgressBar("derex reproduce asymmetry", len(config.doors) * config.seeds) as progress:
        for doors in config.doors:
            for seed in range(config.seeds):
                progress.start(f"{doors} one-way doors, maze {seed}")
                errors = _errors(config, doors, seed)
                rows += [{"doors": doors, "seed": seed, "method": m, "error": e} for m, e in errors.items()]
                progress.finish(f"De-Rex {errors['derex']:.4f}, graph drawing {errors['laplacian']:.4f}")
    summary = _summary(config, rows)
    write_metrics(config.out, study.name, config, {"results": rows, "summary": summary})
    columns, cells = _table(summary)
    return StudyResult(page=_report(config, rows, columns, cells), columns=columns, rows=cells)


def make_maze(config: AsymmetryStudy, doors: int, seed: int) -> Problem:
    """4×4 small rooms, `doors` of whose 24 doors are one-way, and a random walk in them."""
    rooms = random_rooms(seed, rows=4, cols=4, room=3)
    world = GridWorld(one_way_doors(rooms, doors, seed) if doors else rooms)
    data: Any = world.sample_transitions(jax.random.key(seed), config.transitions, horizon=config.horizon)
    return Problem(f"{doors} doors", world, np.asarray(data.state), np.asarray(data.next_state))


def value_error(
    features: Float[np.ndarray, "s k"], values: Float[np.ndarray, "s m"], d: Float[np.ndarray, " s"]
) -> float:
    """Root of the unexplained part of the variance of each value function under d, averaged over them."""
    weight = np.sqrt(d)[:, None]
    basis = weight * np.column_stack([np.ones(len(d)), features])
    coefficients = np.linalg.lstsq(basis, weight * values, rcond=None)[0]
    unexplained = np.sum((weight * values - basis @ coefficients) ** 2, axis=0)
    variance = np.sum((weight * (values - d @ values)) ** 2, axis=0)
    return float(np.mean(np.sqrt(unexplained / variance)))


def _errors(config: AsymmetryStudy, doors: int, seed: int) -> dict[str, float]:
    problem = make_maze(config, doors, seed)
    P = exact.policy_transition_matrix(problem.world.transition_tensor())
    values = exact.successor_representation(P, config.gamma)
    states = problem.observations("tabular")
    features = {
        method: fit(problem, "tabular", Setting(method, config.k), seed, steps=config.steps).transform(states)
        for method in config.methods
    }
    features["exact-svd"] = exact.decompose(problem.joint, config.k).left
    features["exact-laplacian"] = exact.laplacian_functions(problem.joint, config.k)
    return {name: value_error(f.astype(np.float64), values, problem.d) for name, f in features.items()}


def _of(rows: list[dict[str, Any]], method: str, doors: int) -> list[float]:
    return [row["error"] for row in rows if (row["method"], row["doors"]) == (method, doors)]


def _summary(config: AsymmetryStudy, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    summary = []
    for doors in config.doors:
        entry: dict[str, Any] = {"doors": doors}
        for method in LABELS:
            entry[method] = mean_interval(_of(rows, method, doors))
        for name, (worse, better) in {
            "excess": ("laplacian", "derex"),
            "excess_exact": ("exact-laplacian", "exact-svd"),
        }.items():
            pairs = zip(_of(rows, worse, doors), _of(rows, better, doors), strict=True)
            entry[name] = mean_interval([a - b for a, b in pairs])
        summary.append(entry)
    return summary


def _table(summary: list[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    columns = (DOORS_LABEL, *LABELS.values(), "excess, learnt", "excess, exact")
    names = (*LABELS, "excess", "excess_exact")
    cells = []
    for entry in summary:
        numbers = [(*entry[name], name.startswith("excess")) for name in names]
        cells.append((str(entry["doors"]), *(_number(*each) for each in numbers)))
    return columns, tuple(cells)


def _number(mean: float, low: float, high: float, signed: bool) -> str:
    sign = "+" if signed else ""
    return f"{mean:{sign}.4f} [{low:{sign}.4f}, {high:{sign}.4f}]"


def _report(
    config: AsymmetryStudy,
    rows: list[dict[str, Any]],
    columns: tuple[str, ...],
    cells: tuple[tuple[str, ...], ...],
) -> Path:
    curves = []
    for method, label in LABELS.items():
        points = np.array([mean_interval(_of(rows, method, doors)) for doors in config.doors])
        curves.append(Curve(label, np.array(config.doors, float), points[:, 0], points[:, 1], points[:, 2]))
    title = f"k = {config.k}, γ = {config.gamma}, {config.seeds} mazes"
    picture = curves_figure(curves, config.out / "asymmetry.png", DOORS_LABEL, ERROR_LABEL, title)
    sections = [
        curves_section("Error as doors become one-way", curves, DOORS_LABEL, ERROR_LABEL),
        text_section("How to read it", READING),
        table_section(Table("Errors", columns, cells)),
        image_section("The same as a picture", picture),
    ]
    lead = (
        "Graph drawing decomposes a *symmetrised* Laplacian; De-Rex decomposes the dynamics as they are. "
        "How well do their features represent value functions as the dynamics lose their symmetry?"
    )
    footer = f"Made by `derex reproduce asymmetry{' --quick' if config.quick else ''}`."
    return write_page(config.out / "report.html", "derex: why an SVD", lead, sections, footer)
