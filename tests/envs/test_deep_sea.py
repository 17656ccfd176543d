"""Deep sea against bsuite's rules."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make
from derex.envs.diagnostic import DeepSea


def dive(walk, env, rights):
    """A dive that goes right or left as told, whatever the actions are called in each cell."""
    actions, column = [], 0
    for row, right in enumerate(rights):
        meaning = int(env.right_action[row, column])
        actions.append(meaning if right else 1 - meaning)
        column = min(column + 1, env.n - 1) if right else max(column - 1, 0)
    return walk(env, actions)


@pytest.mark.parametrize("n", [2, 5, 10])
def test_always_right_finds_the_treasure(walk, n):
    walked = dive(walk, make(f"deep-sea-{n}"), [True] * n)
    assert walked.rewards[:-1] == pytest.approx([-0.01 / n] * (n - 1), rel=1e-6)
    assert walked.rewards[-1] == pytest.approx(1 - 0.01 / n, rel=1e-6)
    assert walked.rewards.sum() == pytest.approx(0.99, abs=1e-6)
    assert walked.terminated.tolist() == [False] * (n - 1) + [True]


def test_always_left_returns_nothing(walk):
    env: Any = make("deep-sea-6")
    walked = dive(walk, env, [False] * 6)
    assert walked.rewards.tolist() == [0.0] * 6
    assert walked.terminated.tolist() == [False] * 5 + [True]
    assert [int(np.flatnonzero(o)[0]) for o in walked.observations[:-1]] == [0, 6, 12, 18, 24, 30]


def test_only_one_of_all_sequences_succeeds(walk):
    env: Any = make("deep-sea-4")
    returns = {
        rights: dive(walk, env, rights).rewards.sum() for rights in itertools.product([True, False], repeat=4)
    }
    assert [rights for rights, value in returns.items() if value >= env.spec.success_return] == [(True,) * 4]
    for rights, value in returns.items():
        assert value == pytest.approx(-0.0025 * sum(rights) + all(rights), abs=1e-6)


def test_actions_mean_different_things_in_different_cells():
    meanings = DeepSea(20).right_action
    np.testing.assert_array_equal(meanings, DeepSea(20).right_action)
    assert 0.4 < meanings.mean() < 0.6
    assert 0 < np.diag(meanings).sum() < 20  # repeating one action is not the way


def test_places_numbers_and_the_empty_end(walk):
    env: Any = make("deep-sea-4")
    walked = dive(walk, env, [True, False, True, True])
    cells = [(int(state.row), int(state.column)) for state in walked.states]
    assert cells == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 2)]
    ids = [int(env.state_id(state)) for state in walked.states]
    assert ids == [0, 2, 3, 7, 10]
    assert env.spec.positions[ids[:-1]].tolist() == [list(cell) for cell in cells[:-1]]
    assert env.spec.positions[10].tolist() == [4, 0]
    assert [np.flatnonzero(o).tolist() for o in walked.observations] == [[0], [5], [8], [13], []]


def test_every_number_is_reached(walk):
    env: Any = make("deep-sea-4")
    dives = [dive(walk, env, rights) for rights in itertools.product([True, False], repeat=4)]
    ids = {int(env.state_id(state)) for walked in dives for state in walked.states}
    assert ids == set(range(env.spec.n_states))
    assert jnp.asarray(env.spec.positions).shape == (11, 2)
