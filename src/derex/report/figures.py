"""How figures are laid out and written: square axes placed to the point, colour bars, PNG files.

Nothing here touches pyplot or its global state; figures are made, written and forgotten.

Figures as PNG files: the paper's four panels, geometries side by side, spectra and curves.

Nothing here touches pyplot or its global state; figures are made, written and forgotten.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from derex.report import panels as palette
from derex.report.data import Comparison, Curve, RepresentationView
from derex.report.files import write_atomically
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

DPI = 150

LEFT, GAP, RIGHT = 0.52, 0.52, 0.14  # inches around square panels


def figure_title(figure: Figure, text: str, left: float = LEFT) -> None:
    """A title over the whole figure, above its first column, which begins at `left` inches."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - 0.14 / height, plain_text(text), va="top", fontsize=11.5, color=palette.INK)


def squares(
    rows: int,
    columns: int,
    side: float = 2.6,
    top: float = 0.78,
    bottom: float = 0.5,
    row_gap: float = 0.8,
    left: float = LEFT,
    gap: float = GAP,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of square axes of `side` inches in rows and columns, placed to the point.

    Sizes do not depend on what is drawn, so that figures line up with one another.
    """
    width = left + columns * side + (columns - 1) * gap + RIGHT
    height = top + rows * side + (rows - 1) * row_gap + bottom
    figure = new_figure(width, height, layout=None)
    axes = []
    for row in range(rows):
        y = height - top - side - row * (side + row_gap)
        boxes = [(left + column * (side + gap), y) for column in range(columns)]
        axes.append([
            figure.add_axes((x / width, y / height, side / width, side / height), anchor="N") for x, y in boxes
        ])  # fmt: skip
    return figure, axes


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """An empty figure in inches, with the canvas that draws it."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """The figure as a PNG that is the same for the same data, whatever made it and when."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return write_atomically(path, buffer.getvalue())


def scale_bar(ax: Axes, image: AxesImage, label: str) -> None:
    """A thin colour bar below a map, from 0 to 1."""
    height, width = image.get_size()
    part = max(1.0, width / height)  # a flat map leaves the upper part of its square empty
    bar_axes = ax.inset_axes((0.0, -0.075 * part, 1.0, 0.035 * part))
    bar = ax.figure.colorbar(image, cax=bar_axes, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar_axes.set_xticklabels(["0", label, "1"])
    bar_axes.tick_params(labelsize=TICK_SIZE, length=0, pad=3, labelcolor=palette.MUTED)
    first, _, last = bar_axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def signed(value: float) -> str:
    """``= +0.98``; "undefined" for NaN."""
    return "undefined" if np.isnan(value) else f"= {value:+.2f}".replace("-", "−")


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


def _draw(ax: Axes, number: int, comparison: Comparison, view: RepresentationView, scale: Scale) -> None:
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


def _title(comparison: Comparison, view: RepresentationView) -> str:
    return comparison.title if len(comparison.views) == 1 else f"{comparison.title} · {view.label}"


def _bottom(comparison: Comparison) -> float:
    """Inches below the panels: axis labels, and the key of the reference colours where there is a frame."""
    return 0.5 if comparison.frame is None else 0.74
