"""Runs the studies behind Figures 2 and 3, and writes their tables, figures and pages."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from derex.decomposition import exact
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import frames
from derex.progress import ProgressBar
from derex.report import (
    Comparison,
    GridMap,
    RepresentationView,
    Table,
    explorer_section,
    four_panels,
    geometries_figure,
    image_section,
    save_comparison,
    save_panels,
    spectrum_figure,
    spectrum_section,
    table_section,
    text_section,
    write_page,
)
from derex.report.statistics import mean_interval
from derex.studies.common import (
    Fitted,
    Problem,
    Setting,
    StudyResult,
    claim_folder,
    fit_and_score,
    format_interval,
    make_problem,
    named_map,
    write_metrics,
)
from derex.studies.definitions import FIGURE, QUICK, PixelsStudy, TabularStudy, resolved

SCORES = ("captured_energy", "trace_ratio", "largest_off_diagonal", "spearman", "spearman_exact", "seconds")
COLUMNS = (
    "map", "model", "captured energy", "trace / Σσ", "largest off-diagonal",
    "Spearman(bonus, 1/d)", "the exact one's", "seconds a fit",
)  # fmt: skip

WHY_VISITATION = """
The exact decomposition is shown in **both geometries** of the method (see `docs/geometries.md`). *Visitation*
(Section 4, batch normalisation) decomposes D^½ P D'^-½; its norm is large where experience is rare, also when truncated
to a few features. *Counting* (Section 3) decomposes D P itself; Theorem 3 gives its norm the same meaning, but only at
full rank and for an invertible P. Truncated, it keeps the directions of the *most* visited states, and its bonus has
the wrong sign: look at the maps side by side.
"""

HOW_TO_READ = """
**Captured energy** is the part of the energy of the best k functions that the span of the learnt ones holds: 1 is
exact. **Trace / Σσ** compares the sum of the learnt singular values with the exact one: above 1, modes are duplicated.
The **largest off-diagonal** of Σ would be 0 exactly. **Spearman** is the rank correlation of the bonus with the inverse
visitation, beside that of the exact decomposition on the same data. *Untrained* is the same network before its first
update; *shuffled* is trained on the same states with their successors permuted.
Means over seeds; in brackets the 95 % t interval.
"""

ABOUT_SHUFFLED = (
    "The *shuffled* control ranks states well although it has nothing to decompose: permuting the successors keeps how "
    "often each state was visited, and functions of unit variance that fit noise are largest where data is thinnest. "
    "What it lacks is captured energy, which is about that of the untrained network."
)


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry a map and setting: mean, interval and worst seed of every score."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["map"], row["objective"], row["k"], str(row["lambda_r"]), row["control"]].append(row)
    summary = []
    for (name, objective, k, lambda_r, control), members in groups.items():
        entry: dict[str, Any] = {
            "map": name, "objective": objective, "k": k, "lambda_r": lambda_r, "control": control,
            "seeds": len(members),
        }  # fmt: skip
        for score in SCORES:
            values = [member[score] for member in members]
            mean, low, high = mean_interval(values)
            entry[score] = {"mean": mean, "low": low, "high": high, "min": min(values), "max": max(values)}
        gaps = [member["spearman"] - member["spearman_exact"] for member in members]
        entry["spearman_gap"] = {"mean": sum(gaps) / len(gaps), "min": min(gaps)}
        summary.append(entry)
    return summary


def terminal_table(summary: list[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The summary in a few columns, a row a setting: means over seeds."""
    columns = ("map", "model", "captured energy", "bonus ~ 1/d", "exact ~ 1/d")
    rows = []
    for entry in summary:
        energy, bonus, exact = (entry[s]["mean"] for s in ("captured_energy", "spearman", "spearman_exact"))
        rows.append((entry["map"], _model(entry), f"{energy:.4f}", f"{bonus:.3f}", f"{exact:.3f}"))
    return columns, tuple(rows)


def _model(entry: dict[str, Any]) -> str:
    weight = f" λ_r={entry['lambda_r']}" if not entry["control"] and entry["objective"] == "derex" else ""
    return f"{entry['control'] or entry['objective']} k={entry['k']}{weight}"


def _cells(entry: dict[str, Any]) -> tuple[str | None, ...]:
    return (
        entry["map"],
        _model(entry),
        format_interval(entry["captured_energy"], 4),
        format_interval(entry["trace_ratio"], 3),
        format_interval(entry["largest_off_diagonal"], 3),
        format_interval(entry["spearman"], 3),
        f"{entry['spearman_exact']['mean']:.3f}",
        f"{entry['seconds']['mean']:.1f}",
    )


def write_report(
    study: TabularStudy | PixelsStudy,
    comparisons: dict[str, Comparison],
    summary: list[dict[str, Any]],
    rows: list[dict[str, Any]],
) -> Path:
    """PNGs and the page, from the saved comparisons and rows alone."""
    figure, pictured = comparisons["figure"], comparisons["k16"]
    out = study.out
    save_panels(figure, out, study.name)
    panels = four_panels(figure, out / f"{study.name}.png")
    geometries = geometries_figure(pictured, out / "geometries.png")
    spectrum_figure(pictured, out / "spectrum.png")
    table = Table("Learnt against exact", COLUMNS, tuple(_cells(entry) for entry in summary), ABOUT_SHUFFLED)
    seconds = sum(row["seconds"] for row in rows)
    sections = [
        explorer_section(figure, f"The paper's {study.figure}, to explore (k = 2)"),
        image_section(
            f"{study.figure} as printed",
            panels,
            "**A** visitation of a random policy. **B** "
            + ("what the network sees." if study.name == "pixels" else "reference colours of the states.")
            + " **C** the learnt representation, in the reference colours. **D** the bonus read off its norm.",
        ),
        text_section("How close is it to the exact decomposition?", HOW_TO_READ),
        table_section(table),
        explorer_section(pictured, "Learnt, exact and controls, to explore (k = 16)"),
        text_section("Two geometries", WHY_VISITATION),
        image_section("Bonus maps and bonus against rarity", geometries),
        spectrum_section(pictured, "Singular spectrum"),
    ]
    lead = (
        f"A uniform random policy in **four rooms**, {study.transitions:,} transitions, encoder `{study.encoder}`. "
        "The decomposition is learnt from sampled pairs alone and compared with LAPACK's on the same data."
    )
    quick = " --quick" if study.quick else ""
    footer = f"Made by `derex reproduce {study.name}{quick}`; {len(rows)} fits, {seconds:.0f} s of training."
    return write_page(out / "report.html", f"derex: {study.figure}, {study.name}", lead, sections, footer)


PICTURED_K = 16  # of the comparison with controls

Study = TabularStudy | PixelsStudy


def run(study: Study) -> StudyResult:
    """Data, training, scores, pictures and page; everything lands in `study.out`."""
    if study.seeds < 1:
        raise ValueError(f"--seeds: expected at least 1, got {study.seeds}.")
    for name in study.maps:
        named_map(name, 0)  # an unknown one is refused before anything is written
    claim_folder(study.out, study.name)
    config = resolved(study)
    cells = QUICK if study.quick else config.grid
    settings = [Setting(*cell) for cell in cells]
    total = len(config.maps) * config.seeds * len(settings) + 1
    with ProgressBar(f"derex reproduce {study.name}", total) as progress:
        first = make_problem(config.maps[0], 0, config.transitions)
        figure = _fit(config, first, Setting(*FIGURE), 0, progress)
        rows, pictured = _sweep(config, settings, first, progress)
    comparisons = {
        "figure": _comparison(config, first, [figure]),
        "k16": _comparison(config, first, pictured),
    }
    for name, comparison in comparisons.items():
        save_comparison(config.out / f"{name}.npz", comparison)
    summary = summarise(rows)
    write_metrics(config.out, study.name, config, {"results": rows, "summary": summary})
    page = write_report(config, comparisons, summary, rows)
    columns, cells = terminal_table(summary)
    return StudyResult(page=page, columns=columns, rows=cells)


def _sweep(
    config: Study, settings: list[Setting], first: Problem, progress: ProgressBar
) -> tuple[list[dict[str, Any]], list[Fitted]]:
    """Every map, seed and setting; also the fits of the first problem that are pictured."""
    rows: list[dict[str, Any]] = []
    pictured: list[Fitted] = []
    for name in config.maps:
        for seed in range(config.seeds):
            problem = (
                first if (name, seed) == (config.maps[0], 0) else make_problem(name, seed, config.transitions)
            )
            for setting in settings:
                if setting.k > problem.largest_k():  # this data has fewer singular functions
                    progress.finish()
                    continue
                fitted = _fit(config, problem, setting, seed, progress)
                rows.append(_row(problem, setting, seed, fitted))
                if problem is first and setting.k == PICTURED_K:
                    pictured.append(fitted)
    return rows, pictured


def _fit(config: Study, problem: Problem, setting: Setting, seed: int, progress: ProgressBar) -> Fitted:
    progress.start(f"{problem.name}, {setting.label}, seed {seed}")
    fitted = fit_and_score(problem, config.encoder, setting, seed, steps=config.steps)
    progress.finish(f"energy {fitted.scores['captured_energy']:.4f}")
    return fitted


def _row(problem: Problem, setting: Setting, seed: int, fitted: Fitted) -> dict[str, Any]:
    keys = {"map": problem.name, "seed": seed, "states": int((problem.d > 0).sum())}
    cell = {
        "objective": setting.objective,
        "k": setting.k,
        "lambda_r": setting.lambda_r,
        "control": setting.control,
    }
    return keys | cell | fitted.scores


def _comparison(config: Study, problem: Problem, fits: list[Fitted]) -> Comparison:
    """Learnt, exact in both geometries, and the controls, state by state."""
    k = fits[0].setting.k
    learnt = [fitted for fitted in fits if not fitted.setting.control]
    controls = [fitted for fitted in fits if fitted.setting.control]
    views = [_view(f"De-Rex ({fitted.setting.objective}), learnt", fitted) for fitted in learnt]
    for geometry in ("visitation", "counting"):
        d = exact.decompose(problem.joint, k, geometry=geometry)
        floor = SIGMA_FLOOR if geometry == "visitation" else 0.0
        views.append(
            RepresentationView(f"Exact, {geometry}", d.left, d.singular_values, d.bonus(sigma_floor=floor))
        )
    views += [_view(f"Control: {fitted.setting.control}", fitted) for fitted in controls]
    world = problem.world
    grid = GridMap(world.map.name, tuple(world.map.rows), np.asarray(world.positions))
    frame = np.asarray(frames(world))[world.start] if config.encoder == "conv" else None
    return Comparison(f"{world.map.name}, k = {k}", grid, problem.d, tuple(views), frame)


def _view(label: str, fitted: Fitted) -> RepresentationView:
    return RepresentationView(
        label, fitted.f.astype(np.float64), fitted.singular_values, fitted.bonus.astype(np.float64)
    )
