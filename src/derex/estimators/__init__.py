"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.derex import DeRex
from derex.estimators.histories import HistoryDeRex
from derex.estimators.history_training import fit_together

__all__ = ["DeRex", "HistoryDeRex", "fit_together"]
