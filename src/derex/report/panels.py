"""Panels that figures are made of; each function draws on the axes it is given.

Shapes: n states, k features.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MatplotlibPath
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from derex.report import palette
from derex.report.data import Comparison, GridMap, RepresentationView

Scale = Literal["linear", "log"]

TITLE_SIZE = 9.5
LABEL_SIZE = 8.0
TICK_SIZE = 7.0


def visitation_panel(ax: Axes, comparison: Comparison, scale: Scale = "linear") -> AxesImage:
    """Draws how often each state was visited, scaled to [0, 1]; darker is rarer (Figure 2 A).

    Args:
        ax: axes to draw on.
        comparison: the data.
        scale: "linear" as in the paper, or "log" where few states take most visits; states never visited are then
            hatched.
    """
    if scale not in ("linear", "log"):
        raise ValueError(f"scale: expected 'linear' or 'log', got {scale!r}.")
    d = comparison.d
    if scale == "log":
        d = np.where(d > 0, np.log(np.where(d > 0, d, 1.0)), np.nan)
    return draw_map(ax, comparison.map, palette.normalise(d), palette.VISITATION_STOPS)


def reference_panel(ax: Axes, grid: GridMap) -> AxesImage:
    """Draws the map in the reference colours of its states (Figure 2 B)."""
    picture = _walls(grid)
    rows, columns = grid.positions.T
    picture[rows, columns] = palette.reference_colours(grid.positions, grid.shape)
    return picture_panel(ax, picture)


def picture_panel(ax: Axes, picture: np.ndarray) -> AxesImage:
    """Draws an RGB picture without ticks, e.g. what the agent sees (Figure 3 B)."""
    image = ax.imshow(picture, interpolation="nearest")
    frame_only(ax)
    return image


def representation_panel(
    ax: Axes, comparison: Comparison, view: RepresentationView, features: tuple[int, int] = (0, 1)
) -> None:
    """Draws states at two of their features, in the reference colours (Figure 2 C).

    Thin lines join states that are neighbours on the map; states never visited are hollow. With a single
    feature the second coordinate is 0.
    """
    for feature in features:
        if not 0 <= feature < max(view.k, 2):
            raise ValueError(f"features: {view.label!r} has features 0 to {view.k - 1}, got {feature}.")
    points = view.representation if view.k > 1 else np.pad(view.representation, ((0, 0), (0, 1)))
    points = points[:, list(features)]
    colours = palette.reference_colours(comparison.map.positions, comparison.map.shape)
    segments = points[comparison.map.edges()]
    segments = segments[np.all(np.isfinite(segments), axis=(1, 2))]
    ax.add_collection(LineCollection(list(segments), colors="#b9bec9", linewidths=0.5, zorder=1))
    visited = comparison.d > 0
    size = float(np.clip(2600 / comparison.map.n, 5, 24))
    ax.scatter(*points[visited].T, s=size, c=colours[visited], linewidths=0, zorder=3)
    hollow = {"facecolors": "white", "edgecolors": list(colours[~visited]), "linewidths": 0.8}
    ax.scatter(*points[~visited].T, s=size, zorder=2, **hollow)
    axes_style(ax, *(f"$f_{{{feature + 1}}}$" if feature < view.k else "" for feature in features))
    ax.set_box_aspect(1)
    ax.margins(0.06)


def bonus_panel(ax: Axes, comparison: Comparison, view: RepresentationView) -> AxesImage:
    """Draws the bonus of every state, scaled to [0, 1]; darker is lower, hatched is not finite (Figure 2 D)."""
    return draw_map(ax, comparison.map, palette.normalise(view.bonus), palette.BONUS_STOPS)


def rarity_panel(ax: Axes, comparison: Comparison, view: RepresentationView, colour: str) -> None:
    """Draws the bonus against 1/d(s), one point for each visited state; log axes where values allow them."""
    shown = (comparison.d > 0) & np.isfinite(view.bonus)
    rarity, bonus = 1 / comparison.d[shown], view.bonus[shown]
    size = float(np.clip(1800 / comparison.map.n, 3, 14))
    ax.scatter(rarity, bonus, s=size, c=colour, alpha=0.75, linewidths=0)
    for axis, values in (("x", rarity), ("y", bonus)):
        if len(values) and values.min() > 0 and values.max() > values.min():
            _log_axis(ax, axis, values)
    axes_style(ax, "1 / visitation", "bonus")
    ax.set_box_aspect(1)


def spectrum_panel(ax: Axes, views: Sequence[RepresentationView]) -> None:
    """Draws singular values by their index, one line for each view."""
    for number, view in enumerate(views):
        ax.plot(
            np.arange(1, view.k + 1), view.singular_values, "o" if view.k <= 40 else "", linestyle="-",
            color=palette.view_colour(number), linewidth=1.4, markersize=3.5, label=view.label,
        )  # fmt: skip
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes_style(ax, "index $i$", "singular value $\\sigma_i$")


def draw_map(ax: Axes, grid: GridMap, values: np.ndarray, stops: Sequence[str]) -> AxesImage:
    """Draws a heat map of values in [0, 1] over walls; states whose value is NaN are hatched."""
    ax.imshow(_walls(grid), interpolation="nearest")
    colours = LinearSegmentedColormap.from_list("map", list(stops))
    image = ax.imshow(grid.image(values), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    _hatch(ax, grid.positions[np.isnan(values)])
    frame_only(ax)
    return image


def heading(ax: Axes, text: str, letter: str = "", detail: str = "") -> None:
    """Sets a title at the left, with a bold letter before it and a muted detail below it."""
    prefix = f"$\\bf{{{letter}}}$   " if letter else ""
    pad = 16 if detail else 6
    ax.set_title(prefix + plain_text(text), loc="left", fontsize=TITLE_SIZE, color=palette.INK, pad=pad)
    if detail:
        ax.annotate(
            plain_text(detail), (0, 1), (0, 5), "axes fraction", textcoords="offset points",
            fontsize=LABEL_SIZE, color=palette.MUTED, va="bottom",
        )  # fmt: skip


def plain_text(text: str) -> str:
    """Escapes dollar signs, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def frame_only(ax: Axes) -> None:
    """Removes ticks and spines, for pictures and maps."""
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_visible(False)


def axes_style(ax: Axes, xlabel: str, ylabel: str) -> None:
    """Styles axes: two thin spines, a light grid, small muted ticks."""
    ax.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=palette.INK, labelpad=2)
    ax.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=palette.INK, labelpad=2)
    ax.tick_params(labelsize=TICK_SIZE, length=2.5, width=0.6, color=palette.MUTED, labelcolor=palette.MUTED)
    ax.tick_params(which="minor", length=0)
    ax.grid(color=palette.GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color="#aab0bc", linewidth=0.7)


def short_numbers(ax: Axes) -> None:
    """Writes thousands and millions on the horizontal axis as 250k and 2M."""

    def text(value: float, _: int | None = None) -> str:
        for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= unit and abs(max(ax.get_xlim(), key=abs)) >= 1e4:
                return f"{value / unit:g}{suffix}"
        return f"{value:g}"

    ax.xaxis.set_major_formatter(FuncFormatter(text))


def _hatch(ax: Axes, positions: np.ndarray) -> None:
    """Hatches cells, all in one shape: a hatch is slow to draw."""
    if len(positions) == 0:
        return
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    squares = [MatplotlibPath(position[::-1] + corners, closed=True) for position in positions]
    shape = MatplotlibPath.make_compound_path(*squares)
    ax.add_patch(PathPatch(shape, facecolor="white", edgecolor="#9aa1ae", hatch="////", linewidth=0))


def _walls(grid: GridMap) -> np.ndarray:
    """(H, W, 3) picture of the walls; everything else is white."""
    wall, other = palette.hex_to_rgb(palette.WALL_COLOUR), palette.hex_to_rgb(palette.UNKNOWN_COLOUR)
    return np.where(grid.walls[..., None], wall, other)


def _log_axis(ax: Axes, axis: str, values: np.ndarray) -> None:
    """Sets a log scale; over few decades its ticks are plain numbers."""
    decades = np.log10(values.max() / values.min())
    target = ax.xaxis if axis == "x" else ax.yaxis
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    if decades < 3:
        target.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 1.6 else (1.0,)))
        target.set_major_formatter("{x:g}")
    else:
        target.set_major_locator(LogLocator(base=10, numticks=6))
    target.set_minor_formatter(NullFormatter())
