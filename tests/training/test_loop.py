"""The loop: seeds side by side, what is added up, and one iteration taken apart."""

from typing import Any

import jax
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.rollout import collect_rollout
from derex.envs.registry import make
from derex.envs.wrappers import make_streams
from derex.representations.base import OptimisedTraining
from derex.representations.decomposed import DecompositionConfig
from derex.representations.states import StatesConfig
from derex.training.learner import JaxTraining, TrainState

STREAMS, UNROLL = 8, 5
AGENT = AgentConfig(width=8, unroll=UNROLL, epochs=2, minibatches=2)
STATES = StatesConfig(DecompositionConfig(k=3), training=OptimisedTraining(steps=2, streams=4), width=8)


@pytest.fixture(scope="module")
def training() -> JaxTraining:
    return JaxTraining(make_streams(make("rooms-chain-2"), STREAMS), STATES.build(), AGENT)


def leaves(state: Any) -> list[Any]:
    """All arrays, PRNG keys as their data."""
    return [
        np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(state)
    ]


@pytest.mark.slow
def test_seeds_side_by_side_are_single_runs(training: JaxTraining) -> None:
    """Compared without the networks of states and the moments of their outputs: a bias before a standardisation has
    a gradient of rounding errors alone, and Adam makes full steps of them. Nothing else depends on it."""

    def compared(state: TrainState) -> list[Any]:
        return leaves(state._replace(representation=state.representation.tracked.correlations))

    together = compared(training.advance(training.init_seeds((3, 7)), 3))
    for place, seed in enumerate((3, 7)):
        alone = compared(training.advance(training.init_seeds((seed,)), 3))
        for one, other in zip(alone, together, strict=True):
            # Bonuses are divided by the smallest deviations: sums in another order show in their third digit.
            np.testing.assert_allclose(one[0], other[place], rtol=2e-2, atol=2e-3)
    different = [np.any(leaf[0] != leaf[1]) for leaf in together]
    assert np.mean(different) > 0.5


def test_no_factorisation_is_of_the_matrices_of_several_seeds(training: JaxTraining) -> None:
    """Two of those that run at the same time on two cores may wait for each other for ever."""
    text = JaxTraining.init_seeds.lower(training, (0, 1)).as_text()
    factorisations = [line for line in text.splitlines() if "geqrf" in line]
    assert factorisations
    assert not [line for line in factorisations if "tensor<2x8x8x" in line]
    control = jax.jit(jax.vmap(jax.numpy.linalg.qr)).lower(np.ones((2, 8, 8), np.float32)).as_text()
    assert [line for line in control.splitlines() if "geqrf" in line and "tensor<2x8x8x" in line]


@pytest.mark.slow
def test_the_tally_counts_every_step_and_iteration(training: JaxTraining) -> None:
    state = training.advance(training.init_seeds((0, 1)), 4)
    np.testing.assert_array_equal(state.tally.iterations, [4, 4])
    np.testing.assert_array_equal(state.tally.visits.sum(axis=1), [4 * STREAMS * UNROLL] * 2)
    assert state.tally.visits.shape == (2, training.streams.spec.n_states)
    cleared = training.clear(state)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(cleared.tally))
    after = training.advance(cleared, 1)
    np.testing.assert_array_equal(after.tally.visits.sum(axis=1), [STREAMS * UNROLL] * 2)


def test_numbers_add_up_over_iterations(training: JaxTraining) -> None:
    """Three looks of one iteration each sum to one look of three."""
    whole = training.advance(training.init_seeds((0,)), 3).tally
    state, sums = training.init_seeds((0,)), []
    for _ in range(3):
        state = training.advance(training.clear(state), 1)
        sums.append(jax.device_get(state.tally))
    added = jax.tree.map(lambda *parts: np.sum(parts, axis=0), *sums)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), added, jax.device_get(whole)
    )
    assert {"policy_loss", "value_loss", "kl", "entropy", "bonus"} <= set(whole.numbers)
    assert all(np.all(np.isfinite(value)) for value in whole.numbers.values())


def test_advancing_by_nothing_changes_nothing_and_gives_the_memory_back(training: JaxTraining) -> None:
    before = leaves(training.init_seeds((0,)))
    state = training.init_seeds((0,))
    after = training.advance(state, 0)
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(state.learner.trained))  # donated
    for one, other in zip(before, leaves(after), strict=True):
        np.testing.assert_array_equal(one, other)
    training.advance(after, 1)


def test_one_iteration_taken_apart(training: JaxTraining) -> None:
    """Visits and bonuses of each state are those of the rollout that its keys give."""
    state = jax.tree.map(lambda leaf: leaf[0], training.init_seeds((5,)))
    network = state.learner.trained.network
    _, acting, observing, _ = jax.random.split(state.key, 4)

    @jax.jit
    def replay(state: TrainState) -> Any:
        actor, rollout = collect_rollout(
            network, training.policy, training.streams, state.actor, acting, UNROLL
        )
        view = network(rollout.trajectories, rollout.memory).view
        represented, bonus = training.representation.observe(state.representation, view, observing)
        return actor, rollout, represented, bonus

    actor, rollout, represented, bonus = replay(state)
    visits, bonuses = np.zeros(training.streams.spec.n_states), np.zeros(training.streams.spec.n_states)
    for b in range(STREAMS):
        for t in range(1, UNROLL + 1):  # step 0 belongs to the unroll before
            visits[rollout.state_id[b, t]] += 1
            bonuses[rollout.state_id[b, t]] += bonus[b, t]
    after = jax.jit(training.iterate)(state)
    np.testing.assert_array_equal(after.tally.visits, visits)
    np.testing.assert_allclose(after.tally.bonuses, bonuses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(after.tally.numbers["bonus"], np.mean(bonus), rtol=1e-3)
    np.testing.assert_array_equal(after.actor.time_step.observation, actor.time_step.observation)
    for one, other in zip(
        after.representation.tracked.correlations, represented.tracked.correlations, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
