"""Options of representations, refused where they make no sense: by their whole names, before anything is built.

What an auxiliary representation is to an agent: a small record of pure functions.

An agent shows it what happened and gets a bonus back; it lets it add a loss to its own. It never asks which one it is.
A new representation is one file with a function that returns this record, and a line in `METHODS`.

Shapes: B streams, S steps of an unroll, W and H units of the agent's F₁ and F₂.

No representation: the agent by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex.networks.histories import Embedded
from derex.networks.inputs import Part
from derex.types import Trajectories

LARGEST_COUNT = 1 << 20


def check(name: str, value: Any, good: bool, expected: str) -> None:
    """Raises `ValueError` unless it is good; `name` is that within the representation."""
    if not good:
        raise ValueError(f"representation.{name}: expected {expected}; got {value!r}.")


@contextmanager
def named(prefix: str) -> Iterator[None]:
    """What is refused inside, by its name alone, is named within the representation."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"representation.{prefix}{error}") from error


def check_counts(prefix: str, **values: int) -> None:
    """Whole numbers of something that there has to be."""
    for name, value in values.items():
        check(
            f"{prefix}{name}", value, 1 <= value <= LARGEST_COUNT, f"at least 1 and at most {LARGEST_COUNT}"
        )


def check_weights(prefix: str, **values: float) -> None:
    """How much something counts."""
    for name, value in values.items():
        check(f"{prefix}{name}", value, 0.0 <= value < math.inf, "a finite number, 0 or more")


def check_positive(prefix: str, **values: float) -> None:
    """What is divided by, or stepped with."""
    for name, value in values.items():
        check(f"{prefix}{name}", value, 0.0 < value < math.inf, "a finite number above 0")


LAMBDA_B = 0.02
"""λ_b where nothing else is said. Bonuses come at every step and add up over 1/(1 - γ) of them, a sparse reward comes
once and is at most `reward_clip`: at λ_b = 1 finding it hardly matters. Advantages are normalised, so that before there
is any reward a small λ_b drives exploration as well as a large one"""


class Sizes(NamedTuple):
    """What a representation has to know to be built."""

    observation: tuple[Part, ...]
    """the parts of an observation, in the order of the tree's leaves"""
    action: int
    """numbers that encode an action"""
    embedding: int
    """units W of the agent's F₁"""
    belief: int
    """units H of the agent's F₂"""
    streams: int
    """B"""


class RolloutView(NamedTuple):
    """An unroll as the agent sees it. Gradients flow into F₁ and F₂ where the agent trains, and nowhere else."""

    trajectories: Trajectories
    embedded: Embedded
    """F₁(O_t), once with the previous action (`history`) and once without (`test`)"""
    beliefs: Float[Array, "B S H"]
    """b_t"""


class RepresentationState(NamedTuple):
    """All that a representation keeps."""

    joint: Any
    """networks trained with the agent, by its optimiser, through `auxiliary`"""
    own: Any
    """networks trained by themselves, in `observe`, with the state of their optimiser"""
    tracked: Any
    """running statistics"""
    memory: Any
    """of each stream, from unroll to unroll: arrays that begin with B"""


class BonusUse(NamedTuple):
    """What the agent does with the bonus, once it is divided by its running deviation."""

    lambda_b: float = 0.0
    """its weight in R + λ_b Bonus; 0: none"""
    centred: bool = True
    """subtract the unroll's mean: otherwise staying alive is itself worth a lot"""


class Representation(NamedTuple):
    """The record."""

    init: Callable[[PRNGKeyArray, Sizes], RepresentationState]
    """before anything is seen"""
    auxiliary: Callable[[Any, RolloutView, PRNGKeyArray], tuple[Float[Array, ""], Any]]
    """(joint, view, key) -> a loss to add to the agent's, and what it saw, for `track`"""
    track: Callable[[RepresentationState, Any], RepresentationState]
    """takes what `auxiliary` saw into the running statistics"""
    observe: Callable[
        [RepresentationState, RolloutView, PRNGKeyArray], tuple[RepresentationState, Float[Array, "B S"]]
    ]
    """(state, a fresh unroll, key) -> the state after learning from it by itself, and the bonus of every step"""
    report: Callable[[RepresentationState], dict[str, Array]]
    """numbers worth watching: scalars, and "spectrum" (k,) where there is one"""
    use: BonusUse = BonusUse()
    """how the bonus enters the reward"""


@runtime_checkable
class RepresentationConfig(Protocol):
    """Plain options of a representation (a frozen dataclass), from which the record is built.

    One that cannot learn from short unrolls says so by an attribute `shortest_unroll`.
    """

    def build(self) -> Representation: ...


def no_bonus(view: RolloutView) -> Float[Array, "B S"]:
    """Nothing is rare."""
    return jnp.zeros(view.trajectories.shape)


def no_auxiliary(joint: Any, view: RolloutView, key: PRNGKeyArray) -> tuple[Float[Array, ""], None]:
    """Nothing is trained with the agent."""
    return jnp.zeros(()), None


def track_nothing(state: RepresentationState, seen: Any) -> RepresentationState:
    """Nothing was seen."""
    return state


@dataclass(frozen=True)
class NoRepresentation:
    """Trains nothing, tracks nothing, finds nothing rare."""

    def build(self) -> Representation:
        """The record."""
        return Representation(_init, no_auxiliary, track_nothing, _observe, lambda state: {})


def _init(key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
    return RepresentationState(None, None, None, None)


def _observe(
    state: RepresentationState, view: RolloutView, key: PRNGKeyArray
) -> tuple[RepresentationState, Float[Array, "B S"]]:
    return state, no_bonus(view)
