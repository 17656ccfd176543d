"""Auxiliary representations of an agent: De-Rex, graph drawing, random network distillation, and none."""

from derex.representations.base import BonusUse, Form, Representation, RepresentationState, Sizes, View
from derex.representations.methods import METHODS, find_form

__all__ = [
    "METHODS",
    "BonusUse",
    "Form",
    "Representation",
    "RepresentationState",
    "Sizes",
    "View",
    "find_form",
]
