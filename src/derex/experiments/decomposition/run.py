"""Runs the studies behind Figures 2 and 3."""

from typing import Any

import numpy as np

from derex.decomposition import exact
from derex.decomposition.bonus import SIGMA_FLOOR
from derex.envs import frames
from derex.experiments.decomposition.analysis import summarise, terminal_table, write_report
from derex.experiments.decomposition.definition import FIGURE, QUICK, PixelsStudy, TabularStudy
from derex.experiments.evaluation import Fitted, Setting, fit_and_score
from derex.experiments.output import claim_folder, write_metrics
from derex.experiments.problems import Problem, make_problem, named_map
from derex.experiments.progress import StudyProgress
from derex.experiments.quick import resolved
from derex.experiments.result import StudyResult
from derex.report import Comparison, GridMap, View, save_comparison

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
    with StudyProgress(f"derex reproduce {study.name}", total) as progress:
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
    config: Study, settings: list[Setting], first: Problem, progress: StudyProgress
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
                    progress.skip()
                    continue
                fitted = _fit(config, problem, setting, seed, progress)
                rows.append(_row(problem, setting, seed, fitted))
                if problem is first and setting.k == PICTURED_K:
                    pictured.append(fitted)
    return rows, pictured


def _fit(config: Study, problem: Problem, setting: Setting, seed: int, progress: StudyProgress) -> Fitted:
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
        views.append(View(f"Exact, {geometry}", d.left, d.singular_values, d.bonus(floor=floor)))
    views += [_view(f"Control: {fitted.setting.control}", fitted) for fitted in controls]
    world = problem.world
    grid = GridMap(world.map.name, tuple(world.map.rows), np.asarray(world.positions))
    frame = np.asarray(frames(world))[world.start] if config.encoder == "conv" else None
    return Comparison(f"{world.map.name}, k = {k}", grid, problem.d, tuple(views), frame)


def _view(label: str, fitted: Fitted) -> View:
    return View(label, fitted.f.astype(np.float64), fitted.singular_values, fitted.bonus.astype(np.float64))
