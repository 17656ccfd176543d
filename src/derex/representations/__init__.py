"""Auxiliary representations of an agent: De-Rex, graph drawing, random network distillation, and none."""

from derex.representations.base import (
    BonusUse,
    Representation,
    RepresentationConfig,
    RepresentationState,
    RolloutView,
    Sizes,
)
from derex.representations.methods import METHODS, find_representation

__all__ = [
    "METHODS",
    "BonusUse",
    "Representation",
    "RepresentationConfig",
    "RepresentationState",
    "RolloutView",
    "Sizes",
    "find_representation",
]
