"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.histories import HistoryDeRex, fit_together
from derex.estimators.pairs import DeRex

__all__ = ["DeRex", "HistoryDeRex", "fit_together"]
