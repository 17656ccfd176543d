"""The training loop: the paper's algorithm, many iterations per compiled call, all seeds in parallel.

Everything is written for one global batch. Under `jax.jit` on sharded arrays the top half of the advantages, the batch
statistics, Σ̂ and the two halves of double sampling are those of all streams. Streams are split over all devices and
everything else is replicated (`placed`): this changes where values are computed, not which.

Shapes: B streams, n numbered states. With several seeds every array of a state has a leading seed axis.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Policy, make_policy
from derex.agents.rollout import Actor, Rollout, collect_rollout, init_actor
from derex.agents.update import Learner, combine_rewards, compute_advantages, init_learner, update_agent
from derex.envs.host import HostTask, make_host_task, make_host_tasks
from derex.envs.interface import Environment
from derex.envs.multitask import MultiTask, make_task_streams, multi_task
from derex.envs.registry import expand_tasks, imports_user_code, is_host, make
from derex.envs.wrappers import PreviousReward, make_streams
from derex.representations.base import Representation, RepresentationConfig, RepresentationState, Sizes
from derex.training.config import TrainConfig

MAX_SHARED = 16  # environments, and trainings, that are kept for later calls with the same options
CAUSES = ("an observation", "a reward", "a loss or a gradient")


class MetricSums(NamedTuple):
    """Sums over the iterations since the last line of metrics."""

    iterations: Int[Array, ""]
    """with an update"""
    skipped: Int[Array, ""]
    """without one; not in the sums below"""
    numbers: dict[str, Array]
    visits: Float[Array, " n"]
    """visits of each numbered state"""
    bonuses: Float[Array, " n"]
    """sum of its bonuses"""


class Skips(NamedTuple):
    """Updates that were skipped because of non-finite values."""

    in_a_row: Int[Array, ""]
    """up to now"""
    most: Int[Array, ""]
    """the longest sequence of the run"""
    causes: Bool[Array, "3"]
    """of the last skipped update, as in `CAUSES`"""


class TrainState(NamedTuple):
    """Everything that training changes."""

    actor: Actor
    learner: Learner
    representation: RepresentationState
    tally: MetricSums
    key: PRNGKeyArray
    skips: Skips


@dataclass(frozen=True, eq=False)
class Training:
    """An environment, an agent and a representation: pure functions of a `TrainState`.

    Subclasses say how streams are stepped: `JaxTraining`, and `derex.training.host.HostTraining`.
    """

    streams: Any  # `EnvironmentStreams`, or `HostStreams`
    representation: Representation
    config: AgentConfig

    @abstractmethod
    def init_actor(self, network: AgentNetwork, key: PRNGKeyArray) -> Actor:
        """All streams before the first step of the run."""

    @abstractmethod
    def iterate(self, state: TrainState) -> TrainState:
        """One iteration of one seed."""

    @abstractmethod
    def open_loop(self, config: TrainConfig, notify: Callable[..., None]) -> Loop:
        """What advances states of this training; `notify` receives events of workers."""

    @property
    def policy(self) -> Policy:
        """The policy family for the environment's actions."""
        return make_policy(self.streams.spec.action)

    @property
    def sizes(self) -> Sizes:
        """What the representation needs to know."""
        observation = describe_parts(self.streams.spec.observation)
        width = self.config.width
        return Sizes(observation, self.policy.width, width, width, self.streams.n)

    def init(self, key: PRNGKeyArray) -> TrainState:
        """The state of one seed before the first iteration."""
        network_key, representation_key, actor_key, key = jax.random.split(key, 4)
        config, policy, sizes = self.config, self.policy, self.sizes
        network = AgentNetwork(config, sizes.observation, policy, key=network_key)
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

    def learn_from(
        self, state: TrainState, rollout: Rollout, observing: PRNGKeyArray, learning: PRNGKeyArray
    ) -> TrainState:
        """Train the representation, compute the bonus, then train the agent on reward and bonus.

        The rollout may come from earlier parameters: V-MPO's loss compares with the policy stored in it. `actor` and
        `key` are returned unchanged.
        """
        config, policy, representation = self.config, self.policy, self.representation
        view = state.learner.trained.network(rollout.trajectories, rollout.memory).view
        represented, bonus = representation.observe(state.representation, view, observing)
        learner, streams = combine_rewards(config, state.learner, rollout, bonus, representation.use)
        batch = compute_advantages(config, rollout, streams)
        learner, represented, numbers = update_agent(
            config, policy, representation, learner, represented, batch, learning
        )
        numbers |= {"bonus": jnp.mean(bonus)}
        tally = _add_to_sums(state.tally, rollout, bonus, numbers)
        after = state._replace(learner=learner, representation=represented, tally=tally)
        return _keep_finite(state, after, rollout, (learner, represented, numbers))

    @partial(jax.jit, static_argnums=(0, 1))
    def init_seeds(self, seeds: tuple[int, ...]) -> TrainState:
        """The states of all seeds, stacked.

        Seeds are initialised one after the other: orthogonal weights need factorisations, and two batched ones at the
        same time can deadlock on a machine with two cores (jaxlib 0.10).
        """
        return jax.lax.map(lambda seed: self.init(jax.random.key(seed)), jnp.asarray(seeds))

    def clear(self, state: TrainState) -> TrainState:
        """The state with all metric sums at 0."""
        environment = state.actor.environment
        cleared = environment._replace(sums=jax.tree.map(jnp.zeros_like, environment.sums))
        actor = state.actor._replace(environment=cleared)
        return state._replace(actor=actor, tally=jax.tree.map(jnp.zeros_like, state.tally))

    @partial(jax.jit, static_argnums=0)
    def report(self, state: TrainState) -> dict[str, Array]:
        """Diagnostics of each seed's representation."""
        return jax.vmap(lambda state: self.representation.report(state.representation))(state)


class JaxTraining(Training):
    """A training whose whole iteration is one compiled program, environment included."""

    def init_actor(self, network: AgentNetwork, key: PRNGKeyArray) -> Actor:
        return init_actor(network, self.policy, self.streams, key)

    def iterate(self, state: TrainState) -> TrainState:
        """One iteration of one seed: collect a rollout, then learn from it."""
        key, acting, observing, learning = jax.random.split(state.key, 4)
        network = state.learner.trained.network
        actor, rollout = collect_rollout(
            network, self.policy, self.streams, state.actor, acting, self.config.unroll
        )
        after = self.learn_from(state, rollout, observing, learning)
        actor = actor._replace(
            previous_action=zero_nonfinite(actor.previous_action), memory=zero_nonfinite(actor.memory)
        )
        return after._replace(actor=actor, key=key)

    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def advance(
        self,
        state: TrainState,
        iterations: Int[Array, ""] | int,
        reset_metrics: Bool[Array, ""] | bool = False,
    ) -> TrainState:
        """Run any number of iterations of all seeds, compiled once; the memory of `state` is reused.

        `reset_metrics` clears the metric sums before: in a call of its own that would cost more than a short iteration.
        """
        step = jax.vmap(self.iterate)
        state = jax.tree.map(partial(jnp.where, reset_metrics), self.clear(state), state)
        return jax.lax.fori_loop(0, iterations, lambda _, state: step(state), state)

    def open_loop(self, config: TrainConfig, notify: Callable[..., None]) -> Loop:
        return Loop(self)


class Loop:
    """Advances the state of a training. This one holds nothing; `HostLoop` holds worker processes."""

    longest: int | None = None
    """most iterations per call; None: any number"""

    def __init__(self, training: Any):
        self._training = training

    def advance(self, state: TrainState, iterations: int, reset_metrics: bool, more: bool) -> TrainState:
        """Run `iterations` updates of all seeds, 0 to compile; `more` says that further calls follow."""
        return self._training.advance(state, iterations, reset_metrics)

    def numbers(self) -> dict[str, Any]:
        """Metrics since the last call, besides those in the state."""
        return {}

    def close(self) -> None:
        """Release all resources; may be repeated."""


def _add_to_sums(
    tally: MetricSums, rollout: Rollout, bonus: Float[Array, "B S"], numbers: dict[str, Array]
) -> MetricSums:
    """Add one iteration to the sums."""
    added = {name: tally.numbers.get(name, jnp.zeros(())) + value for name, value in numbers.items()}
    tally = tally._replace(iterations=tally.iterations + 1, numbers=added)
    if rollout.state_id is None:
        return tally
    places = rollout.state_id[:, 1:].reshape(-1)  # step 0 was the last of the rollout before
    return tally._replace(
        visits=tally.visits.at[places].add(1.0),
        bonuses=tally.bonuses.at[places].add(bonus[:, 1:].reshape(-1)),
    )


def _keep_finite(before: TrainState, after: TrainState, rollout: Rollout, learnt: Any) -> TrainState:
    """`after`; with non-finite values, its learner and representation are those of `before`.

    A non-finite gradient makes non-finite parameters, so it shows in `learnt`.
    """
    seen = rollout.trajectories.observation, rollout.reward, learnt
    causes = jnp.stack([~_all_finite(tree) for tree in seen])
    broken = jnp.any(causes)
    numbers = {name: before.tally.numbers.get(name, jnp.zeros(())) for name in after.tally.numbers}
    skipped = before.tally._replace(skipped=before.tally.skipped + 1, numbers=numbers)
    memory = after.representation.memory
    old = before.learner, before.representation._replace(memory=memory), skipped
    new = after.learner, after.representation, after.tally
    learner, representation, tally = jax.tree.map(partial(jnp.where, broken), old, new)
    representation = representation._replace(memory=zero_nonfinite(representation.memory))
    in_a_row = jnp.where(broken, before.skips.in_a_row + 1, 0)
    most = jnp.maximum(before.skips.most, in_a_row)
    skips = Skips(in_a_row, most, jnp.where(broken, causes, before.skips.causes))
    return after._replace(learner=learner, representation=representation, tally=tally, skips=skips)


def _all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether all floating-point leaves are finite."""
    parts = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts])) if parts else jnp.asarray(True)


def zero_nonfinite(memory: Any) -> Any:
    """Replace non-finite values by 0. In a memory they would persist, at resets too, since 0 · NaN is NaN."""
    return jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, posinf=0.0, neginf=0.0), memory)


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A one-dimensional mesh of the devices, by default all, with the axis "data"."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), ("data",), (AxisType.Auto,))


def check_streams(streams: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise unless the streams can be split evenly over the mesh."""
    if streams % mesh.size:
        raise ValueError(
            f"streams: expected a multiple of the {mesh.size} devices, since they are split evenly; got {streams}."
        )


def placed(training: Training, state: TrainState, mesh: Mesh) -> TrainState:
    """The state of all seeds with its streams split over the mesh: arrays (seeds, streams, …).

    Arrays that cannot be split evenly are replicated: states of one task of several have rows for its streams only.
    """
    check_streams(training.streams.n, mesh)
    split, whole = NamedSharding(mesh, PartitionSpec(None, "data")), NamedSharding(mesh, PartitionSpec())

    def split_streams(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: split if leaf.ndim > 1 and leaf.shape[1] % mesh.size == 0 else whole, tree
        )

    places = jax.tree.map(lambda leaf: whole, state)
    memory = split_streams(state.representation.memory)
    representation = places.representation._replace(memory=memory)
    places = places._replace(actor=split_streams(state.actor), representation=representation)
    return jax.device_put(state, places)


@contextmanager
def rename_errors(argument: str) -> Iterator[None]:
    """Names the run's own argument in errors about the registry's `name`, or about `env`."""
    try:
        yield
    except ValueError as error:
        before, _, text = str(error).partition(":")
        if before not in ("name", "env"):
            raise
        raise ValueError(f"{argument}:{text}") from error


def make_environment(name: str, agent: AgentConfig) -> Environment | MultiTask | HostTask:
    """Make the environment of that name, as the agent observes it; a set or list of tasks is one environment.

    Of host environments this is the recipe by which workers make them. The same name gives the same object again, so
    that programs compiled for it are reused; except for the user's own code, which may have changed since.
    """
    build = _make_environment if imports_user_code(name) else _shared_environment
    with rename_errors("env"):
        return build(name, agent.previous_reward)


def _make_environment(name: str, previous_reward: bool) -> Environment | MultiTask | HostTask:
    tasks = expand_tasks(name)
    if len(tasks) > 1 and any(map(is_host, tasks)):
        return make_host_tasks(name, tasks, previous_reward)
    if len(tasks) > 1:
        return multi_task(name, {task: make(task) for task in tasks}, previous_reward)
    if is_host(name):
        return make_host_task(name, previous_reward)
    environment = make(name)
    return PreviousReward(environment) if previous_reward else environment


_shared_environment = lru_cache(MAX_SHARED)(_make_environment)


def tasks_in(environment: Environment | MultiTask | HostTask) -> tuple[Environment | HostTask, ...]:
    """The tasks of the environment: itself, unless it is several."""
    several = environment.tasks if isinstance(environment, MultiTask | HostTask) else ()
    return several or (environment,)  # type: ignore[return-value]


def make_training(config: TrainConfig) -> Training:
    """Join environment, agent and representation of the config.

    The same options give the same object again, and with it the programs that were compiled for it; except for the
    user's own code, which may have changed since. A training holds no state and no workers.
    """
    config = config.resolved()
    user_code = ":" in config.method or imports_user_code(config.env)
    build = _make_training if user_code else _shared_training
    return build(config.env, config.streams, config.agent, config.representation)


def _make_training(
    env: str, streams: int, agent: AgentConfig, representation: RepresentationConfig
) -> Training:
    environment = make_environment(env, agent)
    built = representation.build()
    if isinstance(environment, HostTask):
        from derex.training.host import HostStreams, HostTraining  # late: it extends `Training`

        return HostTraining(HostStreams(environment, streams), built, agent)
    several = isinstance(environment, MultiTask)
    made = make_task_streams(environment, streams) if several else make_streams(environment, streams)
    return JaxTraining(made, built, agent)


_shared_training = lru_cache(MAX_SHARED)(_make_training)
