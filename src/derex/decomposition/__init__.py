"""The paper's core as pure functions on arrays: objectives, normalisation, bonus, and the exact answers."""

from derex.decomposition.bonus import compute_bonus
from derex.decomposition.objectives import (
    DeRexObjective,
    Estimate,
    GraphDrawingObjective,
    NestedObjective,
    Objective,
    combined_loss,
    diag_loss,
    double_sampled_off_loss,
    graph_drawing_loss,
    make_objective,
    off_loss,
    off_value,
    penalty_weight,
)
from derex.decomposition.statistics import Half, batch_normalise, sigma_hat

__all__ = [
    "DeRexObjective",
    "Estimate",
    "GraphDrawingObjective",
    "Half",
    "NestedObjective",
    "Objective",
    "batch_normalise",
    "combined_loss",
    "compute_bonus",
    "diag_loss",
    "double_sampled_off_loss",
    "graph_drawing_loss",
    "make_objective",
    "off_loss",
    "off_value",
    "penalty_weight",
    "sigma_hat",
]
