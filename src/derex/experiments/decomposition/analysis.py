"""From the rows of the study to its table, pictures and page."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from derex.experiments.decomposition.definition import PixelsStudy, TabularStudy
from derex.experiments.statistics import interval
from derex.report import (
    Comparison,
    Table,
    explorer_section,
    four_panels,
    geometries_figure,
    image_section,
    save_panels,
    spectrum_figure,
    spectrum_section,
    table_section,
    text_section,
    write_page,
)

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
            mean, low, high = interval(values)
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


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["map"],
        _model(entry),
        _with_interval(entry["captured_energy"], 4),
        _with_interval(entry["trace_ratio"], 3),
        _with_interval(entry["largest_off_diagonal"], 3),
        _with_interval(entry["spearman"], 3),
        f"{entry['spearman_exact']['mean']:.3f}",
        f"{entry['seconds']['mean']:.1f}",
    )


def _with_interval(score: dict[str, float], digits: int) -> str:
    text = f"{score['mean']:.{digits}f}"
    if score["low"] == score["high"]:
        return text
    return f"{text} [{score['low']:.{digits}f}, {score['high']:.{digits}f}]"


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
    table = Table("Learnt against exact", COLUMNS, tuple(_cells(entry) for entry in summary), caption="")
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
