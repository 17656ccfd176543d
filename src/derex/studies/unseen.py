"""States never trained on: a room is closed while data is collected. Which states does the bonus call new?"""

from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np

from derex import report
from derex.decomposition.scores import auroc
from derex.progress import ProgressBar
from derex.report import Comparison, RepresentationView, Table
from derex.studies import common
from derex.studies.common import Problem, Row, StudyResult
from derex.studies.definitions import Setting, UnseenStudy

COLUMNS = ("encoder", "objective", "AUROC of the bonus", "of the norm alone", "untrained", "fits")
SCORES = {"auroc": "Bonus", "auroc_norm": "Norm alone", "auroc_untrained": "Bonus, untrained"}
"""names in metrics.json, and labels in figures"""

WHY = """
A network trained on part of the world returns, for the rest, whatever its weights happen to give. On pictures that is
often close to an *average* representation, with a small norm: the norm alone can rank the unseen room *below* the
states that were visited (compare the columns). What tells the room apart are the features in front of the last layer:
part of them is spanned by no training row. `DeRex.bonus` measures that part and raises the bonus where it is larger
than fresh visits to the training states show (`derex.decomposition.bonus`); other bonuses are left as they are.
With coordinates as input the network extrapolates its slowest modes, and the norm alone does better.
"""


def run(study: UnseenStudy) -> StudyResult:
    """Leaves out each room, trains, and asks which states the bonus calls new."""
    common.check_minimum(study, seeds=1)
    if not set(study.rooms) <= {1, 2, 3}:
        raise ValueError(f"--rooms: four rooms has rooms 1, 2 and 3 to leave out, got {study.rooms}.")
    common.claim_folder(study.out, study.name)
    cases = list(product(study.encoders, study.objectives, study.rooms, range(study.seeds)))
    rows: list[Row] = []
    pictures: dict[str, Comparison] = {}
    with ProgressBar("derex reproduce unseen", len(cases)) as progress:
        for encoder, objective, room, seed in cases:
            progress.start(f"{encoder}, {objective}, without room {room}, seed {seed}")
            problem = common.make_problem("four-rooms", seed, study.transitions, closed_room=room)
            views, scores = _score(study, problem, encoder, objective, seed)
            setting = {"encoder": encoder, "objective": objective, "room": room, "seed": seed}
            rows.append(setting | {"unseen_states": int((problem.d == 0).sum())} | scores)
            grid, title = common.grid_map(problem.world.map), f"{encoder}, {objective}, without room {room}"
            pictures.setdefault(encoder, Comparison(title, grid, problem.d, tuple(views)))
            progress.finish(f"AUROC {scores['auroc']:.3f}")
    summary = _summarise(rows)
    common.write_metrics(study, results=rows, summary=summary)
    cells = [
        (
            entry["encoder"],
            entry["objective"],
            *("{mean:.3f} [{low:.3f}, {high:.3f}]".format(**entry[name]) for name in SCORES),
            str(entry["fits"]),
        )
        for entry in summary
    ]
    table = Table("AUROC, unseen room against seen states", COLUMNS, tuple(cells))
    return StudyResult(_write_report(study, pictures, table), table)


def _score(
    study: UnseenStudy, problem: Problem, encoder: str, objective: str, seed: int
) -> tuple[list[RepresentationView], dict[str, float]]:
    """One trained model and one untrained, with and without the guard: their views, and AUROC of their bonuses."""
    observations, unseen = problem.observations(encoder), problem.d == 0
    views, aurocs = [], {}
    for control in ("", "untrained"):
        setting = Setting(objective, study.k, control=control)
        model = common.fit(problem, encoder, setting, seed, steps=study.steps)
        f = model.transform(observations)
        for guarded in (True, False):
            bonus = model.set_params(novelty=guarded).bonus(observations).astype(np.float64)
            label = f"{'Bonus' if guarded else 'Norm alone'}{', untrained' if control else ''}"
            aurocs[label] = auroc(bonus[unseen], bonus[~unseen])
            views.append(RepresentationView(label, f, model.singular_values_, bonus))
    return views, {name: aurocs[label] for name, label in SCORES.items()}


def _summarise(rows: list[Row]) -> list[Row]:
    """One entry for each encoder and objective: mean and interval over seeds, and the worst fit."""
    summary = []
    for (encoder, objective), members in common.group_rows(rows, ("encoder", "objective")).items():
        entry: Row = {"encoder": encoder, "objective": objective, "fits": len(members)}
        for score in SCORES:
            by_seed = defaultdict(list)  # rooms are the same for every seed: seeds are the independent runs
            for member in members:
                by_seed[member["seed"]].append(member[score])
            interval = common.mean_interval_of([float(np.mean(each)) for each in by_seed.values()])
            bounds = {"low": max(interval["low"], 0.0), "high": min(interval["high"], 1.0)}
            entry[score] = interval | bounds | {"min": min(member[score] for member in members)}
        summary.append(entry)
    return summary


def _write_report(study: UnseenStudy, pictures: dict[str, Comparison], table: Table) -> Path:
    sections = [report.table_section(table), report.text_section("Why", WHY)]
    for encoder, comparison in pictures.items():
        report.save_comparison(study.out / f"{encoder}.npz", comparison)
        picture = report.geometries_figure(comparison, study.out / f"{encoder}.png")
        sections.append(report.explorer_section(comparison, f"{encoder}: {comparison.title}"))
        sections.append(report.image_section(f"{encoder}: bonus with and without the guard", picture))
    lead = (
        "A room of four rooms is closed while a random policy collects data. Does the bonus give its states, which no "
        "training row shows, more than the states that were visited? Mean over rooms and seeds, 95 % interval."
    )
    footer = f"Made by `derex reproduce unseen{' --quick' if study.quick else ''}`."
    return report.write_page(study.out / "report.html", "derex: a room never seen", lead, sections, footer)
