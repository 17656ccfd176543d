"""Figures as PNG files: the paper's four panels, geometries side by side, spectra, visits over time.

Sizes are in inches. Nothing here uses pyplot or its global state.
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

from derex.progress import short_count
from derex.report import palette
from derex.report.data import Comparison, GridMap, RepresentationView
from derex.report.files import write_atomically
from derex.report.panels import (
    LABEL_SIZE,
    TICK_SIZE,
    Scale,
    bonus_panel,
    draw_map,
    heading,
    picture_panel,
    plain_text,
    rarity_panel,
    reference_panel,
    representation_panel,
    spectrum_panel,
    visitation_panel,
)
from derex.report.visits import Visits

DPI = 150
LEFT, GAP, RIGHT = 0.52, 0.52, 0.14  # around panels

PARTS = 5
FLAT = 3.0  # maps wider than this, for their height, are stacked

_PANELS = ("visitation", "colours", "representation", "bonus")
_VISITS_LEFT = 0.25
_VISITS_TICKS = {"visits": ("rare", "log scale", "often"), "mean bonus": ("low", "each part scaled", "high")}


def four_panels(
    comparison: Comparison, path: str | Path, view: str | None = None, scale: Scale = "linear"
) -> Path:
    """Writes Figure 2 (Figure 3 if the comparison has a frame) of one view as a PNG.

    Args:
        comparison: the data.
        path: file to write.
        view: label of the view to show; None is the first.
        scale: colour scale of the visitation, "linear" as in the paper or "log".

    Returns:
        The path written.
    """
    shown = comparison.view(view)
    figure, axes = panel_grid(1, 4, bottom=_bottom(comparison))
    for number, ax in enumerate(axes[0]):
        _draw(ax, number, comparison, shown, scale)
    title = comparison.title if len(comparison.views) == 1 else f"{comparison.title} · {shown.label}"
    figure_title(figure, title)
    return save(figure, path)


def save_panels(
    comparison: Comparison, folder: str | Path, stem: str, view: str | None = None, scale: Scale = "linear"
) -> tuple[Path, ...]:
    """Writes the four panels as separate PNGs, ``{stem}_visitation.png`` and so on; returns their paths."""
    paths = []
    shown = comparison.view(view)
    for number, name in enumerate(_PANELS):
        figure, axes = panel_grid(1, 1, top=0.36, bottom=_bottom(comparison))
        _draw(axes[0][0], number, comparison, shown, scale)
        paths.append(save(figure, Path(folder) / f"{stem}_{name}.png"))
    return tuple(paths)


def geometries_figure(comparison: Comparison, path: str | Path) -> Path:
    """Writes the bonus of every view side by side: on the map, and against 1/d(s) with Spearman's ρ."""
    figure, (maps, scatters) = panel_grid(2, len(comparison.views), (2.2, 2.2), row_gap=0.85)
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
    spectrum_panel(ax, comparison.views)
    legend(ax)
    heading(ax, f"{comparison.title}: singular values")
    return save(figure, path)


def visitation_figure(visits: Visits, path: str | Path, parts: int = PARTS) -> Path:
    """Writes where an agent was in each part of its training, all seeds together, and the mean bonus there.

    Parts go from left to right, or from top to bottom if the map is flat. Visits share one logarithmic scale; the
    bonuses of each part are scaled to [0, 1]. Hatched states were not visited. States at one position are summed.

    Args:
        visits: the record; its states must have positions.
        path: file to write.
        parts: number of parts of equal length, at most.
    """
    if len(visits.positions) == 0 or len(visits.steps) == 0:
        raise ValueError("visits: expected states with positions and at least one interval.")
    merged = visits.merged(parts)
    grid, place = _map_of(visits)
    counts, bonuses = (
        np.stack([np.bincount(place, sums, grid.n) for sums in part.sum(axis=1)])
        for part in (merged.counts, merged.bonuses)
    )
    means = np.where(counts > 0, bonuses / np.maximum(counts, 1), np.nan)
    kinds = [("visits", _log_share(counts), palette.VISITATION_STOPS)]
    if np.nanmin(means) < np.nanmax(means):
        scaled = np.stack([palette.normalise(part) for part in means])
        kinds.append(("mean bonus", scaled, palette.BONUS_STOPS))

    height, width = grid.shape
    flat = width > FLAT * height
    rows, columns = (len(counts), len(kinds)) if flat else (len(kinds), len(counts))
    w = float(np.clip(0.16 * width, 3.0, 6.0)) if flat else 2.1
    margins = {"left": _VISITS_LEFT, "right": _VISITS_LEFT, "gap": 0.25, "top": 0.72, "bottom": 0.45}
    size = w, max(w * height / width, 0.3)
    figure, axes = panel_grid(rows, columns, size, row_gap=0.36 if flat else 0.72, **margins)
    for (name, values, stops), panels in zip(kinds, zip(*axes, strict=True) if flat else axes, strict=True):
        for number, ax in enumerate(panels):
            image = draw_map(ax, grid, values[number], stops)
            span = f"to step {short_count(merged.steps[number])}"
            heading(ax, f"{name} {span}" if number == 0 else span)
        _bar_below(figure, panels[-1] if flat else panels[0], image, _VISITS_TICKS[name])
    seeds = f"{len(visits.seeds)} seeds together" if len(visits.seeds) > 1 else f"seed {visits.seeds[0]}"
    figure_title(figure, f"{visits.name}, {seeds}", left=_VISITS_LEFT)
    return save(figure, path)


def figure_title(figure: Figure, text: str, left: float = LEFT) -> None:
    """Sets a title over the whole figure, above its first column, which begins at `left` inches."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - 0.14 / height, plain_text(text), va="top", fontsize=11.5, color=palette.INK)


def panel_grid(
    rows: int,
    columns: int,
    size: tuple[float, float] = (2.6, 2.6),
    top: float = 0.78,
    bottom: float = 0.5,
    row_gap: float = 0.8,
    left: float = LEFT,
    gap: float = GAP,
    right: float = RIGHT,
) -> tuple[Figure, list[list[Axes]]]:
    """Makes a figure of axes of one size in rows and columns.

    Sizes do not depend on what is drawn, so figures line up with one another.

    Args:
        rows: number of rows, `row_gap` apart.
        columns: number of columns, `gap` apart.
        size: width and height of each panel.
        top: margin above the first row, as `bottom`, `left` and `right` at the other sides.
    """
    w, h = size
    width = left + columns * w + (columns - 1) * gap + right
    height = top + rows * h + (rows - 1) * row_gap + bottom
    figure = new_figure(width, height, layout=None)
    axes = []
    for row in range(rows):
        y = height - top - h - row * (h + row_gap)
        boxes = [(left + column * (w + gap), y) for column in range(columns)]
        axes.append([
            figure.add_axes((x / width, y / height, w / width, h / height), anchor="N") for x, y in boxes
        ])  # fmt: skip
    return figure, axes


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Makes an empty figure, with the canvas that draws it."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Writes the figure as a PNG whose bytes depend on the data alone."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return write_atomically(path, buffer.getvalue())


def scale_bar(ax: Axes, image: AxesImage, label: str) -> None:
    """Draws a thin colour bar below a map, from 0 to 1."""
    height, width = image.get_size()
    part = max(1.0, width / height)  # a flat map leaves the upper part of its square empty
    bar_axes = ax.inset_axes((0.0, -0.075 * part, 1.0, 0.035 * part))
    _colour_bar(bar_axes, image, ("0", label, "1"), pad=3.0)


def legend(ax: Axes) -> None:
    """Draws a legend inside the axes."""
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles, [plain_text(label) for label in labels], fontsize=LABEL_SIZE, frameon=False,
        labelcolor=palette.INK, handlelength=1.6, loc="best",
    )  # fmt: skip


def signed(value: float) -> str:
    """Formats a correlation as ``= +0.98``; "undefined" for NaN."""
    return "undefined" if np.isnan(value) else f"= {value:+.2f}".replace("-", "−")


def _draw(ax: Axes, number: int, comparison: Comparison, view: RepresentationView, scale: Scale) -> None:
    """Draws panel A, B, C or D, by its number."""
    letter = "ABCD"[number]
    if number == 0:
        label = "visitation" if scale == "linear" else "visitation (log scale)"
        scale_bar(ax, visitation_panel(ax, comparison, scale), label)
        heading(ax, "State visitation", letter)
    elif number == 1 and comparison.frame is not None:
        picture_panel(ax, comparison.frame)
        heading(ax, "What the agent sees", letter)
        reference_panel(ax.inset_axes((0.0, -0.245, 0.22, 0.22)), comparison.map)
        ax.annotate(
            "reference colours\nof the states in C", (0.25, -0.135), xycoords="axes fraction",
            fontsize=TICK_SIZE, color=palette.MUTED, va="center",
        )  # fmt: skip
    elif number == 1:
        reference_panel(ax, comparison.map)
        heading(ax, "Reference colours", letter)
    elif number == 2:
        representation_panel(ax, comparison, view)
        heading(ax, "Representation", letter)
    else:
        scale_bar(ax, bonus_panel(ax, comparison, view), "bonus")
        heading(ax, "Bonus", letter)


def _bottom(comparison: Comparison) -> float:
    """Margin below the panels: axis labels, and the key of the reference colours if there is a frame."""
    return 0.5 if comparison.frame is None else 0.74


def _map_of(visits: Visits) -> tuple[GridMap, np.ndarray]:
    """The map on which states are drawn, and the cell of each state."""
    cells, place = np.unique(visits.positions, axis=0, return_inverse=True)
    cells = cells - cells.min(axis=0)
    drawn = np.full(cells.max(axis=0) + 1, "#")
    drawn[cells[:, 0], cells[:, 1]] = "."
    return GridMap(visits.name, tuple("".join(row) for row in drawn), cells), place.reshape(-1)


def _log_share(counts: np.ndarray) -> np.ndarray:
    """Each part's share of visits, on one logarithmic scale in [0, 1]; NaN where there were none."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return palette.normalise(np.where(share > 0, np.log(np.where(share > 0, share, 1.0)), np.nan))


def _bar_below(figure: Figure, ax: Axes, image: AxesImage, labels: Sequence[str]) -> None:
    height = figure.get_size_inches()[1]
    box = ax.get_position()
    bar_axes = figure.add_axes((box.x0, box.y0 - 0.16 / height, box.width, 0.07 / height))
    _colour_bar(bar_axes, image, labels, pad=2.0)


def _colour_bar(bar_axes: Axes, image: AxesImage, labels: Sequence[str], pad: float) -> None:
    """Draws a horizontal colour bar with labels at its ends and its middle."""
    bar = bar_axes.figure.colorbar(image, cax=bar_axes, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar_axes.set_xticklabels(labels)
    bar_axes.tick_params(labelsize=TICK_SIZE, length=0, pad=pad, labelcolor=palette.MUTED)
    first, _, last = bar_axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
