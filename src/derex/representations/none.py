"""No representation: the agent by itself."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.representations.base import (
    Representation,
    RepresentationState,
    Sizes,
    View,
    no_auxiliary,
    no_bonus,
    track_nothing,
)


@dataclass(frozen=True)
class NoForm:
    """Trains nothing, tracks nothing, finds nothing rare."""

    def build(self) -> Representation:
        """The record."""
        return Representation(_init, no_auxiliary, track_nothing, _observe, lambda state: {})


def _init(key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
    return RepresentationState(None, None, None, None)


def _observe(
    state: RepresentationState, view: View, key: PRNGKeyArray
) -> tuple[RepresentationState, Float[Array, "B S"]]:
    return state, no_bonus(view)
