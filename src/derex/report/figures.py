"""Figures as PNG files: the paper's four panels, geometries side by side, spectra and curves.

Nothing here touches pyplot or its global state; figures are made, written and forgotten.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from derex.report import palette
from derex.report.data import Comparison, Curve, View
from derex.report.layout import DPI, figure_title, new_figure, save, scale_bar, signed, squares
from derex.report.palette import reference_colours
from derex.report.panels import (
    LABEL_SIZE,
    TICK_SIZE,
    Scale,
    axes_style,
    bonus_panel,
    colours_panel,
    curves_panel,
    heading,
    plain_text,
    rarity_panel,
    reference_panel,
    representation_panel,
    short_numbers,
    spectrum_panel,
    visitation_panel,
)

__all__ = [
    "DPI",
    "bonus_panel",
    "colours_panel",
    "curves_figure",
    "four_panels",
    "geometries_figure",
    "rarity_panel",
    "reference_colours",
    "representation_panel",
    "save_panels",
    "spectrum_figure",
    "spectrum_panel",
    "visitation_panel",
]

_NAMES = ("visitation", "colours", "representation", "bonus")


def four_panels(
    comparison: Comparison, path: str | Path, view: str | None = None, scale: Scale = "linear"
) -> Path:
    """Writes Figure 2 (Figure 3 where the comparison has a frame) of one view as a PNG.

    Args:
        comparison: the data.
        path: file to write.
        view: label of the view to show; None is the first.
        scale: colour scale of the visitation, "linear" as in the paper or "log".

    Returns:
        The path written.
    """
    shown = comparison.view(view)
    figure, axes = squares(1, 4, bottom=_bottom(comparison))
    for number, ax in enumerate(axes[0]):
        _draw(ax, number, comparison, shown, scale)
    figure_title(figure, _title(comparison, shown))
    return save(figure, path)


def save_panels(
    comparison: Comparison,
    folder: str | Path,
    stem: str,
    view: str | None = None,
    scale: Scale = "linear",
) -> tuple[Path, ...]:
    """Writes the four panels as PNGs of their own, ``{stem}_visitation.png`` and so on; returns their paths."""
    paths = []
    shown = comparison.view(view)
    for number, name in enumerate(_NAMES):
        figure, axes = squares(1, 1, top=0.36, bottom=_bottom(comparison))
        _draw(axes[0][0], number, comparison, shown, scale)
        paths.append(save(figure, Path(folder) / f"{stem}_{name}.png"))
    return tuple(paths)


def geometries_figure(comparison: Comparison, path: str | Path) -> Path:
    """Writes the bonus of every view side by side: on the map, and against 1/d(s) with Spearman's ρ."""
    figure, (maps, scatters) = squares(2, len(comparison.views), side=2.2, row_gap=0.85)
    for number, view in enumerate(comparison.views):
        image = bonus_panel(maps[number], comparison, view)
        heading(maps[number], view.label)
        if number == 0:
            scale_bar(maps[0], image, "bonus of each view")
        rarity_panel(scatters[number], comparison, view, palette.view_colour(number))
        heading(scatters[number], f"Spearman ρ {signed(comparison.spearman(view))}")
        if number:
            scatters[number].set_ylabel("")
    figure_title(figure, comparison.title)
    return save(figure, path)


def spectrum_figure(comparison: Comparison, path: str | Path) -> Path:
    """Writes the singular values of every view, on one pair of axes."""
    figure = new_figure(6.0, 3.7)
    ax = figure.subplots()
    spectrum_panel(ax, comparison.views, [palette.view_colour(i) for i in range(len(comparison.views))])
    _legend(ax)
    heading(ax, f"{comparison.title}: singular values")
    return save(figure, path)


def curves_figure(
    curves: Sequence[Curve], path: str | Path, xlabel: str = "", ylabel: str = "", title: str = ""
) -> Path:
    """Writes lines with shaded intervals as a PNG.

    Args:
        curves: the lines, in the order of their colours.
        path: file to write.
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
        title: heading; none if empty.
    """
    if not curves:
        raise ValueError("curves: expected at least one Curve.")
    figure = new_figure(6.4, 3.9)
    ax = figure.subplots()
    curves_panel(ax, curves)
    axes_style(ax, plain_text(xlabel), plain_text(ylabel))
    short_numbers(ax)
    _legend(ax)
    if title:
        heading(ax, title)
    return save(figure, path)


def _draw(ax: Axes, number: int, comparison: Comparison, view: View, scale: Scale) -> None:
    """Panel A, B, C or D, by its number."""
    letter = "ABCD"[number]
    if number == 0:
        label = "visitation" if scale == "linear" else "visitation (log scale)"
        scale_bar(ax, visitation_panel(ax, comparison, scale), label)
        heading(ax, "State visitation", letter)
    elif number == 1:
        colours_panel(ax, comparison)
        heading(ax, "Reference colours" if comparison.frame is None else "What the agent sees", letter)
        if comparison.frame is not None:
            _reference_key(ax, comparison)
    elif number == 2:
        representation_panel(ax, comparison, view)
        heading(ax, "Representation", letter)
    else:
        scale_bar(ax, bonus_panel(ax, comparison, view), "bonus")
        heading(ax, "Bonus", letter)


def _reference_key(ax: Axes, comparison: Comparison) -> None:
    """The reference colours as a small key below an example frame."""
    key = ax.inset_axes((0.0, -0.245, 0.22, 0.22))
    reference_panel(key, comparison.map)
    ax.annotate(
        "reference colours\nof the states in C", (0.25, -0.135), xycoords="axes fraction",
        fontsize=TICK_SIZE, color=palette.MUTED, va="center",
    )  # fmt: skip


def _legend(ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles, [plain_text(label) for label in labels], fontsize=LABEL_SIZE, frameon=False,
        labelcolor=palette.INK, handlelength=1.6, loc="best",
    )  # fmt: skip


def _title(comparison: Comparison, view: View) -> str:
    return comparison.title if len(comparison.views) == 1 else f"{comparison.title} · {view.label}"


def _bottom(comparison: Comparison) -> float:
    """Inches below the panels: axis labels, and the key of the reference colours where there is a frame."""
    return 0.5 if comparison.frame is None else 0.74
