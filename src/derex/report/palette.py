"""The report's colours, shared by figures and pages. All are safe for colour-blind readers.

Sequential scales run from dark (low) to bright (high), as in Figures 2 and 3; beliefs run from white to red.
"""

import numpy as np

VIEW_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6fdf", "#b08b00", "#3ba7dd", "#6b7280")
"""Colours of views and curves, in order (after Okabe and Ito; readable on white and black)."""

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
"""Colour scale of beliefs: deeper red is more, white is none, as in the paper's figures of beliefs."""

BELIEF_STOPS_DARK = ("#1a1f28", "#57242f", "#8f2b38", "#c23a3c", "#ec5a48", "#ff9070", "#ffd0b4")
"""Colour scale of beliefs on a dark page: brighter is more."""

WALL_COLOUR = "#d8dbe2"
INK = "#1d2330"
MUTED = "#667085"
GRID = "#e7e9ee"

# Reference colours at the top left, top right, bottom left and bottom right of a map: left is warm and right cool, top
# is light and bottom dark, so four rooms can be told apart without red against green.
_CORNERS = ("#ffb400", "#00c9bd", "#d3103f", "#3a1fb8")

_RGB_TO_LMS = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
_LMS_TO_LAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def view_colour(number: int) -> str:
    """Returns the colour of a view or curve; colours repeat after the last."""
    return VIEW_COLOURS[number % len(VIEW_COLOURS)]


def reference_colours(positions: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Computes the colour of every state from its place on the map (Figure 2 B).

    The colours of the corners are mixed in the perceptual space OKLab, so equal steps on the map look about equal.

    Args:
        positions: (n, 2) row and column of every state.
        shape: rows and columns of the map.

    Returns:
        (n, 3) sRGB in [0, 1].
    """
    positions = np.asarray(positions, dtype=np.float64)
    if positions.ndim != 2 or positions.shape[1] != 2 or min(shape) < 1:
        raise ValueError(f"positions: expected shape (n, 2) on a map, got {positions.shape} on {shape}.")
    across = (2 * positions + 1) / np.array(shape) - 1
    across = 0.5 * across + 0.5 * np.sin(np.pi / 2 * across)  # keeps most of the map out of the grey middle
    down, right = ((across + 1) / 2).T[..., None]
    top_left, top_right, bottom_left, bottom_right = _to_oklab(np.array([hex_to_rgb(c) for c in _CORNERS]))
    top = (1 - right) * top_left + right * top_right
    bottom = (1 - right) * bottom_left + right * bottom_right
    return _from_oklab((1 - down) * top + down * bottom)


def hex_to_rgb(colour: str) -> tuple[float, float, float]:
    """Converts ``#rrggbb`` to three numbers in [0, 1]."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red / 255, green / 255, blue / 255


def rgb_to_hex(rgb: np.ndarray) -> list[str]:
    """Converts (n, 3) numbers in [0, 1] to ``#rrggbb``."""
    return [f"#{bytes(levels).hex()}" for levels in np.rint(np.clip(rgb, 0, 1) * 255).astype(np.uint8)]


def normalise(values: np.ndarray) -> np.ndarray:
    """Scales finite values to [0, 1]; infinite values and NaN become NaN, equal values 0.5."""
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
