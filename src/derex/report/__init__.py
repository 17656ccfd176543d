"""Figures and self-contained HTML pages, made from plain data alone.

Plotting libraries are imported when a figure or chart is made, not with this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from derex.report.curves import Curve, curves_figure, curves_section
from derex.report.data import (
    BeliefTrack,
    Comparison,
    GridMap,
    HistoryCloud,
    RepresentationView,
    StateBonus,
    load_comparison,
    save_comparison,
    spearman,
)
from derex.report.page import Section, Table, image_section, table_section, text_section, write_page
from derex.report.palette import reference_colours
from derex.report.sections import belief_section, cloud_section, explorer_section, spectrum_section

if TYPE_CHECKING:
    from derex.report.figures import (
        beliefs_figure,
        bonus_maps_figure,
        four_panels,
        geometries_figure,
        save_panels,
        slices_figure,
        spectrum_figure,
    )

__all__ = [
    "BeliefTrack", "Comparison", "Curve", "GridMap", "HistoryCloud", "RepresentationView", "Section", "StateBonus",
    "Table", "belief_section", "beliefs_figure", "bonus_maps_figure", "cloud_section", "curves_figure",
    "curves_section", "explorer_section", "four_panels", "geometries_figure", "image_section", "load_comparison",
    "reference_colours", "save_comparison", "save_panels", "slices_figure", "spearman", "spectrum_figure",
    "spectrum_section", "table_section", "text_section", "write_page",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports matplotlib only when a figure is asked for."""
    if name in __all__:
        return getattr(import_module("derex.report.figures"), name)
    raise AttributeError(f"module 'derex.report' has no attribute {name!r}")
