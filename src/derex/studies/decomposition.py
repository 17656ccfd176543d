"""Figures 2 and 3: decompositions learnt from states as ids or as pictures, beside the exact ones and controls."""

from itertools import product
from pathlib import Path

import numpy as np

from derex import report
from derex.decomposition import exact
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import frames
from derex.progress import ProgressBar
from derex.report import Comparison, RepresentationView, Table
from derex.studies import common
from derex.studies.common import Problem, Row, StudyResult, format_interval
from derex.studies.definitions import FIGURE, QUICK, Setting, TabularStudy

KEYS = ("map", "objective", "k", "lambda_r", "control")
SCORES = ("captured_energy", "trace_ratio", "largest_off_diagonal", "spearman", "spearman_exact", "seconds")
COLUMNS = (
    "map", "model", "captured energy", "trace / Σσ", "largest off-diagonal",
    "Spearman(bonus, 1/d)", "the exact one's", "seconds a fit",
)  # fmt: skip
PICTURED_K = 16  # of the comparison with controls

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


def run(study: TabularStudy) -> StudyResult:
    """Data, training, scores, pictures and page, for either figure."""
    common.check_minimum(study, seeds=1)
    for name in study.maps:
        common.named_map(name, 0)  # an unknown one is refused before anything is written
    common.claim_folder(study.out, study.name)
    cases = list(product(study.maps, range(study.seeds), QUICK if study.quick else study.grid))
    rows: list[Row] = []
    learnt: list[RepresentationView] = []
    controls: list[RepresentationView] = []
    with ProgressBar(f"derex reproduce {study.name}", len(cases) + 1) as progress:
        first = common.make_problem(study.maps[0], 0, study.transitions)
        figure, _ = _fit(study, first, FIGURE, 0, progress)
        for name, seed, setting in cases:
            problem = common.make_problem(name, seed, study.transitions)
            if setting.k > problem.largest_k():  # this data has fewer singular functions
                progress.finish()
                continue
            view, scores = _fit(study, problem, setting, seed, progress)
            keys = {"map": name, "seed": seed, "states": int((problem.d > 0).sum())}
            rows.append(keys | setting._asdict() | scores)
            if problem is first and setting.k == PICTURED_K:
                (controls if setting.control else learnt).append(view)
    comparisons = {
        "figure": _compare(study, first, [figure], []),
        "k16": _compare(study, first, learnt, controls),
    }
    for name, comparison in comparisons.items():
        report.save_comparison(study.out / f"{name}.npz", comparison)
    summary = summarise(rows)
    common.write_metrics(study, results=rows, summary=summary)
    shown = ("captured_energy", 4), ("spearman", 3), ("spearman_exact", 3)
    cells = [
        (entry["map"], _model(entry), *(f"{entry[name]['mean']:.{digits}f}" for name, digits in shown))
        for entry in summary
    ]
    columns = ("map", "model", "captured energy", "bonus ~ 1/d", "exact ~ 1/d")
    page = write_report(study, comparisons, summary, rows)
    return StudyResult(page, Table(study.figure, columns, tuple(cells)))


def _fit(
    study: TabularStudy, problem: Problem, setting: Setting, seed: int, progress: ProgressBar
) -> tuple[RepresentationView, dict[str, float]]:
    progress.start(f"{problem.name}, {setting.label}, seed {seed}")
    fitted = common.fit_and_score(problem, study.encoder, setting, seed, steps=study.steps)
    progress.finish(f"energy {fitted[1]['captured_energy']:.4f}")
    return fitted


def summarise(rows: list[Row]) -> list[Row]:
    """One entry for each map and setting: mean, interval and range over seeds of every score."""
    rows = [row | {"lambda_r": str(row["lambda_r"])} for row in rows]
    summary = common.summarise_groups(rows, KEYS, SCORES)
    for entry, members in zip(summary, common.group_rows(rows, KEYS).values(), strict=True):
        gaps = [member["spearman"] - member["spearman_exact"] for member in members]
        entry["spearman_gap"] = {"mean": sum(gaps) / len(gaps), "min": min(gaps)}
    return summary


def _model(entry: Row) -> str:
    weight = f" λ_r={entry['lambda_r']}" if not entry["control"] and entry["objective"] == "derex" else ""
    return f"{entry['control'] or entry['objective']} k={entry['k']}{weight}"


def _compare(
    study: TabularStudy,
    problem: Problem,
    learnt: list[RepresentationView],
    controls: list[RepresentationView],
) -> Comparison:
    """Learnt, exact in both geometries, and the controls, state by state."""
    k, world, exact_views = learnt[0].k, problem.world, []
    for geometry, floor in (("visitation", SIGMA_FLOOR), ("counting", 0.0)):
        d = exact.decompose(problem.joint, k, geometry=geometry)
        bonus = d.bonus(sigma_floor=floor)
        exact_views.append(RepresentationView(f"Exact, {geometry}", d.left, d.singular_values, bonus))
    frame = np.asarray(frames(world))[world.start] if study.encoder == "conv" else None
    grid, views = common.grid_map(world.map), (*learnt, *exact_views, *controls)
    return Comparison(f"{world.map.name}, k = {k}", grid, problem.d, views, frame)


def write_report(
    study: TabularStudy, comparisons: dict[str, Comparison], summary: list[Row], rows: list[Row]
) -> Path:
    """PNGs and the page, from the comparisons and rows alone."""
    figure, pictured, out = comparisons["figure"], comparisons["k16"], study.out
    report.save_panels(figure, out, study.name)
    panels = report.four_panels(figure, out / f"{study.name}.png")
    geometries = report.geometries_figure(pictured, out / "geometries.png")
    report.spectrum_figure(pictured, out / "spectrum.png")
    intervals = ("captured_energy", 4), ("trace_ratio", 3), ("largest_off_diagonal", 3), ("spearman", 3)
    cells = [
        (
            entry["map"],
            _model(entry),
            *(format_interval(entry[name], digits) for name, digits in intervals),
            f"{entry['spearman_exact']['mean']:.3f}",
            f"{entry['seconds']['mean']:.1f}",
        )
        for entry in summary
    ]
    sees = "what the network sees." if study.name == "pixels" else "reference colours of the states."
    caption = (
        f"**A** visitation of a random policy. **B** {sees} **C** the learnt representation, in the reference colours. "
        "**D** the bonus read off its norm."
    )
    sections = [
        report.explorer_section(figure, f"The paper's {study.figure}, to explore (k = 2)"),
        report.image_section(f"{study.figure} as printed", panels, caption),
        report.text_section("How close is it to the exact decomposition?", HOW_TO_READ),
        report.table_section(Table("Learnt against exact", COLUMNS, tuple(cells), ABOUT_SHUFFLED)),
        report.explorer_section(pictured, "Learnt, exact and controls, to explore (k = 16)"),
        report.text_section("Two geometries", WHY_VISITATION),
        report.image_section("Bonus maps and bonus against rarity", geometries),
        report.spectrum_section(pictured, "Singular spectrum"),
    ]
    lead = (
        f"A uniform random policy in **four rooms**, {study.transitions:,} transitions, encoder `{study.encoder}`. "
        "The decomposition is learnt from sampled pairs alone and compared with LAPACK's on the same data."
    )
    quick, seconds = " --quick" if study.quick else "", sum(row["seconds"] for row in rows)
    footer = f"Made by `derex reproduce {study.name}{quick}`; {len(rows)} fits, {seconds:.0f} s of training."
    return report.write_page(
        out / "report.html", f"derex: {study.figure}, {study.name}", lead, sections, footer
    )
