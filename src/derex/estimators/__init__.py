"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.histories import HistoryDeRex
from derex.estimators.pairs import DeRex
from derex.estimators.streams import fit_together

__all__ = ["DeRex", "HistoryDeRex", "fit_together"]
