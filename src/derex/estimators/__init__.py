"""Scikit-learn style estimators of the decomposition."""

from derex.estimators.derex import DeRex
from derex.estimators.histories import HistoryDeRex

__all__ = ["DeRex", "HistoryDeRex"]
