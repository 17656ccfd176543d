"""Tables on a terminal."""

from __future__ import annotations

import sys


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Heads give way before cells do, and nothing is cut off; a file or a pipe gets lines as long as they are."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    room = (Console().width if sys.stdout.isatty() else 200) - 2 * len(columns)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    widths = column_widths(columns, rows, room)
    for column, width in zip(columns, widths, strict=True):
        table.add_column(Text(column), overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=sum(widths) + 2 * len(columns)).print(table)


def cell(value: int | float | None) -> str:
    """A number as it is printed; a dash for none."""
    if value is None or value != value:  # NaN
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"


def column_widths(columns: list[str], rows: list[list[str]], room: int) -> list[int]:
    """Widths that sum to `room` or less where that leaves each column its cells, or 10 characters of them."""
    cells = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    widths = [max(len(column), cell) for column, cell in zip(columns, cells, strict=True)]
    least = [min(10, cell) for cell in cells]
    while sum(widths) > room and widths != least:
        spare = [width - floor for width, floor in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths
