"""Numbers that are not finite: the update is skipped and counted, and nothing that was learnt is lost."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.envs.diagnostic import Catch
from derex.envs.wrappers import make_streams
from derex.representations import BonusUse, Representation, RepresentationState
from derex.representations.base import NoRepresentation, no_auxiliary, track_nothing
from derex.training import DivergedError, TrainConfig, read_metrics, restore_run, run, train
from derex.training.learner import JaxTraining, TrainState

STREAMS, UNROLL = 8, 4


class Flaky:
    """Catch, where now and then a number is NaN."""

    def __init__(self, observation: float = 0.0, reward: float = 0.0):
        self.inner, self.observation, self.reward = Catch(), observation, reward

    spec = Catch.spec

    def reset(self, key: Any) -> Any:
        return self.inner.reset(key)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        state, observation, reward, down = self.inner.step(state, action, key)
        chances = jax.random.uniform(jax.random.fold_in(key, 1), (2,))
        observation = jnp.where(chances[0] < self.observation, jnp.nan, observation)
        return state, observation, jnp.where(chances[1] < self.reward, jnp.nan, reward), down


class FlakyReward(Flaky):
    """As `derex train --env jax:module:Class` makes it."""

    def __init__(self):
        super().__init__(reward=0.02)


def training_on(env: Flaky, form: Any = None, core: str = "feed-forward") -> JaxTraining:
    agent = AgentConfig(core=core, width=8, unroll=UNROLL, epochs=1, minibatches=2)
    return JaxTraining(make_streams(env, STREAMS), (form or NoRepresentation()).build(), agent)


def numbers(tree: Any) -> list[Any]:
    """(seeds, …) each, keys as their data."""
    keys = jax.dtypes.prng_key
    leaves = jax.tree.leaves(tree)
    return [np.array(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, keys) else x) for x in leaves]


class Look(NamedTuple):
    """A state, copied: its memory is given to the next."""

    learnt: list[Any]
    key: Any
    skipped: Any
    in_a_row: Any


def look(state: TrainState) -> Look:
    learnt = numbers((state.learner, state.representation.own, state.representation.tracked))
    skips = state.skips
    return Look(learnt, *(numbers(x)[0] for x in (state.key, state.tally.skipped, skips.in_a_row)))


@pytest.mark.parametrize(
    ("chances", "core", "cause"),
    [
        ({"observation": 0.01}, "lstm", 0),
        pytest.param({"reward": 0.01}, "feed-forward", 1, marks=pytest.mark.slow),
    ],
)
def test_only_the_broken_updates_of_a_seed_are_skipped(
    chances: dict[str, float], core: str, cause: int
) -> None:
    training = training_on(Flaky(**chances), core=core)
    state = training.init_seeds((0, 1))
    before, most, both = look(state), np.zeros(2, int), np.zeros((2, 2), int)
    for _ in range(16):
        state = training.advance(state, 1)
        after = look(state)
        for seed in range(2):
            skipped = after.skipped[seed] - before.skipped[seed]
            both[seed, skipped] += 1
            same = [
                np.array_equal(a[seed], b[seed]) for a, b in zip(after.learnt, before.learnt, strict=True)
            ]
            assert all(same) == bool(skipped)
            assert after.in_a_row[seed] == (before.in_a_row[seed] + 1 if skipped else 0)
            assert not np.array_equal(after.key[seed], before.key[seed])
            if skipped:
                assert state.skips.causes[seed, cause]
        most = np.maximum(most, after.in_a_row)
        before = after
    assert np.all(both > 0)  # either seed has skipped some and learnt from some
    np.testing.assert_array_equal(state.skips.most, most)
    np.testing.assert_array_equal(state.tally.iterations + state.tally.skipped, 16)
    learnt = state.learner, state.representation, state.actor.memory, state.tally.numbers
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(learnt))


class Counting:
    """A representation whose bonus is infinite once it has counted to three."""

    def build(self) -> Representation:
        return Representation(
            self.init, no_auxiliary, track_nothing, self.observe, lambda state: {}, BonusUse(1.0)
        )

    def init(self, key: Any, sizes: Any) -> RepresentationState:
        return RepresentationState(None, None, jnp.zeros(()), None)

    def observe(self, state: RepresentationState, view: Any, key: Any) -> Any:
        bonus = jnp.where(state.tracked >= 3, jnp.inf, 1.0) * jnp.ones(view.trajectories.shape)
        return state._replace(tracked=state.tracked + 1), bonus


def test_a_gradient_that_is_not_finite_is_never_applied() -> None:
    training = training_on(Flaky(), Counting())
    state = training.advance(training.init_seeds((0,)), 3)
    before = look(state)
    state = training.advance(state, 4)
    after = look(state)
    assert all(np.array_equal(a, b) for a, b in zip(after.learnt, before.learnt, strict=True))
    assert (after.skipped, after.in_a_row) == (4, 4)
    np.testing.assert_array_equal(state.skips.causes, [[False, False, True]])
    assert not np.array_equal(after.key, before.key)


def test_a_few_in_a_row_stop_the_run_with_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here about every other update is skipped; a line for each."""
    env = f"jax:{__name__}:FlakyReward"
    monkeypatch.setattr(run, "PIECE_SECONDS", 0.0)
    agent = AgentConfig(core="feed-forward", width=8, unroll=UNROLL, epochs=1, minibatches=2)
    steps = STREAMS * UNROLL
    config = TrainConfig(env, tmp_path / "a", "vmpo", steps=1000 * steps, streams=STREAMS, agent=agent)
    config = replace(config, log_every=steps, max_skipped=3, save_every=0.0)
    with pytest.raises(DivergedError, match="seed 0: 3 updates in a row were skipped because a reward"):
        train(config)
    lines = read_metrics(tmp_path / "a")
    skipped = [line["skipped_updates"] for line in lines]
    assert skipped[-2:] == [1, 1]  # the third had no line any more
    assert 0 in skipped
    assert [line["value_loss"] is None for line in lines] == [bool(count) for count in skipped]
    assert [line["entropy"] is None for line in lines] == [bool(count) for count in skipped]
    restored = restore_run(tmp_path / "a", env=env)
    assert restored.step == lines[-1]["step"]
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(restored.state.learner))
    assert np.max(restored.state.skips.most) == 2
