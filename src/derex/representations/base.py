"""The interface between an agent and its auxiliary representation: a record of pure functions.

The agent passes its rollouts and receives a bonus; the representation may add a loss to the agent's. A new
representation is one file with a frozen dataclass whose `build` returns this record, and an entry in `METHODS`.

Shapes: B streams, S steps of a rollout, W and H units of the agent's F₁ and F₂.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex._text import LARGEST_COUNT, check_ranges, require
from derex.networks.histories import Embedded
from derex.networks.inputs import Part
from derex.networks.layers import clipped_adam, init_optimiser, run_gradient_steps
from derex.types import Trajectories

ADAM_EPSILON = 1e-8  # of own optimisers: parameters of rare states have small gradients
LAMBDA_B = 0.02
"""default λ_b. Bonuses are paid at every step and add up over 1/(1 - γ) steps; a sparse reward is paid once and is at
most `reward_clip`: at λ_b = 1 it hardly matters. Advantages are normalised, so before any reward a small λ_b drives
exploration as well as a large one"""


class Sizes(NamedTuple):
    """Sizes that a representation's networks depend on."""

    observation: tuple[Part, ...]  # the parts of an observation, in the order of the tree's leaves
    action: int  # values that encode an action
    embedding: int  # units W of the agent's F₁
    belief: int  # units H of the agent's F₂
    streams: int  # B


class RolloutView(NamedTuple):
    """A rollout with the agent's embeddings and beliefs. Gradients reach F₁ and F₂ only in the agent's own update."""

    trajectories: Trajectories
    embedded: Embedded  # F₁(O_t), once with the previous action (`history`) and once without (`test`)
    beliefs: Float[Array, "B S H"]  # b_t


class RepresentationState(NamedTuple):
    """State of a representation."""

    joint: Any  # networks trained with the agent, by its optimiser, through `auxiliary`
    own: Any  # networks with their own optimiser, trained in `observe`
    tracked: Any  # running statistics
    memory: Any  # of each stream, between rollouts: arrays that begin with B


StateAndBonus = tuple[RepresentationState, Float[Array, "B S"]]


class BonusUse(NamedTuple):
    """How the bonus, divided by its running deviation, enters the reward."""

    lambda_b: float = 0.0  # its weight in R + λ_b Bonus; 0: no bonus
    centred: bool = (
        True  # subtract the rollout's mean: otherwise longer episodes are rewarded for their length
    )


class Representation(NamedTuple):
    """Pure functions of a representation."""

    init: Callable[[PRNGKeyArray, Sizes], RepresentationState]  # state before the first rollout
    auxiliary: Callable[[Any, RolloutView, PRNGKeyArray], tuple[Float[Array, ""], Any]]
    """(joint, view, key) -> a loss to add to the agent's, and statistics for `track`"""
    track: Callable[[RepresentationState, Any], RepresentationState]
    """adds the statistics of `auxiliary` to the running ones"""
    observe: Callable[[RepresentationState, RolloutView, PRNGKeyArray], StateAndBonus]
    """(state, new rollout, key) -> the state after the representation's own training, and the bonus of every step"""
    report: Callable[[RepresentationState], dict[str, Array]]
    """metrics: scalars, and "spectrum" (k,) where there is one"""
    use: BonusUse = BonusUse()  # how the bonus enters the reward


@runtime_checkable
class RepresentationConfig(Protocol):
    """Options of a representation: a frozen dataclass.

    An optional attribute `shortest_unroll` is the least number of transitions of a rollout that it can learn from.
    """

    def build(self) -> Representation: ...


def no_auxiliary(joint: Any, view: RolloutView, key: PRNGKeyArray) -> tuple[Float[Array, ""], None]:
    """`auxiliary` of a representation that is not trained with the agent."""
    return jnp.zeros(()), None


def track_nothing(state: RepresentationState, statistics: Any) -> RepresentationState:
    """`track` of a representation without statistics of `auxiliary`."""
    return state


def report_nothing(state: RepresentationState) -> dict[str, Array]:
    """`report` of a representation without metrics."""
    return {}


@dataclass(frozen=True)
class NoRepresentation:
    """No networks, no statistics, zero bonus: the agent alone."""

    def build(self) -> Representation:
        """Builds the record."""
        return Representation(_init, no_auxiliary, track_nothing, _observe, report_nothing)


def _init(key: PRNGKeyArray, sizes: Sizes) -> RepresentationState:
    return RepresentationState(None, None, None, None)


def _observe(state: RepresentationState, view: RolloutView, key: PRNGKeyArray) -> StateAndBonus:
    return state, jnp.zeros(view.trajectories.shape)


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Prepends `representation.<prefix>` to errors that begin with an option's name."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"representation.{prefix}{error}") from error


class OptimisedNetworks(NamedTuple):
    """Networks of a representation with an optimiser of their own, and its state."""

    networks: Any
    optimiser: optax.OptState


@dataclass(frozen=True)
class OptimisedTraining:
    """Options of their training: some gradient steps on every rollout."""

    steps: int = 8
    """on every rollout"""
    streams: int = 256
    """in a minibatch, drawn without replacement; all if there are fewer"""
    learning_rate: float = 3e-3
    clip: float = 1.0
    """global gradient norm"""

    def __post_init__(self) -> None:
        name, good = "representation.training.steps", 0 <= self.steps <= LARGEST_COUNT
        require(good, name, f"0 (not trained) or more, at most {LARGEST_COUNT}", self.steps)
        positive = ("learning_rate", "clip")
        check_ranges(self, "representation.training.", counts=("streams",), positive=positive)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        return clipped_adam(self.learning_rate, self.clip, ADAM_EPSILON)

    def init(self, networks: Any) -> OptimisedNetworks:
        """State before the first step."""
        return OptimisedNetworks(networks, init_optimiser(self.optimiser, networks))

    def run(
        self,
        own: OptimisedNetworks,
        rollout: Any,
        loss: Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]],
        key: PRNGKeyArray,
    ) -> OptimisedNetworks:
        """`steps` gradient steps on loss(networks, minibatch of the rollout's streams, key)."""
        B = len(jax.tree.leaves(rollout)[0])

        def minibatch_loss(networks: Any, key: PRNGKeyArray):
            draw_key, loss_key = jax.random.split(key)
            chosen = jax.random.permutation(draw_key, B)[: self.streams]
            minibatch = jax.tree.map(lambda leaf: leaf[chosen], rollout)
            return loss(networks, minibatch, loss_key), (None, None)

        keys = jax.random.split(key, self.steps)
        after = run_gradient_steps(minibatch_loss, self.optimiser, own.networks, own.optimiser, keys)
        return OptimisedNetworks(after.networks, after.optimiser)
