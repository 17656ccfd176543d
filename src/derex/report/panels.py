"""The report's colours, in one place so that figures and page agree. All are safe for colour-blind readers.

Sequential scales run from dark (low) to bright (high), as in Figures 2 and 3; beliefs run from white to red.

The panels that figures are put together from; each draws on axes that it is given.

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

from derex.report.data import Comparison, Curve, GridMap, RepresentationView

VIEW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6fdf", "#b08b00", "#3ba7dd", "#6b7280")
"""Lines and marks of views and curves, in their order (after Okabe and Ito; readable on white and black)."""

VISITATION_STOPS = (
    "#440154", "#482173", "#433e85", "#38598c", "#2d708e", "#25858e",
    "#1e9b8a", "#2ab07f", "#52c569", "#86d549", "#c2df23", "#fde725",
)  # fmt: skip
"""Colour scale of the visitation (viridis)."""

BONUS_STOPS = (
    "#090720", "#221150", "#451077", "#671b80", "#882781", "#aa337d",
    "#cc3f71", "#e85362", "#f8765c", "#fe9d6c", "#fec488", "#fdebac",
)  # fmt: skip
"""Colour scale of the bonus (magma, without its black end)."""

BELIEF_STOPS = ("#ffffff", "#fee3d6", "#fcb398", "#f97857", "#e32f27", "#ac0f18", "#67000d")
"""Colour scale of beliefs: deeper red is more, none is white, as in the paper's figures of beliefs."""

BELIEF_STOPS_DARK = ("#1a1f28", "#57242f", "#8f2b38", "#c23a3c", "#ec5a48", "#ff9070", "#ffd0b4")
"""The same on a dark page, where none is nearly the page's colour and more is brighter."""

WALL_COLOUR = "#d8dbe2"
UNKNOWN_COLOUR = "#ffffff"
INK = "#1d2330"
MUTED = "#667085"
GRID = "#e7e9ee"

_CORNERS = ("#ffb400", "#00c9bd", "#d3103f", "#3a1fb8")
"""Reference colours at the top left, top right, bottom left and bottom right of a map.

Left is warm and right cool, top is light and bottom dark: four rooms stay apart without red and green.
"""

_RGB_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LMS_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def view_colour(number: int) -> str:
    """Colour of the view or curve with that number; they repeat after the last."""
    return VIEW_COLOURS[number % len(VIEW_COLOURS)]


def reference_colours(positions: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The colour of every state, by its place on the map (Figure 2 B).

    The colours of the map's corners are mixed in the perceptual space OKLab, so that equal steps on the
    map look about equally large.

    Args:
        positions: (n, 2) row and column of every state.
        shape: rows and columns of the map.

    Returns:
        (n, 3) sRGB in [0, 1].
    """
    positions = np.asarray(positions, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2:
        raise ValueError(f"positions: expected shape (n, 2), got {positions.shape}.")
    if min(shape) < 1:
        raise ValueError(f"shape: expected at least one row and one column, got {shape}.")
    across = (2 * positions + 1) / np.array(shape) - 1
    across = 0.5 * across + 0.5 * np.sin(np.pi / 2 * across)  # keeps most of the map out of the grey middle
    down, right = ((across + 1) / 2).T[..., None]
    top_left, top_right, bottom_left, bottom_right = _to_oklab(np.array([hex_to_rgb(c) for c in _CORNERS]))
    top = (1 - right) * top_left + right * top_right
    bottom = (1 - right) * bottom_left + right * bottom_right
    return _from_oklab((1 - down) * top + down * bottom)


def hex_to_rgb(colour: str) -> tuple[float, float, float]:
    """``#rrggbb`` as three numbers in [0, 1]."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def rgb_to_hex(rgb: np.ndarray) -> list[str]:
    """(n, 3) numbers in [0, 1] as ``#rrggbb``."""
    levels = np.rint(np.clip(rgb, 0, 1) * 255).astype(int)
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in levels]


def normalise(values: np.ndarray) -> np.ndarray:
    """Finite values scaled to [0, 1]; infinite ones and NaN become NaN. Equal values become 0.5."""
    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(values.shape, np.nan)
    low, high = values[finite].min(), values[finite].max()
    scaled = (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
    return np.where(finite, scaled, np.nan)


def _to_oklab(rgb: np.ndarray) -> np.ndarray:
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _RGB_TO_LMS.T) @ _LMS_TO_LAB.T


def _from_oklab(lab: np.ndarray) -> np.ndarray:
    lms = (lab @ np.linalg.inv(_LMS_TO_LAB).T) ** 3
    linear = np.clip(lms @ np.linalg.inv(_RGB_TO_LMS).T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


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
    return draw_map(ax, comparison.map, normalise(d), VISITATION_STOPS)


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
    picture[rows, columns] = reference_colours(grid.positions, grid.shape)
    image = ax.imshow(picture, interpolation="nearest")
    frame_only(ax)
    return image


def representation_panel(
    ax: Axes,
    comparison: Comparison,
    view: RepresentationView | None = None,
    features: tuple[int, int] = (0, 1),
) -> None:
    """Figure 2 C: states at their first two features, in the reference colours.

    Thin lines join states that are neighbours on the map; states never visited are hollow. With a single
    feature the second coordinate is 0.
    """
    view = comparison.view() if view is None else view
    points = features_of(view, features)
    colours = reference_colours(comparison.map.positions, comparison.map.shape)
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


def bonus_panel(ax: Axes, comparison: Comparison, view: RepresentationView | None = None) -> AxesImage:
    """Figure 2 D: the bonus of every state, scaled to [0, 1]; darker is lower.

    States whose bonus is not finite are hatched.
    """
    view = comparison.view() if view is None else view
    return draw_map(ax, comparison.map, normalise(view.bonus), BONUS_STOPS)


def rarity_panel(ax: Axes, comparison: Comparison, view: RepresentationView, colour: str) -> None:
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


def spectrum_panel(ax: Axes, views: Sequence[RepresentationView], colours: Sequence[str]) -> None:
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
        colour = view_colour(number)
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


def features_of(view: RepresentationView, features: tuple[int, int]) -> np.ndarray:
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
    ax.set_title(prefix + plain_text(text), loc="left", fontsize=TITLE_SIZE, color=INK, pad=pad)
    if detail:
        ax.annotate(
            plain_text(detail), (0, 1), (0, 5), "axes fraction", textcoords="offset points",
            fontsize=LABEL_SIZE, color=MUTED, va="bottom",
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
    wall, other = hex_to_rgb(WALL_COLOUR), hex_to_rgb(UNKNOWN_COLOUR)
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
    ax.set_xlabel(xlabel, fontsize=LABEL_SIZE, color=INK, labelpad=2)
    ax.set_ylabel(ylabel, fontsize=LABEL_SIZE, color=INK, labelpad=2)
    ax.tick_params(labelsize=TICK_SIZE, length=2.5, width=0.6, color=MUTED, labelcolor=MUTED)
    ax.tick_params(which="minor", length=0)
    ax.grid(color=GRID, linewidth=0.6)
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
