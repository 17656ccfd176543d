"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.diagnosis import FitReport, FitWarning
from derex.estimators.histories import HistoryDeRex, fit_together
from derex.estimators.pairs import DeRex

__all__ = ["DeRex", "FitReport", "FitWarning", "HistoryDeRex", "fit_together"]
