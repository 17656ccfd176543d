"""Videos of pictures with captions, as .gif or .mp4, written atomically."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from derex._text import install_command
from derex.report.files import check_place, write_atomically
from derex.report.palette import INK, hex_to_rgb

ENDINGS = (".gif", ".mp4")
STRIP = 26  # height of the caption, in pixels
LEAST_WIDTH = 280  # so that captions fit
HOLD = 1.0  # seconds that the last picture of an episode stays
FASTEST = 50  # pictures a second


class Frame(NamedTuple):
    """A picture and its caption, left and right."""

    picture: UInt8[np.ndarray, "H W 3"]
    left: str
    right: str
    hold: bool = False
    """whether it stays for `HOLD` seconds"""


def check_film(path: Path, fps: int, scale: int) -> None:
    """Refuses options that cannot be written, before anything is drawn."""
    if path.suffix not in ENDINGS:
        raise ValueError(f"--out: expected a name that ends in {' or '.join(ENDINGS)}; got {path}.")
    if path.is_dir():
        raise IsADirectoryError(f"--out: {path} is a folder; give a file.")
    check_place(path, "--out")
    if not 1 <= fps <= FASTEST:
        raise ValueError(f"--fps: expected 1 to {FASTEST}, got {fps}.")
    if not 1 <= scale <= 8:
        raise ValueError(f"--scale: expected 1 to 8, got {scale}.")
    if path.suffix == ".mp4":
        _ffmpeg()


def write_film(path: str | Path, frames: Sequence[Frame], fps: int = 12, scale: int = 1) -> Path:
    """Writes the video, as large as its largest picture.

    Args:
        path: file to write, .gif or .mp4.
        frames: the pictures.
        fps: pictures per second.
        scale: factor by which pictures are enlarged.
    """
    path = Path(path)
    check_film(path, fps, scale)
    pictures = _of_one_size([_captioned(frame, scale) for frame in frames])
    held = [max(round(HOLD * fps), 1) if frame.hold else 1 for frame in frames]
    if path.suffix == ".gif":
        return write_atomically(path, _gif(pictures, held, fps))
    return write_atomically(path, _mp4(pictures, held, fps))


def _captioned(frame: Frame, scale: int) -> UInt8[np.ndarray, "H W 3"]:
    """Centres the picture on a white sheet, with text below; sides are even, as video codecs need."""
    from PIL import Image, ImageDraw, ImageFont

    picture = frame.picture.repeat(scale, axis=0).repeat(scale, axis=1)
    height, width = picture.shape[:2]
    across = max(width, LEAST_WIDTH) + max(width, LEAST_WIDTH) % 2
    sheet = np.full((height + STRIP + (height + STRIP) % 2, across, 3), 255, np.uint8)
    left = (across - width) // 2
    sheet[:height, left : left + width] = picture
    image = Image.fromarray(sheet)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=13)
    ink = tuple(round(255 * part) for part in hex_to_rgb(INK))
    middle = height + STRIP // 2
    draw.text((8, middle), frame.left, fill=ink, font=font, anchor="lm")
    draw.text((across - 8, middle), frame.right, fill=ink, font=font, anchor="rm")
    return np.asarray(image)


def _of_one_size(pictures: list[np.ndarray]) -> list[np.ndarray]:
    """Pads smaller pictures with white at the right and below."""
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    return [
        np.pad(one, [(0, height - one.shape[0]), (0, width - one.shape[1]), (0, 0)], constant_values=255)
        for one in pictures
    ]


def _gif(pictures: list[np.ndarray], held: list[int], fps: int) -> bytes:
    from PIL import Image

    # One palette for all pictures: with one each, colours would flicker.
    sample = np.concatenate(pictures[:: max(len(pictures) // 16, 1)], axis=0)
    palette = Image.fromarray(sample).quantize(256, dither=Image.Dither.NONE)
    images = [
        Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
    ]
    buffer = io.BytesIO()
    durations = [round(1000 * count / fps) for count in held]
    images[0].save(
        buffer, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, disposal=1
    )
    return buffer.getvalue()


def _mp4(pictures: list[np.ndarray], held: list[int], fps: int) -> bytes:
    """Runs ffmpeg directly: the writer of imageio_ffmpeg forks, which is unsafe in a process with JAX."""
    height, width = pictures[0].shape[:2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        came = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
        wanted = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        command = [_ffmpeg().get_ffmpeg_exe(), "-loglevel", "error", "-y", *came, *wanted]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            _, said = process.communicate(b"".join(_repeated(pictures, held)))
        if process.returncode:
            raise OSError(f"--out: ffmpeg could not write the video: {said.decode(errors='replace').strip()}")
        return path.read_bytes()


def _repeated(pictures: list[np.ndarray], held: list[int]) -> Iterator[bytes]:
    for picture, count in zip(pictures, held, strict=True):
        yield from [np.ascontiguousarray(picture).tobytes()] * count


def _ffmpeg() -> Any:
    """Imports the library that provides ffmpeg."""
    try:
        return import_module("imageio_ffmpeg")
    except ImportError as error:
        raise ValueError(
            f"--out: .mp4 needs imageio-ffmpeg: {install_command('video')}, or write a .gif."
        ) from error
