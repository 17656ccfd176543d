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
from typing import Any

import numpy as np

from derex._text import to_plain
from derex.report.data import Cell, Table
from derex.report.files import write_atomically

PLOTLY = "plotly"
EXPLORER = "explorer"
CLOUD = "cloud"
BELIEF = "belief"

_SCRIPTS = {
    EXPLORER: ("plot.js", "explorer.js"),
    CLOUD: ("plot.js", "cloud.js"),
    BELIEF: ("plot.js", "belief.js"),
}

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
        title: heading, and its entry in the table of contents.
        html: the body, already escaped.
        needs: scripts that it needs, of `PLOTLY`, `EXPLORER`, `CLOUD` and `BELIEF`; each is inlined once.
    """

    title: str
    html: str
    needs: tuple[str, ...] = ()


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], footer: str = ""
) -> Path:
    """Writes the page, atomically.

    Args:
        path: file to write, e.g. ``report.html``.
        title: heading of the page.
        lead: a paragraph or two in light Markdown (see `markdown`) on what was done and found.
        sections: the sections, made by the ``*_section`` functions.
        footer: light Markdown at the foot, e.g. the command that made the page.

    Returns:
        The path written.
    """
    if not title.strip():
        raise ValueError("title: expected a heading, got an empty text.")
    ids = _ids([section.title for section in sections])
    body = "\n".join(
        f'<section id="{id_}"><h2>{escape(section.title)}</h2>\n{section.html}\n</section>'
        for section, id_ in zip(sections, ids, strict=True)
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
{_contents(sections, ids)}
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
    numeric = [_is_numeric([row[j] for row in table.rows]) for j in range(len(table.columns))]
    styles = [' class="number"' if number else "" for number in numeric]
    head = "".join(f'<th scope="col"{s}>{escape(c)}</th>' for c, s in zip(table.columns, styles, strict=True))
    rows = []
    for row in table.rows:
        cells = "".join(f"<td{s}>{format_cell(c)}</td>" for c, s in zip(row, styles, strict=True))
        rows.append(f"<tr>{cells}</tr>")
    html = (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody></table></div>"
        f"{caption_html(table.caption)}</figure>"
    )
    return Section(table.title, html)


def image_section(title: str, path: str | Path, caption: str = "") -> Section:
    """Makes a section with an inlined PNG file.

    Args:
        title: heading, also the alternative text if there is no caption.
        path: the PNG.
        caption: light Markdown below the picture.
    """
    content = Path(path).read_bytes()
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"path: {path} is not a PNG file.")
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
    """Makes a section whose figure a script draws when the page is opened.

    Args:
        title: heading, also the label of the figure for screen readers.
        need: the script, `PLOTLY`, `EXPLORER`, `CLOUD` or `BELIEF`.
        payload: the data that the script draws.
        caption: light Markdown below.
    """
    style = "chart" if need == PLOTLY else need
    root = "chart-root" if need == PLOTLY else "ex-root"
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
    xlabel: str,
    ylabel: str,
    caption: str = "",
    xaxis: Mapping[str, Any] | None = None,
    yaxis: Mapping[str, Any] | None = None,
) -> Section:
    """Makes a chart that plotly.js draws; colours of axes and text follow the page's theme.

    Args:
        title: heading.
        traces: plotly's traces.
        xlabel: label of the horizontal axis, as HTML; `ylabel` likewise.
        ylabel: see `xlabel`.
        caption: light Markdown below.
        xaxis: further options of the horizontal axis; `yaxis` likewise.
        yaxis: see `xaxis`.
    """
    layout = {
        "xaxis": {"title": {"text": xlabel}, **(xaxis or {})},
        "yaxis": {"title": {"text": ylabel}, **(yaxis or {})},
    }
    return payload_section(title, PLOTLY, {"data": traces, "layout": layout}, caption)


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
    if cell is None:
        return "–"
    if isinstance(cell, Integral):
        return f"{int(cell):,}".replace("-", "−").replace(",", "\u202f")
    if isinstance(cell, Real):
        number = float(cell)
        if np.isnan(number):
            return "–"
        if np.isinf(number):
            return "∞" if number > 0 else "−∞"
        return f"{number:.4g}".replace("-", "−")
    text = re.sub(
        r"\[[^\]]*\]", lambda interval: interval[0].replace(" ", "\u00a0"), str(cell)
    )  # kept on one line
    return _inline(text)


def embed_json(values: Mapping[str, Any]) -> str:
    """Makes JSON that is safe inside a script element: non-finite numbers are null, no tag can close the element."""
    text = json.dumps(to_plain(values, digits=6), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _contents(sections: Sequence[Section], ids: Sequence[str]) -> str:
    if len(sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{id_}">{escape(section.title)}</a></li>'
        for section, id_ in zip(sections, ids, strict=True)
    )
    return f'<nav aria-label="Contents"><p>Contents</p><ol>{items}</ol></nav>'


def _scripts(sections: Sequence[Section]) -> str:
    """The scripts that the sections need, each once."""
    needs = {need for section in sections for need in section.needs}
    known = (*_SCRIPTS, PLOTLY)
    unknown = needs - set(known)
    if unknown:
        raise ValueError(f"sections: unknown needs {sorted(unknown)}, expected some of {', '.join(known)}.")
    files = [file for name, own in _SCRIPTS.items() if name in needs for file in own]
    scripts = [_asset(file) for file in dict.fromkeys(files)]
    if PLOTLY in needs:
        from plotly.offline import get_plotlyjs

        scripts += [get_plotlyjs(), _asset("charts.js")]
    return "\n".join(f"<script>{script}</script>" for script in scripts)


def _asset(name: str) -> str:
    return resources.files("derex.report").joinpath(name).read_text(encoding="utf-8")


def _ids(titles: Sequence[str]) -> list[str]:
    """Anchors made of the titles; equal ones are numbered."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section" for title in titles]
    seen: dict[str, int] = {}
    ids = []
    for slug in slugs:
        seen[slug] = seen.get(slug, 0) + 1
        ids.append(f"s-{slug}" if seen[slug] == 1 else f"s-{slug}--{seen[slug]}")
    return ids


def _is_numeric(cells: Sequence[Cell]) -> bool:
    """Whether a column holds numbers, possibly with gaps."""
    present = [cell for cell in cells if cell is not None]
    return bool(present) and all(isinstance(cell, Real) for cell in present)


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
