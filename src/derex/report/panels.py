"""The panels that figures are put together from; each draws on axes that it is given.

Letters in shapes: n states, k features.
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
from derex.report.data import Comparison, Curve, GridMap, View

Scale = Literal["linear", "log"]

TITLE_SIZE = 9.5
LABEL_SIZE = 8.0
TICK_SIZE = 7.0


def visitation_panel(ax: Axes, comparison: Comparison, scale: Scale = "linear") -> AxesImage:
    """Figure 2 A: how often each state was visited, scaled to [0, 1]; darker is rarer.

    Args:
        ax: axes to draw on.
        comparison: the data.
        scale: "linear" as in the paper, or "log" where a few states take most of the visits; states
            never visited are then hatched.
    """
    if scale not in ("linear", "log"):
        raise ValueError(f"scale: expected 'linear' or 'log', got {scale!r}.")
    d = comparison.d
    if scale == "log":
        d = np.where(d > 0, np.log(np.where(d > 0, d, 1.0)), np.nan)
    return draw_map(ax, comparison.map, palette.normalise(d), palette.VISITATION_STOPS)


def colours_panel(ax: Axes, comparison: Comparison) -> AxesImage:
    """Figure 2 B: the reference colour of every state; where there is a frame (Figure 3 B), the frame."""
    if comparison.frame is not None:
        image = ax.imshow(comparison.frame, interpolation="nearest")
        frame_only(ax)
        return image
    return reference_panel(ax, comparison.map)


def reference_panel(ax: Axes, grid: GridMap) -> AxesImage:
    """The map in its reference colours."""
    picture = _walls(grid)
    rows, columns = grid.positions.T
    picture[rows, columns] = palette.reference_colours(grid.positions, grid.shape)
    image = ax.imshow(picture, interpolation="nearest")
    frame_only(ax)
    return image


def representation_panel(
    ax: Axes, comparison: Comparison, view: View | None = None, features: tuple[int, int] = (0, 1)
) -> None:
    """Figure 2 C: states at their first two features, in the reference colours.

    Thin lines join states that are neighbours on the map; states never visited are hollow. With a single
    feature the second coordinate is 0.
    """
    view = comparison.view() if view is None else view
    points = features_of(view, features)
    colours = palette.reference_colours(comparison.map.positions, comparison.map.shape)
    segments = points[comparison.map.edges()]
    segments = segments[np.all(np.isfinite(segments), axis=(1, 2))]
    ax.add_collection(LineCollection(list(segments), colors="#b9bec9", linewidths=0.5, zorder=1))
    visited = comparison.d > 0
    size = float(np.clip(2600 / comparison.map.n, 5, 24))
    ax.scatter(*points[visited].T, s=size, c=colours[visited], linewidths=0, zorder=3)
    ax.scatter(
        *points[~visited].T,
        s=size,
        facecolors="white",
        edgecolors=list(colours[~visited]),
        linewidths=0.8,
        zorder=2,
    )
    names = [f"$f_{{{feature + 1}}}$" if feature < view.k else "" for feature in features]
    axes_style(ax, *names)
    ax.set_box_aspect(1)
    ax.margins(0.06)


def bonus_panel(ax: Axes, comparison: Comparison, view: View | None = None) -> AxesImage:
    """Figure 2 D: the bonus of every state, scaled to [0, 1]; darker is lower.

    States whose bonus is not finite are hatched.
    """
    view = comparison.view() if view is None else view
    return draw_map(ax, comparison.map, palette.normalise(view.bonus), palette.BONUS_STOPS)


def rarity_panel(ax: Axes, comparison: Comparison, view: View, colour: str) -> None:
    """The bonus against 1/d(s), one point for each visited state; log axes where values allow them."""
    shown = (comparison.d > 0) & np.isfinite(view.bonus)
    rarity, bonus = 1 / comparison.d[shown], view.bonus[shown]
    size = float(np.clip(1800 / comparison.map.n, 3, 14))
    ax.scatter(rarity, bonus, s=size, c=colour, alpha=0.75, linewidths=0)
    for axis, values in (("x", rarity), ("y", bonus)):
        if len(values) and values.min() > 0 and values.max() > values.min():
            _log_axis(ax, axis, values)
    axes_style(ax, "1 / visitation", "bonus")
    ax.set_box_aspect(1)


def spectrum_panel(ax: Axes, views: Sequence[View], colours: Sequence[str]) -> None:
    """Singular values by their index, one line for each view."""
    for view, colour in zip(views, colours, strict=True):
        index = np.arange(1, view.k + 1)
        marker = "o" if view.k <= 40 else ""
        ax.plot(
            index,
            view.singular_values,
            marker,
            linestyle="-",
            color=colour,
            linewidth=1.4,
            markersize=3.5,
            label=view.label,
        )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes_style(ax, "index $i$", "singular value $\\sigma_i$")


def curves_panel(ax: Axes, curves: Sequence[Curve]) -> None:
    """Lines with shaded intervals."""
    for number, curve in enumerate(curves):
        colour = palette.view_colour(number)
        ax.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, linewidth=0)
        ax.plot(curve.x, curve.mean, color=colour, linewidth=1.7, label=curve.label)
    ax.margins(x=0)


def draw_map(ax: Axes, grid: GridMap, values: np.ndarray, stops: Sequence[str]) -> AxesImage:
    """A heat map of values in [0, 1] over walls; states whose value is NaN are hatched."""
    ax.imshow(_walls(grid), interpolation="nearest")
    colours = LinearSegmentedColormap.from_list("map", list(stops))
    image = ax.imshow(grid.image(values), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    _hatch(ax, grid.positions[np.isnan(values)])
    frame_only(ax)
    return image


def features_of(view: View, features: tuple[int, int]) -> np.ndarray:
    """(n, 2) the two features; the second is 0 when there is only one."""
    for feature in features:
        if not 0 <= feature < max(view.k, 2):
            raise ValueError(f"features: {view.label!r} has features 0 to {view.k - 1}, got {feature}.")
    padded = view.representation if view.k > 1 else np.pad(view.representation, ((0, 0), (0, 1)))
    return padded[:, list(features)]


def heading(ax: Axes, text: str, letter: str = "", detail: str = "") -> None:
    """A title set to the left, a bold letter before it and a quieter detail below it."""
    prefix = f"$\\bf{{{letter}}}$   " if letter else ""
    pad = 16 if detail else 6
    ax.set_title(prefix + plain_text(text), loc="left", fontsize=TITLE_SIZE, color=palette.INK, pad=pad)
    if detail:
        ax.annotate(
            plain_text(detail), (0, 1), (0, 5), "axes fraction", textcoords="offset points",
            fontsize=LABEL_SIZE, color=palette.MUTED, va="bottom",
        )  # fmt: skip


def _hatch(ax: Axes, positions: np.ndarray) -> None:
    """Hatches cells, all in one shape: a hatch is slow to draw."""
    if len(positions) == 0:
        return
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    squares = [MatplotlibPath(position[::-1] + corners, closed=True) for position in positions]
    shape = MatplotlibPath.make_compound_path(*squares)
    ax.add_patch(PathPatch(shape, facecolor="white", edgecolor="#9aa1ae", hatch="////", linewidth=0))


def _walls(grid: GridMap) -> np.ndarray:
    """(H, W, 3) walls in their colour, everything else white."""
    wall, other = palette.hex_to_rgb(palette.WALL_COLOUR), palette.hex_to_rgb(palette.UNKNOWN_COLOUR)
    return np.where(grid.walls[..., None], wall, other)


def plain_text(text: str) -> str:
    """Text in which a dollar sign is a dollar sign."""
    return text.replace("$", r"\$")


def frame_only(ax: Axes) -> None:
    """Takes ticks and spines away, for pictures and maps."""
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_visible(False)


def axes_style(ax: Axes, xlabel: str, ylabel: str) -> None:
    """Quiet axes: two thin spines, a light grid, small muted ticks."""
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


def _log_axis(ax: Axes, axis: str, values: np.ndarray) -> None:
    """A log axis; over few decades its ticks are plain numbers."""
    decades = np.log10(values.max() / values.min())
    target = ax.xaxis if axis == "x" else ax.yaxis
    (ax.set_xscale if axis == "x" else ax.set_yscale)("log")
    if decades < 3:
        target.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 1.6 else (1.0,)))
        target.set_major_formatter("{x:g}")
    else:
        target.set_major_locator(LogLocator(base=10, numticks=6))
    target.set_minor_formatter(NullFormatter())
