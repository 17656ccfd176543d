"""Numbers and pictures in few bytes, for the payloads of a page.

One self-contained HTML page: everything inlined, nothing loaded from anywhere, readable years later.

A page is a title, a lead and sections. Text comes in as plain text or light Markdown and is escaped; a
content security policy in the page forbids every network request.
"""

import base64
import json
import re
import struct
import zlib
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
    """A part of the page.

    Attributes:
        title: heading, and its entry in the table of contents.
        html: the body, already escaped.
        needs: scripts that it needs, `PLOTLY`, `EXPLORER`, `CLOUD` or `BELIEF`; each is inlined once a page.
    """

    title: str
    html: str
    needs: tuple[str, ...] = ()


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], footer: str = ""
) -> Path:
    """Writes the page; a reader sees the old page or the new one, never a part.

    Args:
        path: file to write, e.g. ``report.html``.
        title: heading of the page.
        lead: a paragraph or two in light Markdown (see `markdown`) on what was done and found.
        sections: what follows, made by the ``*_section`` functions.
        footer: light Markdown at the foot, e.g. the command that made the page.

    Returns:
        The path written.
    """
    if not title.strip():
        raise ValueError("title: expected a heading, got an empty text.")
    ids = _ids([section.title for section in sections])
    body = "\n".join(_section(section, id_) for section, id_ in zip(sections, ids, strict=True))
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
    """Paragraphs in light Markdown; see `markdown`."""
    return Section(title, f'<div class="prose">{markdown(text)}</div>')


def table_section(table: Table) -> Section:
    """A table; numbers are set to the right, missing values are dashes."""
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
    """A PNG file, inlined.

    Args:
        title: heading, also the picture's description for those who cannot see it where no caption is.
        path: the PNG.
        caption: light Markdown below the picture.
    """
    content = Path(path).read_bytes()
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"path: {path} is no PNG file.")
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
    """A figure that the script `need` draws from its payload once the page is open.

    Args:
        title: heading; the script also tells it to those who cannot see the figure.
        need: `PLOTLY`, `EXPLORER`, `CLOUD` or `BELIEF`.
        payload: what the script draws.
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


def markdown(text: str) -> str:
    """Light Markdown as HTML: paragraphs, ``- `` lists, ``**bold**``, ``*emphasis*`` and `` `code` ``.

    Everything else, tags included, is shown as it is written.
    """
    blocks = [block for block in re.split(r"\n\s*\n", text.strip()) if block.strip()]
    return "\n".join(_block(block) for block in blocks)


def caption_html(caption: str) -> str:
    """A figure's caption, or nothing."""
    return f"<figcaption>{_inline(caption.strip())}</figcaption>" if caption.strip() else ""


def format_cell(cell: Cell) -> str:
    """A cell's text, escaped: numbers to four significant digits, None and NaN as a dash."""
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
    return _inline(str(cell))


def embed_json(values: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: numbers JSON cannot write are null, no tag can close it."""
    text = json.dumps(to_plain(values, digits=6), allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(section: Section, id_: str) -> str:
    return f'<section id="{id_}"><h2>{escape(section.title)}</h2>\n{section.html}\n</section>'


def _contents(sections: Sequence[Section], ids: Sequence[str]) -> str:
    if len(sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#{id_}">{escape(section.title)}</a></li>'
        for section, id_ in zip(sections, ids, strict=True)
    )
    return f'<nav aria-label="Contents"><p>Contents</p><ol>{items}</ol></nav>'


def _scripts(sections: Sequence[Section]) -> str:
    """The scripts that some section needs, each once."""
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
    """Anchors made of the titles; a number tells apart those that would be the same."""
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
    """Escaped text with code, bold and emphasis; nothing is read inside code."""
    parts = re.split(r"`([^`]+)`", escape(text))
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            part = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"<strong>\1</strong>", part)
            parts[i] = re.sub(r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])", r"<em>\1</em>", part)
    return "".join(parts)
