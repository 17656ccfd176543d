"""Estimators with scikit-learn conventions."""

from derex.estimators.derex import DeRex

__all__ = ["DeRex"]
