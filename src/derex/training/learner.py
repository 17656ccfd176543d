"""The training loop: the paper's algorithm, many iterations to a compiled call, all seeds side by side.

Everything is written for one global batch: under `jax.jit` on sharded arrays the top half of the advantages, the batch
statistics, Σ̂ and the two halves of double sampling are those of all streams, wherever they are (`training.mesh`).

Shapes: B streams, n numbered states; with several seeds every array of a state has their axis in front.

Where the arrays of a training state are: streams split over all devices, everything else on each.

Splitting changes where the loop computes and nothing of what: it is written for one global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts, make_network
from derex.agents.policy import Policy, make_policy
from derex.agents.rollout import Actor, Rollout, collect_rollout, init_actor
from derex.agents.update import Learner, combine_rewards, compute_advantages, init_learner, update_agent
from derex.representations.base import Representation, RepresentationState, Sizes

CAUSES = ("an observation", "a reward", "a loss or a gradient")


class MetricSums(NamedTuple):
    """What is added up between two looks: its size does not grow with their distance."""

    iterations: Int[Array, ""]
    """learnt from"""
    skipped: Int[Array, ""]
    """not learnt from, and not in the sums below"""
    numbers: dict[str, Array]
    visits: Float[Array, " n"]
    """how often each numbered state was seen"""
    bonuses: Float[Array, " n"]
    """the bonuses it got"""


class Skips(NamedTuple):
    """Updates that were skipped, since a number was not finite."""

    in_a_row: Int[Array, ""]
    """now"""
    most: Int[Array, ""]
    """the longest row of the whole run"""
    causes: Bool[Array, "3"]
    """of the last one, as in `CAUSES`"""


class TrainState(NamedTuple):
    """All that training changes."""

    actor: Actor
    learner: Learner
    representation: RepresentationState
    tally: MetricSums
    key: PRNGKeyArray
    skips: Skips


@dataclass(frozen=True, eq=False)
class Training:
    """Environment, agent and representation, joined."""

    streams: Any  # a `Streams`
    representation: Representation
    config: AgentConfig

    @property
    def policy(self) -> Policy:
        """The kind of policy that the environment's actions ask for."""
        return make_policy(self.streams.spec.action)

    @property
    def sizes(self) -> Sizes:
        """What the representation has to know."""
        observation = describe_parts(self.streams.spec.observation)
        width = self.config.width
        return Sizes(observation, self.policy.width, width, width, self.streams.n)

    def __post_init__(self) -> None:
        if self.streams.n % self.config.minibatches:
            raise ValueError(
                f"streams: expected a multiple of agent.minibatches = {self.config.minibatches}, whole streams go into "
                f"each; got {self.streams.n}."
            )

    def begin(self, key: PRNGKeyArray) -> TrainState:
        """Before the first step."""
        network_key, representation_key, actor_key, key = jax.random.split(key, 4)
        config, policy, sizes = self.config, self.policy, self.sizes
        network = make_network(config, sizes.observation, policy, key=network_key)
        representation = self.representation.init(representation_key, sizes)
        learner = init_learner(config, policy, network, representation.joint)
        actor = self.init_actor(network, actor_key)
        states = jnp.zeros(max(self.streams.spec.n_states, 1))
        none = jnp.zeros((), jnp.int32)
        empty = MetricSums(none, none, {}, states, states)
        skips = Skips(none, none, jnp.zeros(len(CAUSES), bool))
        state = TrainState(actor, learner, representation, empty, key, skips)
        numbers = jax.eval_shape(self.iterate, state).tally.numbers
        return state._replace(tally=empty._replace(numbers={name: jnp.zeros(()) for name in numbers}))

    def init_actor(self, network: AgentNetwork, key: PRNGKeyArray) -> Actor:
        """All streams before the first step of the run."""
        return init_actor(network, self.policy, self.streams, key)

    def iterate(self, state: TrainState) -> TrainState:
        """One iteration: act, then learn from what came of it."""
        key, acting, observing, learning = jax.random.split(state.key, 4)
        network = state.learner.trained.network
        actor, rollout = collect_rollout(
            network, self.policy, self.streams, state.actor, acting, self.config.unroll
        )
        after = self.learn_from(state, rollout, observing, learning)
        actor = actor._replace(previous_action=cleaned(actor.previous_action), memory=cleaned(actor.memory))
        return after._replace(actor=actor, key=key)

    def learn_from(
        self, state: TrainState, rollout: Rollout, observing: PRNGKeyArray, learning: PRNGKeyArray
    ) -> TrainState:
        """Let the representation learn and say what is rare, then learn from reward and bonus.

        Who acted, and when, does not matter here: V-MPO's loss compares with the policy that the rollout holds.
        `actor` and `key` are left alone.
        """
        config, policy, representation = self.config, self.policy, self.representation
        view = state.learner.trained.network(rollout.trajectories, rollout.memory).view
        represented, bonus = representation.observe(state.representation, view, observing)
        learner, streams = combine_rewards(config, state.learner, rollout, bonus, representation.use)
        advantages_batch = compute_advantages(config, rollout, streams)
        learner, represented, numbers = update_agent(
            config, policy, representation, learner, represented, advantages_batch, learning
        )

        numbers |= {"bonus": jnp.mean(bonus)}
        tally = _counted(state.tally, rollout, bonus, numbers)
        after = state._replace(learner=learner, representation=represented, tally=tally)
        return _unless_broken(state, after, rollout, (learner, represented, numbers))

    @partial(jax.jit, static_argnums=(0, 1))
    def init_seeds(self, seeds: tuple[int, ...]) -> TrainState:
        """One state for each seed, side by side.

        They begin one after the other: orthogonal weights take factorisations, and two that run at the same time on a
        machine of two cores, of several matrices each, may wait for each other for ever (jaxlib 0.10).
        """
        return jax.lax.map(lambda seed: self.begin(jax.random.key(seed)), jnp.asarray(seeds))

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def advance(
        self,
        state: TrainState,
        iterations: Int[Array, ""] | int,
        reset_metrics: Bool[Array, ""] | bool = False,
    ) -> TrainState:
        """Many iterations of all seeds; any number of them, compiled once; `reset_metrics` clears the tally before.

        To clear it in a call of its own would cost more than a short iteration does.
        """
        step = jax.vmap(self.iterate)
        state = jax.tree.map(partial(jnp.where, reset_metrics), self.clear(state), state)
        return jax.lax.fori_loop(0, iterations, lambda _, state: step(state), state)

    def clear(self, state: TrainState) -> TrainState:
        """A fresh tally."""
        actor = state.actor._replace(environment=self.streams.cleared(state.actor.environment))
        return state._replace(actor=actor, tally=jax.tree.map(jnp.zeros_like, state.tally))

    @partial(jax.jit, static_argnums=0)
    def report(self, state: TrainState) -> dict[str, Array]:
        """What the representation of each seed says of itself."""
        return jax.vmap(lambda state: self.representation.report(state.representation))(state)


def _counted(
    tally: MetricSums, rollout: Rollout, bonus: Float[Array, "B S"], numbers: dict[str, Array]
) -> MetricSums:
    """The tally with one more iteration in it."""
    added = {name: tally.numbers.get(name, jnp.zeros(())) + value for name, value in numbers.items()}
    tally = tally._replace(iterations=tally.iterations + 1, numbers=added)
    if rollout.state_id is None:
        return tally
    places = rollout.state_id[:, 1:].reshape(-1)  # step 0 was the last of the unroll before
    return tally._replace(
        visits=tally.visits.at[places].add(1.0),
        bonuses=tally.bonuses.at[places].add(bonus[:, 1:].reshape(-1)),
    )


def _unless_broken(before: TrainState, after: TrainState, rollout: Rollout, learnt: Any) -> TrainState:
    """`after`; or, where a number is not finite, what was learnt before.

    A gradient that is not finite makes parameters that are not, so that `learnt` shows it.
    """
    seen = rollout.trajectories.observation, rollout.reward, learnt
    causes = jnp.stack([~_all_finite(tree) for tree in seen])
    broken = jnp.any(causes)
    numbers = {name: before.tally.numbers.get(name, jnp.zeros(())) for name in after.tally.numbers}
    skipped = before.tally._replace(skipped=before.tally.skipped + 1, numbers=numbers)
    old = before.learner, before.representation._replace(memory=after.representation.memory), skipped
    new = after.learner, after.representation, after.tally
    learner, representation, tally = jax.tree.map(partial(jnp.where, broken), old, new)
    in_a_row = jnp.where(broken, before.skips.in_a_row + 1, 0)
    return after._replace(
        learner=learner,
        representation=representation._replace(memory=cleaned(representation.memory)),
        tally=tally,
        skips=Skips(
            in_a_row,
            jnp.maximum(before.skips.most, in_a_row),
            jnp.where(broken, causes, before.skips.causes),
        ),
    )


def _all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether all its floating-point numbers are."""
    parts = [leaf for leaf in jax.tree.leaves(tree) if _is_real(leaf)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts])) if parts else jnp.asarray(True)


def cleaned(memory: Any) -> Any:
    """The memory of streams with 0 for what is not finite, which would stay: 0 · NaN is NaN, at resets too."""
    return jax.tree.map(
        lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)) if _is_real(leaf) else leaf,
        memory,
    )


def _is_real(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


STREAMS = PartitionSpec(None, "data")  # (seeds, streams, …)


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A line of devices, all of them unless some are given, along the axis "data"."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), ("data",), (AxisType.Auto,))


def check_streams(streams: int, mesh: Mesh | AbstractMesh) -> None:
    """Refuses streams that cannot be split evenly."""
    if streams % mesh.size:
        raise ValueError(
            f"streams: expected a multiple of the {mesh.size} devices, since they are split evenly; got {streams}."
        )


def placed(training: Training, state: TrainState, mesh: Mesh) -> TrainState:
    """The state of all seeds with its streams split over the mesh; what is there already is not moved.

    What has rows that cannot be split evenly is on every device: states of tasks whose streams are no multiple of them.
    """
    check_streams(training.streams.n, mesh)
    split, whole = NamedSharding(mesh, STREAMS), NamedSharding(mesh, PartitionSpec())

    def over(sharding: NamedSharding, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: sharding if _fits(leaf, sharding) else whole, tree)

    places = over(whole, state)._replace(actor=over(split, state.actor))
    memory = over(split, state.representation.memory)
    places = places._replace(representation=places.representation._replace(memory=memory))
    return jax.device_put(state, places)


def _fits(leaf: Any, sharding: NamedSharding) -> bool:
    """Whether it can be split; states of one task among many have a row for each of that task's streams alone."""
    return sharding.is_fully_replicated or leaf.shape[1] % sharding.mesh.size == 0
