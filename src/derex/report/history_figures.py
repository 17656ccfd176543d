"""PNG figures of the partially observed four rooms: slices of representations, bonuses, beliefs.

They follow the paper's ablation study of the 4-rooms POMDP (Figures POMDP_rep, POMDP_bonus, POMDP_belief).
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from derex.report import palette
from derex.report.data import GridMap
from derex.report.figures import figure_title, panel_grid, save, scale_bar, signed
from derex.report.history_data import BeliefTrack, BonusMaps, HistoryCloud, StateBonus, same_map
from derex.report.panels import (
    LABEL_SIZE,
    TICK_SIZE,
    axes_style,
    draw_map,
    heading,
    picture_panel,
    plain_text,
    reference_panel,
)

_SLICES = (("XY", 0, 1), ("XZ", 0, 2), ("YZ", 1, 2))
_SIDE, _LABELS = 1.0, 1.28  # inches: a map among the beliefs, and the labels at the left of their rows


def slices_figure(clouds: Sequence[HistoryCloud], path: str | Path) -> Path:
    """Writes the representations of histories as slices through their first three features.

    Top left are the reference colours of the states; each cloud is a row of its slices XY, XZ and YZ (only XY if it has
    two features). A history has the colour of the true state that it ends in.

    Args:
        clouds: the representations, all on one map.
        path: file to write.
    """
    grid = same_map("clouds", [cloud.map for cloud in clouds])
    columns = max(len(_slices(cloud)) for cloud in clouds)
    figure, axes = panel_grid(len(clouds), 1 + columns, size=(2.4, 2.4), top=0.56, row_gap=0.92, gap=0.6)
    for (first, *row), cloud in zip(axes, clouds, strict=True):
        if cloud is not clouds[0]:
            first.set_axis_off()
        for ax in row[len(_slices(cloud)) :]:
            ax.set_axis_off()
        for ax, (name, x, y) in zip(row, _slices(cloud), strict=False):
            slice_panel(ax, cloud, (x, y))
            about = f"slice {name} · {_features(cloud)}" if name == "XY" else f"slice {name}"
            heading(ax, _row_title(cloud) if name == "XY" else "", detail=about)
    reference_panel(axes[0][0], grid)
    heading(axes[0][0], "Reference colours", detail="of the true state")
    return save(figure, path)


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


def bonus_maps_figure(map: GridMap, d: np.ndarray, bonuses: Sequence[StateBonus], path: str | Path) -> Path:
    """Writes the visitation, and beside it each bonus on the map, with Spearman's ρ to 1/d(s).

    More than three bonuses take two rows. Each map is scaled to [0, 1]; hatched states were never visited.

    Args:
        map: the map.
        d: (n,) visitation of the states, frequencies or counts.
        bonuses: the bonuses.
        path: file to write.
    """
    maps = BonusMaps(map, d, tuple(bonuses))
    rows = 2 if len(maps.bonuses) > 3 else 1
    columns = -(-len(maps.bonuses) // rows)
    figure, axes = panel_grid(
        rows, 1 + columns, size=(2.2, 2.2), top=0.56, bottom=0.36, row_gap=0.72, left=0.2, gap=0.3
    )
    visited = palette.normalise(np.where(maps.d > 0, maps.d, np.nan))
    image = draw_map(axes[0][0], map, visited, palette.VISITATION_STOPS)
    scale_bar(axes[0][0], image, "visitation")
    heading(axes[0][0], "State visitation", detail="of the true states")
    for row in axes[1:]:
        row[0].set_axis_off()
    for number, ax in enumerate(ax for row in axes for ax in row[1:]):
        if number >= len(maps.bonuses):
            ax.set_axis_off()
            continue
        bonus = maps.bonuses[number]
        image = draw_map(ax, map, palette.normalise(bonus.bonus), palette.BONUS_STOPS)
        heading(ax, bonus.label, detail=f"Spearman ρ {signed(bonus.spearman)}")
        if number == 0:
            scale_bar(ax, image, "bonus of each, scaled")
    return save(figure, path)


def beliefs_figure(
    track: BeliefTrack, path: str | Path, times: Sequence[int] = tuple(range(0, 201, 25))
) -> Path:
    """Writes what the agent saw at some times and, below, the beliefs about its state.

    Deeper red is more belief; colours follow the root of the probability, so diffuse beliefs are visible. A ring marks
    the true state.

    Args:
        track: the episode and its beliefs.
        path: file to write.
        times: the steps to show, by default those of the paper.
    """
    if not len(times):
        raise ValueError("times: expected at least one step, got none.")
    for t in times:
        if not 0 <= t < track.steps:
            raise ValueError(f"times: expected steps 0 to {track.steps - 1} of the track, got {t}.")
    figure, (seen, *rows) = panel_grid(
        1 + len(track.beliefs),
        len(times),
        (_SIDE, _SIDE),
        top=0.62,
        bottom=0.5,
        row_gap=0.07,
        left=_LABELS,
        gap=0.07,
    )
    for ax, t in zip(seen, times, strict=True):
        picture_panel(ax, track.frames[track.frame[t]])
        ax.set_title(f"t = {t}", fontsize=LABEL_SIZE, color=palette.MUTED, pad=4)
    _row_label(seen[0], "Observation")
    for axes, (label, probabilities) in zip(rows, track.beliefs, strict=True):
        for ax, t in zip(axes, times, strict=True):
            belief_panel(ax, track.map, probabilities[t], int(track.state[t]))
        _row_label(axes[0], label)
    _belief_bar(figure, rows[0][0].images[-1])
    figure_title(figure, track.title, _LABELS)
    return save(figure, path)


def belief_panel(ax: Axes, grid: GridMap, probabilities: np.ndarray, state: int | None = None) -> AxesImage:
    """Draws a belief on the map, its colours by √p; a ring marks the true state if it is given."""
    image = draw_map(ax, grid, np.sqrt(np.clip(probabilities, 0, 1)), palette.BELIEF_STOPS)
    for side in ax.spines.values():
        side.set(visible=True, color="#aab0bc", linewidth=0.5)
    if state is not None:
        row, column = grid.positions[state]
        size = 72 * _SIDE / max(grid.shape)
        for colour, width in (("white", 2.2), (palette.INK, 0.9)):
            ring = {"markersize": 1.15 * size, "fillstyle": "none", "markeredgewidth": width}
            ax.plot(column, row, "o", color=colour, **ring)
    return image


def _slices(cloud: HistoryCloud) -> tuple[tuple[str, int, int], ...]:
    return _SLICES if cloud.k > 2 else _SLICES[:1]


def _features(cloud: HistoryCloud) -> str:
    return f"features 1–3 of {cloud.k}" if cloud.k > 3 else f"{cloud.k} features"


def _row_title(cloud: HistoryCloud) -> str:
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
    bar.outline.set(edgecolor="#aab0bc", linewidth=0.5)
    bar_axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    bar_axes.tick_params(labelsize=TICK_SIZE, length=2, width=0.5, pad=2, labelcolor=palette.MUTED)
    figure.text(
        (_LABELS + 2.36) / width, 0.365 / height, "belief (probability of the state) · ring: the true state",
        fontsize=TICK_SIZE, color=palette.MUTED, va="center",
    )  # fmt: skip
