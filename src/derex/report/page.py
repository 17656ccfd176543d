"""A self-contained HTML page: everything is inlined and nothing is loaded from elsewhere.

A page is a title, a lead and sections. Text is given as plain text or light Markdown and is escaped; a
content security policy in the page forbids every network request.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from derex._text import to_plain
from derex.report.data import expect, expect_each, set_field
from derex.report.files import write_atomically

Cell: TypeAlias = str | int | float | np.integer | np.floating | None

EXPLORER, CLOUD, BELIEF, PLOTLY = "explorer", "cloud", "belief", "plotly"
_SCRIPTS = {
    EXPLORER: ("plot.js", "explorer.js"),
    CLOUD: ("plot.js", "cloud.js"),
    BELIEF: ("plot.js", "belief.js"),
    PLOTLY: ("charts.js",),  # after plotly.js itself
}

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str  # heading, and its entry in the table of contents
    html: str  # the body, already escaped
    needs: tuple[str, ...] = ()  # keys of `_SCRIPTS`; each script is inlined once


@dataclass(frozen=True, eq=False)
class Table:
    """A table of text and numbers; None and NaN are shown as a dash."""

    title: str  # heading
    columns: tuple[str, ...]  # names of the columns
    rows: tuple[tuple[Cell, ...], ...]  # cells, row by row
    caption: str = ""  # a sentence below

    def __post_init__(self) -> None:
        set_field(self, "columns", tuple(self.columns))
        set_field(self, "rows", tuple(tuple(row) for row in self.rows))
        for number, row in enumerate(self.rows):
            expect_each(f"rows: row {number}", row, len(self.columns), "columns")


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], footer: str = ""
) -> Path:
    """Writes the page, atomically, and returns its path.

    Args:
        path: file to write, e.g. ``report.html``.
        title: heading of the page.
        lead: a paragraph or two in light Markdown (see `markdown`) on what was done and found.
        sections: the sections, made by the ``*_section`` functions.
        footer: light Markdown at the foot, e.g. the command that made the page.
    """
    expect(title.strip(), "title", "a heading", repr(title))
    headings = dict(zip(_ids([section.title for section in sections]), sections, strict=True))
    body = "\n".join(
        f'<section id="{id_}"><h2>{escape(section.title)}</h2>\n{section.html}\n</section>'
        for id_, section in headings.items()
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}
</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{escape(title)}</h1>
<div class="lead">{markdown(lead)}</div>
</header>
<div class="columns">
{_contents(headings)}
<main id="content">
{body}
</main>
</div>
<footer>{markdown(footer)}</footer>
{_scripts(sections)}
</body>
</html>
"""
    return write_atomically(path, page.encode())


def text_section(title: str, text: str) -> Section:
    """Makes a section of paragraphs in light Markdown; see `markdown`."""
    return Section(title, f'<div class="prose">{markdown(text)}</div>')


def table_section(table: Table) -> Section:
    """Makes a section with a table; numbers are aligned right, missing values are dashes."""
    columns = [[row[j] for row in table.rows if row[j] is not None] for j in range(len(table.columns))]
    numeric = [bool(cells) and all(isinstance(cell, Real) for cell in cells) for cells in columns]
    styles = [' class="number"' if number else "" for number in numeric]
    head = "".join(f'<th scope="col"{s}>{escape(c)}</th>' for c, s in zip(table.columns, styles, strict=True))
    rows = [
        "".join(f"<td{s}>{format_cell(c)}</td>" for c, s in zip(row, styles, strict=True))
        for row in table.rows
    ]
    html = (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n"
        + "\n".join(f"<tr>{row}</tr>" for row in rows)
        + f"\n</tbody></table></div>{caption_html(table.caption)}</figure>"
    )
    return Section(table.title, html)


def image_section(title: str, path: str | Path, caption: str = "") -> Section:
    """Makes a section with an inlined PNG file; the caption, or else the title, is its alternative text."""
    content = Path(path).read_bytes()
    expect(content.startswith(b"\x89PNG\r\n\x1a\n"), "path", "a PNG file", path)
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    data = base64.b64encode(content).decode()
    alt = escape(re.sub(r"[*`]", "", caption) or title)
    size = f'width="{width}" height="{height}"' + (' class="wide"' if width > 1.6 * height else "")
    html = (
        f'<figure><div class="scroll"><img src="data:image/png;base64,{data}" {size} alt="{alt}"></div>'
        f"{caption_html(caption)}</figure>"
    )
    return Section(title, html)


def payload_section(title: str, need: str, payload: Mapping[str, Any], caption: str = "") -> Section:
    """Makes a section whose figure the script `need` draws from the payload when the page is opened."""
    style, root = ("chart", "chart-root") if need == PLOTLY else (need, "ex-root")
    html = (
        f'<figure class="{style}" data-title="{escape(title)}">'
        f'<script type="application/json">{embed_json(payload)}</script>'
        f'<div class="{root}"><noscript>This figure needs JavaScript.</noscript></div>'
        f"{caption_html(caption)}</figure>"
    )
    return Section(title, html, (need,))


def chart_section(
    title: str,
    traces: Sequence[Mapping[str, Any]],
    labels: tuple[str, str],
    caption: str = "",
    axes: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> Section:
    """Makes a chart that plotly.js draws; colours of axes and text follow the page's theme.

    The HTML `labels`, and plotly's options `axes`, are of the horizontal and the vertical axis.
    """
    x, y = ({"title": {"text": label}, **options} for label, options in zip(labels, axes, strict=True))
    return payload_section(title, PLOTLY, {"data": traces, "layout": {"xaxis": x, "yaxis": y}}, caption)


def markdown(text: str) -> str:
    """Converts light Markdown to HTML: paragraphs, ``- `` lists, ``**bold**``, ``*emphasis*`` and `` `code` ``.

    Everything else, tags included, is shown literally.
    """
    blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    return "\n".join(_block(block) for block in blocks)


def caption_html(caption: str) -> str:
    """Makes the caption of a figure; empty if there is none."""
    return f"<figcaption>{_inline(caption.strip())}</figcaption>" if caption.strip() else ""


def format_cell(cell: Cell) -> str:
    """Formats a cell as escaped text: numbers to four significant digits, None and NaN as a dash."""
    if cell is None or cell != cell:  # NaN
        return "–"
    if isinstance(cell, Integral):
        return f"{int(cell):,}".replace("-", "−").replace(",", "\u202f")
    if isinstance(cell, Real):
        return f"{float(cell):.4g}".replace("-", "−").replace("inf", "∞")
    # An interval in brackets stays on one line.
    return _inline(re.sub(r"\[[^\]]*\]", lambda interval: interval[0].replace(" ", "\u00a0"), str(cell)))


def embed_json(values: Mapping[str, Any]) -> str:
    """Makes JSON that is safe inside a script element: non-finite numbers are null, no tag can close the element."""
    text = json.dumps(to_plain(values, digits=6), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _contents(sections: Mapping[str, Section]) -> str:
    """A list of links to the sections, by their anchors."""
    if len(sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{id_}">{escape(section.title)}</a></li>' for id_, section in sections.items()
    )
    return f'<nav aria-label="Contents"><p>Contents</p><ol>{items}</ol></nav>'


def _scripts(sections: Sequence[Section]) -> str:
    """The scripts that the sections need, each once."""
    needs = {need for section in sections for need in section.needs}
    expect(needs <= set(_SCRIPTS), "sections", f"needs among {', '.join(_SCRIPTS)}", sorted(needs))
    files = dict.fromkeys(file for need, own in _SCRIPTS.items() if need in needs for file in own)
    scripts = [_asset(file) for file in files]
    if PLOTLY in needs:
        from plotly.offline import get_plotlyjs

        scripts.insert(-1, get_plotlyjs())
    return "\n".join(f"<script>{script}</script>" for script in scripts)


def _asset(name: str) -> str:
    return resources.files("derex.report").joinpath("assets", name).read_text(encoding="utf-8")


def _ids(titles: Sequence[str]) -> list[str]:
    """Anchors made of the titles; equal ones are numbered."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section" for title in titles]
    earlier = [slugs[:place].count(slug) for place, slug in enumerate(slugs)]
    return [f"s-{slug}--{n + 1}" if n else f"s-{slug}" for slug, n in zip(slugs, earlier, strict=True)]


def _block(block: str) -> str:
    lines = [line.strip() for line in block.strip().splitlines()]
    if all(line.startswith("- ") for line in lines):
        return "<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>"
    return f"<p>{_inline(' '.join(lines))}</p>"


def _inline(text: str) -> str:
    """Escaped text with code, bold and emphasis; code is literal."""
    parts = re.split(r"`([^`]+)`", escape(text))
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            part = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"<strong>\1</strong>", part)
            parts[i] = re.sub(r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])", r"<em>\1</em>", part)
    return "".join(parts)
