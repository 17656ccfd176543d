"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.histories import HistoryDeRex
from derex.estimators.history_fitting import fit_together
from derex.estimators.pairs import DeRex

__all__ = ["DeRex", "HistoryDeRex", "fit_together"]
