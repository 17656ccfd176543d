"""Figures and self-contained HTML pages, made from plain data alone.

Plotting libraries are imported when a figure or chart is made, not with this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from derex.report.curves import curves_figure, curves_section
from derex.report.data import (
    Comparison,
    Curve,
    GridMap,
    RepresentationView,
    Table,
    load_comparison,
    save_comparison,
    spearman,
)
from derex.report.history_data import (
    BeliefTrack,
    BonusMaps,
    HistoryCloud,
    StateBonus,
    load_record,
    save_record,
)
from derex.report.page import Section, image_section, table_section, text_section, write_page
from derex.report.palette import reference_colours
from derex.report.sections import belief_section, cloud_section, explorer_section, spectrum_section

if TYPE_CHECKING:
    from derex.report.figures import four_panels, geometries_figure, save_panels, spectrum_figure
    from derex.report.history_figures import beliefs_figure, bonus_maps_figure, slices_figure

_FIGURES = {
    **dict.fromkeys(("four_panels", "geometries_figure", "save_panels", "spectrum_figure"), "figures"),
    **dict.fromkeys(("beliefs_figure", "bonus_maps_figure", "slices_figure"), "history_figures"),
}

__all__ = [
    "BeliefTrack",
    "BonusMaps",
    "Comparison",
    "Curve",
    "GridMap",
    "HistoryCloud",
    "RepresentationView",
    "Section",
    "StateBonus",
    "Table",
    "belief_section",
    "beliefs_figure",
    "bonus_maps_figure",
    "cloud_section",
    "curves_figure",
    "curves_section",
    "explorer_section",
    "four_panels",
    "geometries_figure",
    "image_section",
    "load_comparison",
    "load_record",
    "reference_colours",
    "save_comparison",
    "save_panels",
    "save_record",
    "slices_figure",
    "spearman",
    "spectrum_figure",
    "spectrum_section",
    "table_section",
    "text_section",
    "write_page",
]


def __getattr__(name: str) -> Any:
    """Imports matplotlib only when a figure is asked for."""
    if name in _FIGURES:
        return getattr(import_module(f"derex.report.{_FIGURES[name]}"), name)
    raise AttributeError(f"module 'derex.report' has no attribute {name!r}")
