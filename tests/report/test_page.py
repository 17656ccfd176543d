"""The page: whole, self-contained, escaped, and with the numbers it should show."""

import base64
import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from derex.report import (
    Comparison,
    Curve,
    GridMap,
    RepresentationView,
    Section,
    Table,
    curves_section,
    explorer_section,
    four_panels,
    image_section,
    spectrum_section,
    table_section,
    text_section,
    write_page,
)
from derex.report.page import format_cell, markdown
from derex.report.sections import MOST_FEATURES

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'q'"


def small(label: str = "learnt") -> Comparison:
    grid = GridMap("tiny", ("####", "#..#", "####"), np.array([[1, 1], [1, 2]]))
    view = RepresentationView(
        label, np.array([[0.125, np.nan], [-8.0, 2.0]]), np.array([0.9, 0.25]), np.array([1.5, np.inf])
    )
    other = RepresentationView("exact", np.array([[1.0], [-1.0]]), np.array([0.5]), np.array([2.0, 3.0]))
    return Comparison(f"Map of {label}", grid, np.array([0.75, 0.25]), (view, other))


def curves(label: str = "ours") -> list[Curve]:
    mean = np.array([0.1, np.nan, 0.3, 0.4])
    return [Curve(label, np.arange(4), mean, mean - 0.05, mean + 0.05)]


class Reader(HTMLParser):
    """Collects tags with their attributes, ids, and the JSON of script elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.payloads: list[dict] = []
        self.in_json = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.in_json = tag == "script" and dict(attrs).get("type") == "application/json"

    def handle_endtag(self, tag: str) -> None:
        self.in_json = False

    def handle_data(self, data: str) -> None:
        if self.in_json:
            self.payloads.append(json.loads(data, parse_constant=pytest.fail))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def written(tmp_path: Path, sections: list[Section], lead: str = "") -> str:
    path = write_page(tmp_path / "report.html", "A <title>", lead, sections)
    assert [file.name for file in tmp_path.glob("*.html*")] == ["report.html"]
    return path.read_text(encoding="utf-8")


def full_page(tmp_path: Path) -> str:
    picture = four_panels(small(), tmp_path / "four.png")
    return written(
        tmp_path,
        [
            text_section("Text", "One **bold** word.\n\n- a\n- b"),
            table_section(
                Table("Scores", ("method", "score"), (("ours", 0.98765), ("none", None)), "caption")
            ),
            image_section("Picture", picture, "four *panels*"),
            explorer_section(small()),
            explorer_section(small("again")),
            curves_section("Curves", curves(), "steps", "return"),
            spectrum_section(small()),
        ],
        lead="The lead.",
    )


def test_nothing_is_loaded_from_anywhere(tmp_path):
    reader = Reader(full_page(tmp_path))
    for tag, attributes in reader.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form", "video", "audio")
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, name, value[:60])
    assert all("src" not in script for script in reader.all("script"))
    policy = [meta["content"] or "" for meta in reader.all("meta") if meta.get("http-equiv")]
    assert len(policy) == 1
    assert policy[0].startswith("default-src 'none'")
    assert "connect-src" not in policy[0]


def test_tables_wrap_and_scroll_rather_than_being_clipped():
    rules = dict(
        re.findall(
            r"^(\S[^{]*) \{ (.*) \}$",
            resources.files("derex.report").joinpath("assets", "page.css").read_text(),
            re.M,
        )
    )
    assert "nowrap" not in rules["th, td"]
    assert rules[".scroll"] == "overflow-x: auto;"


def test_own_scripts_and_styles_name_no_network():
    folder = resources.files("derex.report").joinpath("assets")
    for name in ("explorer.js", "plot.js", "charts.js", "cloud.js", "belief.js", "page.css"):
        text = folder.joinpath(name).read_text(encoding="utf-8")
        urls = set(re.findall(r"\bhttps?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not urls
        assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\s*\(|@import|url\(|innerHTML", text)
    assert "showSendToCloud: false" in folder.joinpath("charts.js").read_text(encoding="utf-8")


def test_plotly_is_inlined_once_and_only_when_needed(tmp_path):
    text = full_page(tmp_path)
    assert text.count("* plotly.js v") == 1
    assert text.count("const derexPlot =") == 1
    light = written(tmp_path, [explorer_section(small())])
    assert "plotly" not in light.lower().replace("plot.js", "")
    assert len(light) < 100_000
    assert "<script" not in written(tmp_path, [text_section("a", "b")])


def test_contents_point_at_the_sections(tmp_path):
    reader = Reader(full_page(tmp_path))
    ids = [section["id"] for section in reader.all("section")]
    links = [a["href"] for a in reader.all("a") if a["href"] != "#content"]
    assert len(set(ids)) == len(ids) == 7
    assert links == [f"#{id_}" for id_ in ids]
    same = Reader(
        written(tmp_path, [text_section("Same", "a"), text_section("same!", "b"), text_section("–", "")])
    )
    assert [section["id"] for section in same.all("section")] == ["s-same", "s-same--2", "s-section"]


def test_explorer_carries_the_numbers_and_null_for_what_json_cannot_write(tmp_path):
    (payload,) = Reader(written(tmp_path, [explorer_section(small())])).payloads
    assert payload["rows"] == ["####", "#..#", "####"]
    assert payload["positions"] == [[1, 1], [1, 2]]
    assert payload["edges"] == [[0, 1]]
    assert payload["d"] == [0.75, 0.25]
    learnt, exact = payload["views"]
    assert learnt["features"] == [[0.125, -8.0], [None, 2.0]]
    assert learnt["bonus"] == [1.5, None]
    assert learnt["singular_values"] == [0.9, 0.25]
    assert (learnt["spearman"], exact["spearman"]) == (1.0, 1.0)
    assert (learnt["label"], exact["label"]) == ("learnt", "exact")
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in payload["colours"])


def test_explorer_of_many_states_stays_small_and_keeps_the_first_features(tmp_path):
    n, k = 1000, 64
    grid = GridMap("big", ("." * 50,) * 20, np.argwhere(np.ones((20, 50))))
    rng = np.random.default_rng(0)
    views = [
        RepresentationView(str(i), rng.normal(size=(n, k)), np.linspace(1, 0, k), rng.random(n))
        for i in range(5)
    ]
    text = written(tmp_path, [explorer_section(Comparison("big", grid, np.full(n, 1 / n), tuple(views)))])
    (payload,) = Reader(text).payloads
    np.testing.assert_allclose(
        payload["views"][4]["features"], views[4].representation[:, :MOST_FEATURES].T, rtol=1e-5
    )
    assert len(payload["views"][4]["singular_values"]) == k
    assert payload["views"][0]["spearman"] is None
    assert len(text) < 1_500_000


def test_curves_break_at_gaps(tmp_path):
    (payload,) = Reader(written(tmp_path, [curves_section("c", curves(), "x", "y")])).payloads
    high, low, high_2, low_2, line = payload["data"]
    assert line["y"] == [0.1, None, 0.3, 0.4]
    assert line["name"] == "ours"
    assert (high["x"], low["x"]) == ([0.0], [0.0])
    assert (high_2["x"], low_2["y"]) == ([2.0, 3.0], [0.25, 0.35])
    with pytest.raises(ValueError, match="curves"):
        curves_section("c", [])


def test_everything_supplied_is_escaped(tmp_path):
    picture = four_panels(small(), tmp_path / "four.png")
    sections = [
        text_section(NASTY, NASTY),
        table_section(Table(NASTY, (NASTY,), ((NASTY,),), NASTY)),
        image_section(NASTY, picture, NASTY),
        explorer_section(small(NASTY), caption=NASTY),
        curves_section(NASTY, curves(NASTY), NASTY, NASTY, NASTY),
        spectrum_section(small(NASTY), caption=NASTY),
    ]
    path = write_page(tmp_path / "report.html", NASTY, NASTY, sections, footer=NASTY)
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    reader = Reader(text)
    assert len(reader.all("script")) == 3 + 4  # three payloads; plot.js, explorer.js, plotly.js, charts.js
    assert len(reader.all("img")) == 1
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    explorer, chart, spectrum = reader.payloads
    assert explorer["views"][0]["label"] == NASTY  # the script sets it as text
    assert (
        "<" not in chart["data"][-1]["name"] + chart["layout"]["xaxis"]["title"]["text"]
    )  # plotly reads tags
    assert "<" not in spectrum["data"][0]["name"]


def test_markdown():
    assert markdown("a **b** *c* `d*e*`\nf") == "<p>a <strong>b</strong> <em>c</em> <code>d*e*</code> f</p>"
    assert markdown("**A** x, **B** y") == "<p><strong>A</strong> x, <strong>B</strong> y</p>"
    assert markdown("- a\n- b\n\nc") == "<ul><li>a</li><li>b</li></ul>\n<p>c</p>"
    assert markdown("2 * 3 * 4 < 5") == "<p>2 * 3 * 4 &lt; 5</p>"
    assert markdown("") == ""


def test_cells():
    assert [format_cell(cell) for cell in (None, float("nan"), float("inf"), -0.5)] == ["–", "–", "∞", "−0.5"]
    assert format_cell(0.98765432) == "0.9877"
    assert format_cell(20000) == "20\u202f000"
    assert format_cell(np.float32(0.25)) == "0.25"
    assert format_cell(np.int64(7)) == "7"
    assert format_cell("<b>") == "&lt;b&gt;"
    assert format_cell("a b [0.1, 0.2]") == "a b [0.1,\u00a00.2]"  # an interval is not broken


def test_table_sets_numbers_to_the_right(tmp_path):
    table = Table("Scores", ("method", "score"), (("ours", 0.98765), ("none", None)))
    text = written(tmp_path, [table_section(table)])
    assert '<td>ours</td><td class="number">0.9877</td>' in text
    assert '<td>none</td><td class="number">–</td>' in text


def test_image_is_inlined(tmp_path):
    picture = four_panels(small(), tmp_path / "four.png")
    (image,) = Reader(written(tmp_path, [image_section("Picture", picture, "a **b**")])).all("img")
    assert image["alt"] == "a b"
    assert (
        base64.b64decode((image["src"] or "").removeprefix("data:image/png;base64,")) == picture.read_bytes()
    )
    (tmp_path / "no.png").write_text("no")
    with pytest.raises(ValueError, match="path: expected a PNG file"):
        image_section("x", tmp_path / "no.png")


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = write_page(tmp_path / "report.html", "old", "", [])
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_page(path, "new", "", [])
    assert "old" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_errors_name_the_argument(tmp_path):
    with pytest.raises(ValueError, match="title"):
        write_page(tmp_path / "x.html", " ", "", [])
    with pytest.raises(ValueError, match="sections"):
        write_page(tmp_path / "x.html", "t", "", [Section("a", "", ("jquery",))])
