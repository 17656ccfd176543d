"""Figures as PNG files: the paper's four panels, geometries, spectra, visits over time, histories and beliefs.

Each function writes to `path`, makes its folder, and returns it. Figures of histories follow the paper's ablation study
of the 4-rooms POMDP (Figures POMDP_rep, POMDP_bonus, POMDP_belief). Sizes are in inches. Nothing here uses pyplot or
its global state.
"""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from derex.progress import short_count
from derex.report import data, palette, panels
from derex.report.files import write_atomically
from derex.report.panels import LABEL_SIZE, TICK_SIZE, heading, plain_text, scale_bar
from derex.report.runs import Visits

DPI = 150
LEFT, GAP, RIGHT = 0.52, 0.52, 0.14  # around panels

PARTS = 5  # of a training, in the figure of visits
FLAT = 3.0  # maps wider than this, for their height, are stacked

_PANELS = ("visitation", "colours", "representation", "bonus")
_VISITS_LEFT = 0.25
_VISITS_TICKS = {"visits": ("rare", "log scale", "often"), "mean bonus": ("low", "each part scaled", "high")}
_SLICES = (("XY", 0, 1), ("XZ", 0, 2), ("YZ", 1, 2))
_LABELS = 1.28  # at the left of beliefs


def four_panels(comparison: data.Comparison, path: str | Path) -> Path:
    """Writes Figure 2 of the first view, Figure 3 if the comparison has a frame."""
    figure, axes = panel_grid(1, 4, bottom=_bottom(comparison))
    for number, ax in enumerate(axes[0]):
        _draw(ax, number, comparison)
    label = "" if len(comparison.views) == 1 else f" · {comparison.views[0].label}"
    figure_title(figure, comparison.title + label)
    return save(figure, path)


def save_panels(comparison: data.Comparison, folder: str | Path, stem: str) -> tuple[Path, ...]:
    """Writes the four panels separately, ``{stem}_visitation.png`` and so on."""
    paths = []
    for number, name in enumerate(_PANELS):
        figure, axes = panel_grid(1, 1, top=0.36, bottom=_bottom(comparison))
        _draw(axes[0][0], number, comparison)
        paths.append(save(figure, Path(folder) / f"{stem}_{name}.png"))
    return tuple(paths)


def geometries_figure(comparison: data.Comparison, path: str | Path) -> Path:
    """Writes the bonus of every view side by side: on the map, and against 1/d(s) with Spearman's ρ."""
    figure, (maps, scatters) = panel_grid(2, len(comparison.views), (2.2, 2.2), row_gap=0.85)
    for number, view in enumerate(comparison.views):
        image = panels.bonus_panel(maps[number], comparison.map, view.bonus)
        heading(maps[number], view.label)
        if number == 0:
            scale_bar(maps[0], image, "bonus of each view")
        panels.rarity_panel(scatters[number], comparison, view, palette.view_colour(number))
        heading(scatters[number], f"Spearman ρ {signed(comparison.spearman(view))}")
        if number:
            scatters[number].set_ylabel("")
    figure_title(figure, comparison.title)
    return save(figure, path)


def spectrum_figure(comparison: data.Comparison, path: str | Path) -> Path:
    """Writes the singular values of every view, on one pair of axes."""
    figure = new_figure(6.0, 3.7)
    ax = figure.subplots()
    for number, view in enumerate(comparison.views):
        ax.plot(
            np.arange(1, view.k + 1), view.singular_values, marker="o" if view.k <= 40 else "",
            color=palette.view_colour(number), linewidth=1.4, markersize=3.5, label=plain_text(view.label),
        )  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    panels.axes_style(ax, "index $i$", "singular value $\\sigma_i$")
    panels.legend(ax)
    heading(ax, f"{comparison.title}: singular values")
    return save(figure, path)


def visitation_figure(visits: Visits, path: str | Path) -> Path:
    """Writes where an agent was in each part of its training, all seeds together, and the mean bonus there.

    Parts go from left to right, or from top to bottom if the map is flat. Shares of visits have one logarithmic scale;
    the bonuses of each part are scaled to [0, 1]. Hatched states were not visited. States at one position are summed.
    """
    known = len(visits.positions) and len(visits.steps)
    data.expect(known, "visits", "states with positions and at least one interval", "none")
    merged = visits.merged(PARTS)
    grid, place = _map_of(visits)
    counts, bonuses = (
        np.stack([np.bincount(place, sums, grid.n) for sums in part.sum(axis=1)])
        for part in (merged.counts, merged.bonuses)
    )
    means = np.where(counts > 0, bonuses / np.maximum(counts, 1), np.nan)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    logarithms = np.where(share > 0, np.log(np.where(share > 0, share, 1.0)), np.nan)
    kinds = [("visits", palette.normalise(logarithms), palette.VISITATION_STOPS)]
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
    for (name, values, stops), row in zip(kinds, zip(*axes, strict=True) if flat else axes, strict=True):
        for number, ax in enumerate(row):
            image = panels.draw_map(ax, grid, values[number], stops)
            span = f"to step {short_count(merged.steps[number])}"
            heading(ax, f"{name} {span}" if number == 0 else span)
        box, inches = (row[-1] if flat else row[0]).get_position(), figure.get_size_inches()[1]
        bar_axes = figure.add_axes((box.x0, box.y0 - 0.16 / inches, box.width, 0.07 / inches))
        panels.colour_bar(bar_axes, image, _VISITS_TICKS[name], pad=2.0)
    seeds = f"{len(visits.seeds)} seeds together" if len(visits.seeds) > 1 else f"seed {visits.seeds[0]}"
    figure_title(figure, f"{visits.name}, {seeds}", left=_VISITS_LEFT)
    return save(figure, path)


def slices_figure(clouds: Sequence[data.HistoryCloud], path: str | Path) -> Path:
    """Writes the representations of histories on one map as slices through their first three features.

    Top left are the reference colours of the states; each cloud is a row of its slices XY, XZ and YZ (only XY if it has
    two features). A history has the colour of the true state that it ends in.
    """
    grid = data.same_map("clouds", clouds)
    slices = [_SLICES if cloud.k > 2 else _SLICES[:1] for cloud in clouds]
    columns = max(map(len, slices))
    figure, axes = panel_grid(len(clouds), 1 + columns, size=(2.4, 2.4), top=0.56, row_gap=0.92, gap=0.6)
    for (_, *row), cloud, own in zip(axes, clouds, slices, strict=True):
        features = f"features 1–3 of {cloud.k}" if cloud.k > 3 else f"{cloud.k} features"
        for ax, (name, x, y) in zip(row, own, strict=False):
            panels.slice_panel(ax, cloud, (x, y))
            about = f"slice {name} · {features}" if name == "XY" else f"slice {name}"
            heading(ax, _row_title(cloud) if name == "XY" else "", detail=about)
    panels.reference_panel(axes[0][0], grid)
    heading(axes[0][0], "Reference colours", detail="of the true state")
    return save(figure, path)


def bonus_maps_figure(
    map: data.GridMap, d: np.ndarray, bonuses: Sequence[data.StateBonus], path: str | Path
) -> Path:
    """Writes the visitation, and beside it each bonus on the map, with Spearman's ρ to 1/d(s).

    More than three bonuses take two rows. Each map is scaled to [0, 1]; hatched states were never visited.

    Args:
        map: the map.
        d: (n,) visitation of the states, frequencies or counts.
        bonuses: one or more.
        path: file to write.
    """
    d = np.asarray(d, np.float64)
    data.check_bonuses(map, d, "bonuses", bonuses)
    rows = 2 if len(bonuses) > 3 else 1
    columns = -(-len(bonuses) // rows)
    margins = {"top": 0.56, "bottom": 0.36, "left": 0.2}
    figure, axes = panel_grid(rows, 1 + columns, size=(2.2, 2.2), row_gap=0.72, gap=0.3, **margins)
    first, *others = axes[0][0], *(ax for row in axes for ax in row[1:])
    scale_bar(first, panels.visitation_panel(first, map, np.where(d > 0, d, np.nan)), "visitation")
    heading(first, "State visitation", detail="of the true states")
    for ax, bonus in zip(others, bonuses, strict=False):
        image = panels.bonus_panel(ax, map, bonus.bonus)
        heading(ax, bonus.label, detail=f"Spearman ρ {signed(bonus.spearman)}")
        if bonus is bonuses[0]:
            scale_bar(ax, image, "bonus of each, scaled")
    return save(figure, path)


def beliefs_figure(track: data.BeliefTrack, path: str | Path, times: Sequence[int]) -> Path:
    """Writes what the agent saw at some steps and, below, the beliefs about its state.

    Deeper red is more belief; colours follow the root of the probability, so diffuse beliefs are visible. A ring marks
    the true state.
    """
    valid = len(times) and min(times) >= 0 and max(times) < track.steps
    data.expect(valid, "times", f"steps 0 to {track.steps - 1} of the track, at least one", times)
    side = (panels.BELIEF_SIDE, panels.BELIEF_SIDE)
    margins = {"top": 0.62, "bottom": 0.5, "left": _LABELS}
    grid = panel_grid(1 + len(track.beliefs), len(times), side, row_gap=0.07, gap=0.07, **margins)
    figure, (seen, *rows) = grid
    for ax, t in zip(seen, times, strict=True):
        panels.picture_panel(ax, track.frames[track.frame[t]])
        ax.set_title(f"t = {t}", fontsize=LABEL_SIZE, color=palette.MUTED, pad=4)
    _row_label(seen[0], "Observation")
    for axes, (label, probabilities) in zip(rows, track.beliefs, strict=True):
        for ax, t in zip(axes, times, strict=True):
            panels.belief_panel(ax, track.map, probabilities[t], int(track.state[t]))
        _row_label(axes[0], label)
    _belief_bar(figure, rows[0][0].images[-1])
    figure_title(figure, track.title, _LABELS)
    return save(figure, path)


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
    """Makes a figure of axes of one size in rows `row_gap` apart and columns `gap` apart, with margins around.

    Sizes do not depend on what is drawn, so figures line up with one another.
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


def figure_title(figure: Figure, text: str, left: float = LEFT) -> None:
    """Sets a title over the whole figure, above its first column, which begins at `left` inches."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - 0.14 / height, plain_text(text), va="top", fontsize=11.5, color=palette.INK)


def save(figure: Figure, path: str | Path) -> Path:
    """Writes the figure as a PNG whose bytes depend on the data alone; panels without data stay blank."""
    for ax in figure.axes:
        if not ax.has_data():
            ax.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return write_atomically(path, buffer.getvalue())


def signed(value: float) -> str:
    """Formats a correlation as ``= +0.98``; "undefined" for NaN."""
    return "undefined" if np.isnan(value) else f"= {value:+.2f}".replace("-", "−")


def _draw(ax: Axes, number: int, comparison: data.Comparison) -> None:
    """Draws panel A, B, C or D of the first view, by its number."""
    grid, view, letter = comparison.map, comparison.views[0], "ABCD"[number]
    if number == 0:
        scale_bar(ax, panels.visitation_panel(ax, grid, comparison.d), "visitation")
        heading(ax, "State visitation", letter)
    elif number == 1 and comparison.frame is not None:
        panels.picture_panel(ax, comparison.frame)
        heading(ax, "What the agent sees", letter)
        panels.reference_panel(ax.inset_axes((0.0, -0.245, 0.22, 0.22)), grid)
        ax.annotate(
            "reference colours\nof the states in C", (0.25, -0.135), xycoords="axes fraction",
            fontsize=TICK_SIZE, color=palette.MUTED, va="center",
        )  # fmt: skip
    elif number == 1:
        panels.reference_panel(ax, grid)
        heading(ax, "Reference colours", letter)
    elif number == 2:
        panels.representation_panel(ax, comparison, view)
        heading(ax, "Representation", letter)
    else:
        scale_bar(ax, panels.bonus_panel(ax, grid, view.bonus), "bonus")
        heading(ax, "Bonus", letter)


def _bottom(comparison: data.Comparison) -> float:
    """Margin below the panels: axis labels, and the key of the reference colours if there is a frame."""
    return 0.5 if comparison.frame is None else 0.74


def _map_of(visits: Visits) -> tuple[data.GridMap, np.ndarray]:
    """The map on which states are drawn, and the cell of each state."""
    cells, place = np.unique(visits.positions, axis=0, return_inverse=True)
    cells = cells - cells.min(axis=0)
    drawn = np.full(cells.max(axis=0) + 1, data.WALL)
    drawn[tuple(cells.T)] = "."
    return data.GridMap(visits.name, tuple("".join(row) for row in drawn), cells), place.reshape(-1)


def _row_title(cloud: data.HistoryCloud) -> str:
    """The cloud's title, and the number of histories beyond the axes, if any."""
    low, high = cloud.limits()[:3].T
    points = cloud.representation[:, :3]
    beyond = int(np.sum(np.any((points < low) | (points > high), axis=1)))
    return f"{cloud.title} · {beyond} of {len(points)} histories beyond the axes" if beyond else cloud.title


def _row_label(ax: Axes, text: str) -> None:
    ax.annotate(
        plain_text(textwrap.fill(text, 15)), (0, 0.5), (-8, 0), "axes fraction", textcoords="offset points",
        fontsize=LABEL_SIZE, color=palette.INK, ha="right", va="center",
    )  # fmt: skip


def _belief_bar(figure: Figure, image: AxesImage) -> None:
    """Draws the colour bar of beliefs at the bottom; ticks are probabilities, placed by their roots."""
    width, height = figure.get_size_inches()
    bar_axes = figure.add_axes((_LABELS / width, 0.33 / height, 2.2 / width, 0.07 / height))
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = figure.colorbar(image, cax=bar_axes, orientation="horizontal", ticks=np.sqrt(ticks))
    bar.outline.set(edgecolor=panels.SPINE, linewidth=0.5)
    bar_axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    bar_axes.tick_params(labelsize=TICK_SIZE, length=2, width=0.5, pad=2, labelcolor=palette.MUTED)
    figure.text(
        (_LABELS + 2.36) / width, 0.365 / height, "belief (probability of the state) · ring: the true state",
        fontsize=TICK_SIZE, color=palette.MUTED, va="center",
    )  # fmt: skip
