"""Videos: sizes, durations, captions, errors, and no files left behind."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL.GifImagePlugin import GifImageFile

from derex.report.film import LEAST_WIDTH, STRIP, Frame, check_film, write_film

RED, BLUE = (np.full((51, 61, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 0, 255)))
FRAMES = [Frame(RED, "step 0", "return 0"), Frame(BLUE, "step 1", "return 1  success", hold=True)]


def test_a_gif_has_all_pictures_and_holds_the_last(tmp_path):
    path = write_film(tmp_path / "new" / "a.gif", FRAMES, fps=20, scale=2)
    with GifImageFile(path) as image:
        assert image.n_frames == 2
        assert image.size == (LEAST_WIDTH, 2 * 51 + STRIP)
        durations, middles, captions = [], [], []
        for number in range(2):
            image.seek(number)
            pixels = np.asarray(image.convert("RGB")).astype(int)
            durations.append(image.info["duration"])
            middles.append(pixels[51, LEAST_WIDTH // 2])
            captions.append(pixels[-STRIP:])
    assert durations == [50, 1000]
    assert np.abs(middles - np.array([(255, 0, 0), (0, 0, 255)])).max() < 30
    assert (captions[0] < 100).any()
    assert (captions[0] != captions[1]).any()


def test_large_pictures_are_not_made_narrower(tmp_path):
    wide = Frame(np.zeros((20, 401, 3), np.uint8), "", "")
    with GifImageFile(write_film(tmp_path / "a.gif", [wide])) as image:
        assert image.size == (402, 20 + STRIP)  # even, as video asks for


FAKE = """
import os, pathlib, sys
data = sys.stdin.buffer.read()
if "NO_CODEC" in os.environ:
    sys.exit("no codec")
pathlib.Path(sys.argv[-1]).write_bytes(f"{sys.argv[sys.argv.index('-s') + 1]} {len(data)}".encode())
"""


@pytest.fixture
def fake_ffmpeg(tmp_path, monkeypatch):
    """An ffmpeg that says what it was given."""
    script = tmp_path / "ffmpeg"
    script.write_text(f"#!{sys.executable}\n{FAKE}")
    script.chmod(0o755)
    module = SimpleNamespace(get_ffmpeg_exe=lambda: str(script))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", module)


@pytest.mark.usefixtures("fake_ffmpeg")
def test_ffmpeg_gets_every_picture(tmp_path):
    path = write_film(tmp_path / "a.mp4", FRAMES, fps=10)
    height = 51 + STRIP + 1
    assert path.read_text() == f"{LEAST_WIDTH}x{height} {(1 + 10) * LEAST_WIDTH * height * 3}"


@pytest.mark.usefixtures("fake_ffmpeg")
def test_a_failure_of_ffmpeg_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_CODEC", "1")
    with pytest.raises(OSError, match=r"--out: ffmpeg .* no codec"):
        write_film(tmp_path / "films" / "a.mp4", FRAMES)
    assert not (tmp_path / "films").exists()


@pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="the extra `video` is not installed")
def test_the_real_ffmpeg_writes_a_film(tmp_path):
    ffmpeg = import_module("imageio_ffmpeg")
    path = write_film(tmp_path / "a.mp4", FRAMES, fps=10)
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert frames == 11
    assert seconds == pytest.approx(1.1, abs=0.05)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ValueError, match=r"pip install .*\[video\]', or write a .gif"):
        check_film(Path("a.mp4"), 10, 1)


@pytest.mark.parametrize(
    ("path", "fps", "scale", "says"),
    [
        ("a.avi", 10, 1, "ends in .gif or .mp4"),
        ("a.gif", 0, 1, "--fps"),
        ("a.gif", 51, 1, "--fps"),
        ("a.gif", 9, 0, "--scale"),
    ],
)
def test_bad_films_are_refused(path, fps, scale, says):
    with pytest.raises(ValueError, match=says):
        check_film(Path(path), fps, scale)


def test_a_folder_is_no_film(tmp_path):
    (tmp_path / "a.gif").mkdir()
    with pytest.raises(IsADirectoryError, match="give a file"):
        check_film(tmp_path / "a.gif", 10, 1)
