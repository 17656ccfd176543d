"""One-way doors: De-Rex against graph drawing as the dynamics lose their symmetry."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from derex import report
from derex.decomposition import exact
from derex.envs import GridWorld, one_way_doors, random_rooms
from derex.progress import ProgressBar
from derex.report import Curve, Table
from derex.report.statistics import mean_interval
from derex.studies import common
from derex.studies.common import Problem, Row, StudyResult
from derex.studies.definitions import AsymmetryStudy, Setting

LABELS = {
    "derex": "De-Rex, learnt",
    "nested": "De-Rex (nested), learnt",
    "laplacian": "graph drawing, learnt",
    "exact-svd": "SVD, exact",
    "exact-laplacian": "Laplacian, exact",
}
EXCESSES = {"excess": ("laplacian", "derex"), "excess_exact": ("exact-laplacian", "exact-svd")}
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
    common.check_minimum(study, seeds=1)
    if not 0.0 < study.gamma < 1.0:
        raise ValueError(f"--gamma: expected a discount between 0 and 1, got {study.gamma}.")
    common.claim_folder(study.out, study.name)
    rows: list[Row] = []
    with ProgressBar("derex reproduce asymmetry", len(study.doors) * study.seeds) as progress:
        for doors in study.doors:
            for seed in range(study.seeds):
                progress.start(f"{doors} one-way doors, maze {seed}")
                errors = _compute_errors(study, doors, seed)
                rows += [{"doors": doors, "seed": seed, "method": m, "error": e} for m, e in errors.items()]
                progress.finish(f"De-Rex {errors['derex']:.4f}, graph drawing {errors['laplacian']:.4f}")
    errors_of = {
        key: [row["error"] for row in members]
        for key, members in common.group_rows(rows, ("method", "doors")).items()
    }
    summary = [_summarise(errors_of, doors) for doors in study.doors]
    common.write_metrics(study, results=rows, summary=summary)
    columns = (DOORS_LABEL, *LABELS.values(), "excess, learnt", "excess, exact")
    cells = [
        (
            str(entry["doors"]),
            *("{:.4f} [{:.4f}, {:.4f}]".format(*entry[name]) for name in LABELS),
            *("{:+.4f} [{:+.4f}, {:+.4f}]".format(*entry[name]) for name in EXCESSES),
        )
        for entry in summary
    ]
    table = Table("Errors", columns, tuple(cells))
    return StudyResult(_write_report(study, summary, table), table)


def make_maze(study: AsymmetryStudy, doors: int, seed: int) -> Problem:
    """4×4 small rooms, `doors` of whose 24 doors are one-way, and a random walk in them."""
    rooms = random_rooms(seed, rows=4, cols=4, room=3)
    world = GridWorld(one_way_doors(rooms, doors, seed) if doors else rooms)
    data: Any = world.sample_transitions(jax.random.key(seed), study.transitions, horizon=study.horizon)
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


def _compute_errors(study: AsymmetryStudy, doors: int, seed: int) -> dict[str, float]:
    problem = make_maze(study, doors, seed)
    P = exact.policy_transition_matrix(problem.world.transition_tensor())
    values = exact.successor_representation(P, study.gamma)
    states = problem.observations("tabular")
    features = {}
    for method in study.methods:
        model = common.fit(problem, "tabular", Setting(method, study.k), seed, steps=study.steps)
        features[method] = model.transform(states)
    features["exact-svd"] = exact.decompose(problem.joint, study.k).left
    features["exact-laplacian"] = exact.laplacian_functions(problem.joint, study.k)
    return {name: value_error(f.astype(np.float64), values, problem.d) for name, f in features.items()}


def _summarise(errors: dict[tuple[Any, ...], list[float]], doors: int) -> Row:
    """Mean and interval over mazes of each method's error, and of the differences on the same maze."""
    entry: Row = {"doors": doors}
    for method in LABELS:
        entry[method] = mean_interval(errors[method, doors])
    for name, (worse, better) in EXCESSES.items():
        pairs = zip(errors[worse, doors], errors[better, doors], strict=True)
        entry[name] = mean_interval([a - b for a, b in pairs])
    return entry


def _write_report(study: AsymmetryStudy, summary: list[Row], table: Table) -> Path:
    curves = [
        Curve(label, np.array(study.doors, float), *np.array([entry[method] for entry in summary]).T)
        for method, label in LABELS.items()
    ]
    title = f"k = {study.k}, γ = {study.gamma}, {study.seeds} mazes"
    picture = report.curves_figure(curves, study.out / "asymmetry.png", DOORS_LABEL, ERROR_LABEL, title)
    sections = [
        report.curves_section("Error as doors become one-way", curves, DOORS_LABEL, ERROR_LABEL),
        report.text_section("How to read it", READING),
        report.table_section(table),
        report.image_section("The same as a picture", picture),
    ]
    lead = (
        "Graph drawing decomposes a *symmetrised* Laplacian; De-Rex decomposes the dynamics as they are. "
        "How well do their features represent value functions as the dynamics lose their symmetry?"
    )
    footer = f"Made by `derex reproduce asymmetry{' --quick' if study.quick else ''}`."
    return report.write_page(study.out / "report.html", "derex: why an SVD", lead, sections, footer)
