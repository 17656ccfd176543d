"""Videos of pictures with captions, as .gif or .mp4, written atomically."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from derex._text import install_command
from derex.report.data import expect
from derex.report.files import check_place, write_atomically
from derex.report.palette import INK

ENDINGS = (".gif", ".mp4")
STRIP = 26  # height of the caption, in pixels
LEAST_WIDTH = 280  # so that captions fit
HOLD = 1.0  # seconds that the last picture of an episode stays
FASTEST = 50  # pictures a second


class Frame(NamedTuple):
    """A picture and its caption."""

    picture: UInt8[np.ndarray, "H W 3"]
    left: str  # caption at the left
    right: str  # caption at the right
    hold: bool = False  # whether it stays for `HOLD` seconds


def check_film(path: Path, fps: int, scale: int) -> None:
    """Refuses options that cannot be written, before anything is drawn."""
    expect(path.suffix in ENDINGS, "--out", f"a name that ends in {' or '.join(ENDINGS)}", path)
    if path.is_dir():
        raise IsADirectoryError(f"--out: {path} is a folder; give a file.")
    check_place(path, "--out")
    for name, value, most in (("fps", fps, FASTEST), ("scale", scale, 8)):
        expect(1 <= value <= most, f"--{name}", f"1 to {most}", value)
    if path.suffix == ".mp4":
        _ffmpeg()


def write_film(path: str | Path, frames: Sequence[Frame], fps: int = 12, scale: int = 1) -> Path:
    """Writes the video, .gif or .mp4, as large as its largest picture times `scale`, with `fps` pictures a second."""
    path = Path(path)
    check_film(path, fps, scale)
    pictures = _captioned(frames, scale)
    held = [max(round(HOLD * fps), 1) if frame.hold else 1 for frame in frames]
    return write_atomically(path, (_gif if path.suffix == ".gif" else _mp4)(pictures, held, fps))


def _captioned(frames: Sequence[Frame], scale: int) -> list[UInt8[np.ndarray, "H W 3"]]:
    """Puts each picture at the top left of a white sheet, centred above its caption.

    All sheets have one size; sides are even, as video codecs need.
    """
    from PIL import Image, ImageDraw, ImageFont

    pictures = [frame.picture.repeat(scale, axis=0).repeat(scale, axis=1) for frame in frames]
    widths = [max(picture.shape[1], LEAST_WIDTH) for picture in pictures]
    height, width = max(picture.shape[0] for picture in pictures) + STRIP, max(widths)
    font, sheets = ImageFont.load_default(size=13), []
    for frame, picture, own_width in zip(frames, pictures, widths, strict=True):
        sheet = Image.new("RGB", (width + width % 2, height + height % 2), "white")
        right, middle = own_width + own_width % 2, picture.shape[0] + STRIP // 2
        sheet.paste(Image.fromarray(picture), ((right - picture.shape[1]) // 2, 0))
        draw = ImageDraw.Draw(sheet)
        draw.text((8, middle), frame.left, fill=INK, font=font, anchor="lm")
        draw.text((right - 8, middle), frame.right, fill=INK, font=font, anchor="rm")
        sheets.append(np.asarray(sheet))
    return sheets


def _gif(pictures: list[np.ndarray], held: list[int], fps: int) -> bytes:
    from PIL import Image

    # One palette for all pictures: with one each, colours would flicker.
    sample = np.concatenate(pictures[:: max(len(pictures) // 16, 1)], axis=0)
    palette = Image.fromarray(sample).quantize(256, dither=Image.Dither.NONE)
    first, *others = (
        Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
    )
    buffer, durations = io.BytesIO(), [round(1000 * count / fps) for count in held]
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=durations, loop=0, disposal=1)
    return buffer.getvalue()


def _mp4(pictures: list[np.ndarray], held: list[int], fps: int) -> bytes:
    """Runs ffmpeg directly: the writer of imageio_ffmpeg forks, which is unsafe in a process with JAX."""
    height, width = pictures[0].shape[:2]
    raw = b"".join(picture.tobytes() * count for picture, count in zip(pictures, held, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
        target = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        command = [_ffmpeg().get_ffmpeg_exe(), "-loglevel", "error", "-y", *source, *target]
        done = subprocess.run(command, input=raw, capture_output=True)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise OSError(f"--out: ffmpeg could not write the video: {reason}")
        return path.read_bytes()


def _ffmpeg() -> Any:
    """Imports the library that provides ffmpeg."""
    try:
        return import_module("imageio_ffmpeg")
    except ImportError as error:
        how = install_command("video")
        raise ValueError(f"--out: .mp4 needs imageio-ffmpeg: {how}, or write a .gif.") from error
