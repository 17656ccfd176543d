"""Panels that figures are made of, and their parts; each function draws on the axes it is given.

Shapes: n states, k features.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MatplotlibPath
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from derex.report import palette
from derex.report.data import Comparison, GridMap, HistoryCloud, RepresentationView

TITLE_SIZE = 9.5
LABEL_SIZE = 8.0
TICK_SIZE = 7.0
BELIEF_SIDE = 1.0  # inches
SPINE = "#aab0bc"


def visitation_panel(ax: Axes, grid: GridMap, d: np.ndarray) -> AxesImage:
    """Draws how often each state was visited, scaled to [0, 1]; darker is rarer, hatched is NaN (Figure 2 A)."""
    return draw_map(ax, grid, palette.normalise(d), palette.VISITATION_STOPS)


def bonus_panel(ax: Axes, grid: GridMap, bonus: np.ndarray) -> AxesImage:
    """Draws the bonus of every state, scaled to [0, 1]; darker is lower, hatched is not finite (Figure 2 D)."""
    return draw_map(ax, grid, palette.normalise(bonus), palette.BONUS_STOPS)


def belief_panel(ax: Axes, grid: GridMap, probabilities: np.ndarray, state: int) -> AxesImage:
    """Draws a belief on the map, its colours by √p, and a ring at the true state."""
    image = draw_map(ax, grid, np.sqrt(np.clip(probabilities, 0, 1)), palette.BELIEF_STOPS)
    ax.spines[:].set(visible=True, color=SPINE, linewidth=0.5)
    row, column = grid.positions[state]
    size = 1.15 * (72 * BELIEF_SIDE / max(grid.shape))
    for colour, width in (("white", 2.2), (palette.INK, 0.9)):
        ax.plot(column, row, "o", color=colour, markersize=size, fillstyle="none", markeredgewidth=width)
    return image


def reference_panel(ax: Axes, grid: GridMap) -> AxesImage:
    """Draws the map in the reference colours of its states (Figure 2 B)."""
    picture = _walls(grid)
    picture[tuple(grid.positions.T)] = palette.reference_colours(grid.positions, grid.shape)
    return picture_panel(ax, picture)


def picture_panel(ax: Axes, picture: np.ndarray) -> AxesImage:
    """Draws an RGB picture without ticks, e.g. what the agent sees (Figure 3 B)."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return ax.imshow(picture, interpolation="nearest")


def representation_panel(ax: Axes, comparison: Comparison, view: RepresentationView) -> None:
    """Draws states at their first two features, in the reference colours (Figure 2 C).

    Thin lines join states that are neighbours on the map; states never visited are hollow. With a single
    feature the second coordinate is 0.
    """
    points = view.representation[:, :2] if view.k > 1 else np.pad(view.representation, ((0, 0), (0, 1)))
    colours = palette.reference_colours(comparison.map.positions, comparison.map.shape)
    segments = points[comparison.map.edges()]
    segments = segments[np.all(np.isfinite(segments), axis=(1, 2))]
    ax.add_collection(LineCollection(list(segments), colors="#b9bec9", linewidths=0.5, zorder=1))
    visited = comparison.d > 0
    size = float(np.clip(2600 / comparison.map.n, 5, 24))
    ax.scatter(*points[visited].T, s=size, c=colours[visited], linewidths=0, zorder=3)
    hollow = {"facecolors": "white", "edgecolors": list(colours[~visited]), "linewidths": 0.8}
    ax.scatter(*points[~visited].T, s=size, zorder=2, **hollow)
    axes_style(ax, "$f_{1}$", "$f_{2}$" if view.k > 1 else "")
    ax.set_box_aspect(1)
    ax.margins(0.06)


def slice_panel(ax: Axes, cloud: HistoryCloud, features: tuple[int, int]) -> None:
    """Draws histories at two of their features, in the reference colours of their states.

    The order is shuffled with a fixed seed, so that no state hides the others.
    """
    order = np.random.default_rng(0).permutation(len(cloud.state))
    points = cloud.representation[order][:, list(features)]
    colours = palette.reference_colours(cloud.map.positions, cloud.map.shape)[cloud.state[order]]
    size = float(np.clip(16000 / len(points), 1.5, 14))
    alpha = float(np.clip(4000 / len(points), 0.45, 0.85))
    ax.scatter(*points.T, s=size, c=colours, alpha=alpha, linewidths=0, rasterized=True, zorder=2)
    axes_style(ax, *(f"$f_{{{feature + 1}}}$" for feature in features))
    xlim, ylim = cloud.limits()[list(features)]
    ax.set(xlim=xlim, ylim=ylim)
    ax.set_box_aspect(1)


def rarity_panel(ax: Axes, comparison: Comparison, view: RepresentationView, colour: str) -> None:
    """Draws the bonus against 1/d(s), one point for each visited state; log axes where values allow them."""
    shown = (comparison.d > 0) & np.isfinite(view.bonus)
    rarity, bonus = 1 / comparison.d[shown], view.bonus[shown]
    size = float(np.clip(1800 / comparison.map.n, 3, 14))
    ax.scatter(rarity, bonus, s=size, c=colour, alpha=0.75, linewidths=0)
    for axis, values in ((ax.xaxis, rarity), (ax.yaxis, bonus)):
        if len(values) and values.min() > 0 and values.max() > values.min():
            ax.set(**{f"{axis.axis_name}scale": "log"})
            _set_log_ticks(axis, np.log10(values.max() / values.min()))
    axes_style(ax, "1 / visitation", "bonus")
    ax.set_box_aspect(1)


def draw_map(ax: Axes, grid: GridMap, values: np.ndarray, stops: Sequence[str]) -> AxesImage:
    """Draws a heat map of values in [0, 1] over walls; states whose value is NaN are hatched."""
    ax.imshow(_walls(grid), interpolation="nearest")
    colours = LinearSegmentedColormap.from_list("map", list(stops))
    picture = np.full(grid.shape, np.nan)
    picture[tuple(grid.positions.T)] = values
    image = ax.imshow(picture, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    _hatch(ax, grid.positions[np.isnan(values)])
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
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


def scale_bar(ax: Axes, image: AxesImage, label: str) -> None:
    """Draws a thin colour bar below a map, from 0 to 1."""
    height, width = image.get_size()
    part = max(1.0, width / height)  # a flat map leaves the upper part of its square empty
    bar_axes = ax.inset_axes((0.0, -0.075 * part, 1.0, 0.035 * part))
    colour_bar(bar_axes, image, ("0", label, "1"), pad=3.0)


def colour_bar(bar_axes: Axes, image: AxesImage, labels: Sequence[str], pad: float) -> None:
    """Draws a horizontal colour bar with labels at its ends and its middle."""
    bar = bar_axes.figure.colorbar(image, cax=bar_axes, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar_axes.set_xticklabels(labels)
    bar_axes.tick_params(labelsize=TICK_SIZE, length=0, pad=pad, labelcolor=palette.MUTED)
    first, _, last = bar_axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def legend(ax: Axes) -> None:
    """Draws a legend inside the axes."""
    ax.legend(fontsize=LABEL_SIZE, frameon=False, labelcolor=palette.INK, handlelength=1.6, loc="best")


def axes_style(ax: Axes, xlabel: str, ylabel: str) -> None:
    """Styles axes: two thin spines, a light grid, small muted ticks."""
    ax.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=palette.INK, labelpad=2)
    ax.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=palette.INK, labelpad=2)
    ax.tick_params(labelsize=TICK_SIZE, length=2.5, width=0.6, color=palette.MUTED, labelcolor=palette.MUTED)
    ax.tick_params(which="minor", length=0)
    ax.grid(color=palette.GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[:].set(color=SPINE, linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)


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
    return np.where(grid.walls[..., None], palette.hex_to_rgb(palette.WALL_COLOUR), 1.0)


def _set_log_ticks(axis: Axis, decades: float) -> None:
    """Sets the ticks of a logarithmic axis; over few decades they are plain numbers."""
    if decades < 3:
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 1.6 else (1.0,)))
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_locator(LogLocator(base=10, numticks=6))
    axis.set_minor_formatter(NullFormatter())
