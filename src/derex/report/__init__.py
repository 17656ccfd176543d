"""Figures and one self-contained HTML page, from plain data alone.

Plotting libraries are imported when a figure or a chart is first asked for, not with this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from derex.report.data import (
    Comparison,
    Curve,
    GridMap,
    Table,
    View,
    from_dict,
    load_comparison,
    save_comparison,
    spearman,
    to_dict,
)
from derex.report.interactive import curves_section, explorer_section, spectrum_section
from derex.report.page import Section, image_section, table_section, text_section, write_page
from derex.report.palette import reference_colours

if TYPE_CHECKING:
    from derex.report.figures import (
        curves_figure,
        four_panels,
        geometries_figure,
        save_panels,
        spectrum_figure,
    )

_FIGURES = ("curves_figure", "four_panels", "geometries_figure", "save_panels", "spectrum_figure")

__all__ = [
    "Comparison",
    "Curve",
    "GridMap",
    "Section",
    "Table",
    "View",
    "curves_figure",
    "curves_section",
    "explorer_section",
    "four_panels",
    "from_dict",
    "geometries_figure",
    "image_section",
    "load_comparison",
    "reference_colours",
    "save_comparison",
    "save_panels",
    "spearman",
    "spectrum_figure",
    "spectrum_section",
    "table_section",
    "text_section",
    "to_dict",
    "write_page",
]


def __getattr__(name: str) -> Any:
    """Imports matplotlib only when a figure is asked for."""
    if name in _FIGURES:
        return getattr(import_module("derex.report.figures"), name)
    raise AttributeError(f"module 'derex.report' has no attribute {name!r}")
