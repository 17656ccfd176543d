"""Runs the study of states never trained on."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from derex.decomposition.scores import auroc
from derex.progress import ProgressBar
from derex.report import (
    Comparison,
    GridMap,
    RepresentationView,
    Table,
    explorer_section,
    geometries_figure,
    image_section,
    save_comparison,
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
    make_problem,
    write_metrics,
)
from derex.studies.definitions import UnseenStudy, resolved

COLUMNS = ("encoder", "objective", "AUROC of the bonus", "of the norm alone", "untrained", "fits")

WHY = """
A network trained on part of the world returns, for the rest, whatever its weights happen to give. On pictures that is
often close to an *average* representation, with a small norm: the norm alone can rank the unseen room *below* the
states that were visited (compare the columns). What tells the room apart are the features in front of the last layer:
part of them is spanned by no training row. `DeRex.bonus` measures that part and raises the bonus where it is larger
than fresh visits to the training states show (`derex.decomposition.bonus`); other bonuses are left as they are.
With coordinates as input the network extrapolates its slowest modes, and the norm alone does better.
"""


def run(study: UnseenStudy) -> StudyResult:
    """Leave out each room, train, and ask which states the bonus calls new."""
    if study.seeds < 1:
        raise ValueError(f"--seeds: expected at least 1, got {study.seeds}.")
    if not set(study.rooms) <= {1, 2, 3}:
        raise ValueError(f"--rooms: four rooms has rooms 1, 2 and 3 to leave out, got {study.rooms}.")
    claim_folder(study.out, study.name)
    config = resolved(study)
    cases = [
        (encoder, objective, room, seed)
        for encoder in config.encoders
        for objective in config.objectives
        for room in config.rooms
        for seed in range(config.seeds)
    ]
    rows, pictures = [], {}
    with ProgressBar("derex reproduce unseen", len(cases)) as progress:
        for encoder, objective, room, seed in cases:
            progress.start(f"{encoder}, {objective}, without room {room}, seed {seed}")
            problem = make_problem("four-rooms", seed, config.transitions, closed_room=room)
            row, comparison = _case(config, problem, encoder, objective, room, seed)
            rows.append(row)
            pictures.setdefault(encoder, comparison)
            progress.finish(f"AUROC {row['auroc']:.3f}")
    summary = _summary(rows)
    write_metrics(config.out, study.name, config, {"results": rows, "summary": summary})
    cells = tuple(map(_cells, summary))
    return StudyResult(page=_report(config, pictures, cells), columns=COLUMNS, rows=cells)


def _case(
    config: UnseenStudy, problem: Problem, encoder: str, objective: str, room: int, seed: int
) -> tuple[dict[str, Any], Comparison]:
    """One trained model and one untrained, scored with and without the guard."""
    observations = problem.observations(encoder)
    unseen = problem.d == 0
    views, aurocs = [], {}
    for control in ("", "untrained"):
        setting = Setting(objective, config.k, control=control)
        model = fit(problem, encoder, setting, seed, steps=config.steps)
        f = model.transform(observations).astype(np.float64)
        for guarded in (True, False):
            bonus = model.set_params(novelty=guarded).bonus(observations).astype(np.float64)
            label = f"{'Bonus' if guarded else 'Norm alone'}{', untrained' if control else ''}"
            aurocs[label] = auroc(bonus[unseen], bonus[~unseen])
            views.append(RepresentationView(label, f, model.singular_values_, bonus))
    row = {
        "encoder": encoder,
        "objective": objective,
        "room": room,
        "seed": seed,
        "unseen_states": int(unseen.sum()),
    }
    row |= {
        "auroc": aurocs["Bonus"],
        "auroc_norm": aurocs["Norm alone"],
        "auroc_untrained": aurocs["Bonus, untrained"],
    }
    grid = GridMap(problem.world.map.name, tuple(problem.world.map.rows), np.asarray(problem.world.positions))
    title = f"{encoder}, {objective}, without room {room}"
    return row, Comparison(title, grid, problem.d, tuple(views))


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row["encoder"], row["objective"]].append(row)
    summary = []
    for (encoder, objective), members in groups.items():
        entry: dict[str, Any] = {"encoder": encoder, "objective": objective, "fits": len(members)}
        for score in ("auroc", "auroc_norm", "auroc_untrained"):
            values = [member[score] for member in members]
            by_seed = defaultdict(
                list
            )  # rooms are the same ones for every seed: seeds are the independent runs
            for member in members:
                by_seed[member["seed"]].append(member[score])
            mean, low, high = mean_interval([float(np.mean(each)) for each in by_seed.values()])
            entry[score] = {"mean": mean, "low": max(low, 0.0), "high": min(high, 1.0), "min": min(values)}
        summary.append(entry)
    return summary


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    scores = [
        f"{entry[name]['mean']:.3f} [{entry[name]['low']:.3f}, {entry[name]['high']:.3f}]"
        for name in ("auroc", "auroc_norm", "auroc_untrained")
    ]
    return (entry["encoder"], entry["objective"], *scores, str(entry["fits"]))


def _report(config: UnseenStudy, pictures: dict[str, Comparison], cells: tuple[tuple[str, ...], ...]) -> Path:
    sections = [
        table_section(Table("AUROC, unseen room against seen states", COLUMNS, cells)),
        text_section("Why", WHY),
    ]
    for encoder, comparison in pictures.items():
        save_comparison(config.out / f"{encoder}.npz", comparison)
        picture = geometries_figure(comparison, config.out / f"{encoder}.png")
        sections.append(explorer_section(comparison, f"{encoder}: {comparison.title}"))
        sections.append(image_section(f"{encoder}: bonus with and without the guard", picture))
    lead = (
        "A room of four rooms is closed while a random policy collects data. Does the bonus give its states, which no "
        "training row shows, more than the states that were visited? Mean over rooms and seeds, 95 % interval."
    )
    footer = f"Made by `derex reproduce unseen{' --quick' if config.quick else ''}`."
    return write_page(config.out / "report.html", "derex: a room never seen", lead, sections, footer)
