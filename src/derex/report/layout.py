"""How figures are laid out and written: square axes placed to the point, colour bars, PNG files.

Nothing here touches pyplot or its global state; figures are made, written and forgotten.
"""

import io
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from derex.report import palette
from derex.report.files import write_atomically
from derex.report.panels import TICK_SIZE, plain_text

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
