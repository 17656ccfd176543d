"""Numbers and pictures in few bytes, for the payloads of a page."""

import base64
import struct
import zlib

import numpy as np


def base64_of(values: np.ndarray, dtype: str) -> str:
    """The values as base64 text of their little-endian bytes, in C order.

    Args:
        values: numbers that `dtype` can hold.
        dtype: e.g. ``"<f4"``, ``"<u2"`` or ``"u1"``.
    """
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


def belief_levels(probabilities: np.ndarray) -> np.ndarray:
    """Probabilities p as uint8 levels round(255 √p).

    The root spends the levels on small probabilities, where diffuse beliefs live, and is the scale of their
    colours too. (level / 255)² gives p back with an error of at most √p / 255 + 1 / 510².
    """
    return np.rint(255 * np.sqrt(np.clip(probabilities, 0, 1))).astype(np.uint8)


def sprite(frames: np.ndarray) -> tuple[str, int]:
    """All frames in one PNG, in reading order.

    Args:
        frames: (F, height, width, 3) uint8.

    Returns:
        The picture as a data URI, and the number of frames in each of its rows.
    """
    count, height, width, _ = frames.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    sheet = np.zeros((rows * columns, height, width, 3), np.uint8)
    sheet[:count] = frames
    sheet = sheet.reshape(rows, columns, height, width, 3).swapaxes(1, 2)
    content = base64.b64encode(png(sheet.reshape(rows * height, columns * width, 3))).decode()
    return f"data:image/png;base64,{content}", columns


def png(picture: np.ndarray) -> bytes:
    """A (height, width, 3) uint8 picture as a PNG file, without loss."""
    height, width, _ = picture.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # eight bits, RGB
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # a zero before each line: no filter
    lines[:, 1:] = picture.reshape(height, 3 * width)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
