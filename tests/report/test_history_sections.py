"""Sections of the partially observed four rooms: what their payloads carry, how much, and the page they make."""

import base64
import io
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from derex.report import (
    BeliefTrack,
    GridMap,
    HistoryCloud,
    Section,
    belief_section,
    cloud_section,
    write_page,
)
from derex.report.sections import MOST_HISTORIES, belief_levels, make_sprite

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'q'"
GRID = GridMap("row", ("." * 26,) * 4, np.argwhere(np.ones((4, 26))))


def cloud(k: int = 3, m: int = 50, title: str = "p = 0.3") -> HistoryCloud:
    rng = np.random.default_rng(k)
    return HistoryCloud(title, GRID, rng.integers(0, GRID.n, m), rng.normal(size=(m, k)))


def track(
    steps: int = 20, labels: tuple[str, ...] = ("decoded", "exact"), title: str = "p = 0"
) -> BeliefTrack:
    rng = np.random.default_rng(steps)
    frames = np.full((GRID.n + 1, 30, 30, 3), 255, np.uint8)
    for number, frame in enumerate(frames[:-1]):
        frame[number // 26, number % 26] = (255, 0, 0)
    beliefs = tuple((label, rng.dirichlet(np.full(GRID.n, 0.1), steps)) for label in labels)
    state = rng.integers(0, GRID.n, steps)
    return BeliefTrack(title, GRID, frames, np.where(rng.random(steps) < 0.5, state, GRID.n), state, beliefs)


def payload(section: Section) -> dict:
    found = re.search(r'<script type="application/json">(.*?)</script>', section.html, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1), parse_constant=pytest.fail)


def test_cloud_carries_points_states_and_colours():
    shown, flat = cloud(4), cloud(2)
    data = payload(cloud_section([shown, flat]))
    assert data["positions"] == GRID.positions.tolist()
    assert len(data["colours"]) == len(set(data["colours"])) == GRID.n
    for one, original in zip(data["clouds"], (shown, flat), strict=True):
        values = np.frombuffer(base64.b64decode(one["features"]), "<f4").reshape(one["k"], -1)
        np.testing.assert_allclose(values.T, original.representation, rtol=1e-6)
        assert one["state"] == original.state.tolist()
        np.testing.assert_allclose(one["limits"], original.limits(), rtol=1e-5)
        assert (one["total"], one["title"]) == (50, "p = 0.3")


def test_cloud_keeps_some_points_the_same_every_time():
    large = cloud(3, 5000)
    first, second = (cloud_section([large]) for _ in range(2))
    assert first.html == second.html
    (one,) = payload(first)["clouds"]
    values = np.frombuffer(base64.b64decode(one["features"]), "<f4").reshape(3, MOST_HISTORIES).T
    kept = {
        tuple(row): state for row, state in zip(large.representation.astype("f4"), large.state, strict=True)
    }
    assert [kept[tuple(row)] for row in values] == one["state"]
    assert one["total"] == 5000


def test_levels_give_probabilities_back_within_the_stated_error():
    p = np.concatenate([np.linspace(0, 1, 20_001), np.geomspace(1e-9, 1, 1000)])
    error = np.abs((belief_levels(p) / 255.0) ** 2 - p)
    assert np.all(error <= np.sqrt(p) / 255 + 1 / 510**2 + 1e-12)
    assert error.max() < 0.004
    assert belief_levels(np.array([0.0, 1.0])).tolist() == [0, 255]


def test_beliefs_and_frames_come_back():
    original = track()
    (one,) = payload(belief_section([original]))["tracks"]
    assert one["state"] == original.state.tolist()
    for belief, (label, p) in zip(one["beliefs"], original.beliefs, strict=True):
        levels = np.frombuffer(base64.b64decode(belief["levels"]), np.uint8).reshape(p.shape)
        assert belief["label"] == label
        assert np.all(np.abs((levels / 255.0) ** 2 - p) <= np.sqrt(p) / 255 + 1 / 510**2 + 1e-6)
    sheet = imread(io.BytesIO(base64.b64decode(one["sprite"].removeprefix("data:image/png;base64,"))))
    sheet = np.rint(sheet[..., :3] * 255).astype(np.uint8)
    (height, width), columns = one["size"], one["columns"]
    assert (
        sheet.shape[0] * sheet.shape[1] < 2 * len(np.unique(original.frame)) * height * width
    )  # only those used
    for t, number in enumerate(one["frame"]):
        row, column = divmod(number, columns)
        seen = sheet[row * height : (row + 1) * height, column * width : (column + 1) * width]
        np.testing.assert_array_equal(seen, original.frames[original.frame[t]])


def test_sprites_are_lossless():
    frames = np.random.default_rng(0).integers(0, 256, (3, 5, 9, 3), dtype=np.uint8)
    uri, columns = make_sprite(frames)
    sheet = imread(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))
    assert columns == 2
    np.testing.assert_array_equal(np.rint(sheet * 255)[:5], np.concatenate(frames[:2], axis=1))
    np.testing.assert_array_equal(np.rint(sheet * 255)[5:, :9], frames[2])


def test_sections_of_a_whole_study_stay_small():
    labels = ("Decoded from De-Rex", "Exact Bayes filter", "Untrained network")
    tracks = [track(250 + number, labels) for number in range(4)]
    assert len(belief_section(tracks).html) < 600_000
    assert len(cloud_section([cloud(4, 60_000)] * 4).html) < 450_000


def written(tmp_path: Path, sections: list[Section]) -> str:
    return write_page(tmp_path / "page.html", "Title", "", sections).read_text(encoding="utf-8")


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    text = written(tmp_path, [cloud_section([cloud()]), belief_section([track()]), cloud_section([cloud(2)])])
    assert text.count("const derexPlot =") == text.count("class Cloud {") == text.count("class Belief {") == 1
    assert text.count("<noscript>") == 3
    assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="(?!data:,")', text)
    assert "plotly" not in text.lower()
    only = written(tmp_path, [cloud_section([cloud()])])
    assert "class Belief {" not in only
    assert "class Explorer {" not in only
    folder = resources.files("derex.report").joinpath("assets")
    for name in ("cloud.js", "belief.js", "plot.js"):
        script = folder.joinpath(name).read_text(encoding="utf-8")
        assert not set(re.findall(r"\bhttps?://[^\s\"')]+", script)) - {"http://www.w3.org/2000/svg"}
        assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(|innerHTML", script)


def test_scripts_serve_keyboard_readers_and_those_who_want_less_motion():
    folder = resources.files("derex.report").joinpath("assets")
    for name in ("cloud.js", "belief.js"):
        script = folder.joinpath(name).read_text(encoding="utf-8")
        for part in ("keydown", "aria-label", "still.matches", 'dark.addEventListener("change"'):
            assert part in script, (name, part)


def test_everything_supplied_is_escaped(tmp_path):
    sections = [
        cloud_section([cloud(title=NASTY)], NASTY, NASTY),
        belief_section([track(labels=(NASTY,), title=NASTY)], NASTY, NASTY),
    ]
    text = written(tmp_path, sections)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert payload(sections[1])["tracks"][0]["beliefs"][0]["label"] == NASTY  # the script sets it as text


def test_sections_name_what_is_wrong():
    other = GridMap("other", ("....",), np.argwhere(np.ones((1, 4))))
    with pytest.raises(ValueError, match="clouds: expected at least one"):
        cloud_section([])
    with pytest.raises(ValueError, match="tracks: expected at least one"):
        belief_section([])
    with pytest.raises(ValueError, match=r"clouds: .* one map; got 'row' and 'other'"):
        cloud_section([cloud(), HistoryCloud("o", other, np.zeros(2, int), np.zeros((2, 2)))])
