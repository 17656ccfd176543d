"""What every registered environment promises, alone and as streams: one suite for all, those of JAX suites too."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import Environment, make, make_streams, names
from derex.envs.interface import DrawnEnvironment, NumberedEnvironment
from derex.envs.registry import is_installed
from derex.types import Box, Discrete, Symbols

EXAMPLES = (
    "rooms-chain-1",
    "rooms-chain-2",
    "rooms-chain-2-hidden",
    "four-rooms",
    "four-rooms-pixels",
    "four-rooms-hidden",
    "key-rooms-1",
    "deep-sea-4",
    "catch",
    "cartpole",
    "recall-2",
    "pendulum",
    "point-mass",
)
OF_SUITES = (
    "gymnax:DeepSea-bsuite",
    "gymnax:Pendulum-v1",
    "xminigrid:MiniGrid-Empty-5x5",
)
SLOWLY_COMPILED = (
    "gymnax:FourRooms-misc",
    "xminigrid:MiniGrid-DoorKey-5x5",
    "xminigrid:MiniGrid-MemoryS8",
    "navix:Navix-KeyCorridorS3R1-v0",
    "navix:Navix-GoToDoor-5x5-v0",
    "navix:Navix-Empty-5x5-v0+rgb",
    "craftax:Craftax-Classic-Symbolic-v1",
)
SHORTENED = (
    60  # steps after which episodes of a suite are cut here; their own limits are tested with each suite
)
SEEN_WHOLE = (
    "rooms-chain-1",
    "rooms-chain-2",
    "four-rooms",
    "four-rooms-pixels",
    "key-rooms-1",
    "deep-sea-4",
)
SEEDS, STREAMS = 2, 6
SPLIT = 2000  # keys of a walk; always as many, so that a shorter walk begins like a longer one


def test_every_pattern_has_an_example():
    patterns = [re.sub("[NL]$|[NL](?=-)", r"\\d+", name) for name in names()]
    for pattern in patterns:
        assert any(re.fullmatch(pattern, example) for example in EXAMPLES), pattern


def random_actions(key, spec, n):
    if isinstance(spec.action, Discrete):
        return jax.random.randint(key, (n,), 0, spec.action.n)
    low, high = spec.action.low, spec.action.high
    return jax.random.uniform(key, (n, spec.action.size), minval=low, maxval=high)


def unroll(streams, key, steps):
    """All time steps (T + 1, n), the reset's first, the states' numbers, and the first and last states."""
    numbered = streams.spec.n_states > 0

    def numbers(state):
        return streams.state_ids(state) if numbered else jnp.zeros(streams.n, jnp.int32)

    def step(state, key):
        action_key, step_key = jax.random.split(key)
        state, seen = streams.step(state, random_actions(action_key, streams.spec, streams.n), step_key)
        return state, (seen, numbers(state))

    reset_key, walk_key = jax.random.split(key)
    begin, seen = streams.reset(reset_key)
    end, rest = jax.lax.scan(step, begin, jax.random.split(walk_key, SPLIT)[:steps])
    whole = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), (seen, numbers(begin)), rest)
    return *whole, begin, end


@pytest.fixture(
    params=[*EXAMPLES, *OF_SUITES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWLY_COMPILED)],
    scope="module",
)
def env(request):
    suite = request.param.partition(":")[0]
    if suite in ("navix", "craftax") and not is_installed(suite):
        pytest.skip(f"{suite} is not installed")
    env = make(request.param)
    if ":" in request.param:
        env.spec = env.spec._replace(horizon=min(env.spec.horizon, SHORTENED))
    return env


@pytest.fixture(scope="module")
def record(env):
    """Two seeds of six streams, walked at random for a little more than two time limits."""
    streams = make_streams(env, STREAMS)
    steps = 2 * env.spec.horizon + 10
    run = jax.jit(jax.vmap(lambda key: unroll(streams, key, steps)))
    keys = jax.random.split(jax.random.key(0), SEEDS)
    seen, ids, begin, end = jax.tree.map(np.asarray, run(keys))
    last = (seen.discount == 0) | seen.truncated
    return SimpleNamespace(
        env=env, streams=streams, seen=seen, ids=ids, begin=begin, end=end, last=last, run=run, keys=keys
    )


def episodes(record):
    """(seed, stream, time of the first step, time of the last step) of the episodes that finished."""
    for seed, stream in np.ndindex(SEEDS, STREAMS):
        begins = np.flatnonzero(record.seen.first[seed, :, stream])
        ends = np.flatnonzero(record.last[seed, :, stream])
        yield from ((seed, stream, int(begins[i]), int(end)) for i, end in enumerate(ends))


def types(tree):
    leaves = jax.tree.leaves(tree)
    return [(leaf.shape, np.dtype(leaf.dtype), getattr(leaf, "weak_type", False)) for leaf in leaves]


def test_it_is_an_environment(env):
    assert isinstance(env, Environment)
    assert env.spec.horizon >= 1
    assert isinstance(env, NumberedEnvironment) == (env.spec.n_states > 0)
    if env.spec.n_states:
        assert env.spec.positions is not None
        assert env.spec.positions.shape == (env.spec.n_states, 2)
        assert env.spec.positions.min() >= 0
    else:
        assert env.spec.positions is None


def test_the_name_makes_it_again(env):
    again = make(env.spec.name)
    assert type(again) is type(env)
    same = {"positions": None, "horizon": env.spec.horizon}
    assert again.spec._replace(**same) == env.spec._replace(**same)


def test_types_of_one_episode(env):
    """Observations are as the specification says, and a step returns what a reset returns, to the weak type."""
    key = jax.random.key(0)
    state, observation = jax.eval_shape(env.reset, key)
    action = jax.tree.map(lambda leaf: leaf[0], random_actions(key, env.spec, 1))
    after = jax.eval_shape(env.step, state, action, key)
    assert types(observation) == types(env.spec.observation) == types(after[1])
    assert jax.tree.structure(observation) == jax.tree.structure(env.spec.observation)
    assert types(state) == types(after[0])
    assert types(after[2]) == [((), jnp.float32, False)]
    assert types(after[3]) == [((), jnp.bool_, False)]


@pytest.mark.parametrize("stagger", [True, False])
def test_types_of_the_streams_are_stable(env, stagger):
    streams = make_streams(env, 3)
    key = jax.random.key(0)
    state, step = jax.eval_shape(lambda key: streams.reset(key, stagger), key)
    after = jax.eval_shape(streams.step, state, random_actions(key, env.spec, 3), key)
    assert types((state, step)) == types(after)
    assert jax.tree.structure((state, step)) == jax.tree.structure(after)
    assert not any(weak for _, _, weak in types(after))
    assert [leaf.dtype for leaf in (step.reward, step.discount, step.truncated, step.first)] == [
        jnp.float32,
        jnp.float32,
        jnp.bool_,
        jnp.bool_,
    ]


def test_equal_keys_give_equal_streams_in_any_place_among_the_seeds(record):
    again = jax.tree.map(np.asarray, record.run(record.keys[::-1]))
    walked = (record.seen, record.ids, record.begin, record.end)
    assert jax.tree.all(
        jax.tree.map(lambda one, other: np.array_equal(one, other[::-1]), walked, tuple(again))
    )
    assert not np.array_equal(record.begin.streams.steps[0], record.begin.streams.steps[1])


ALONE = (
    "four-rooms-hidden",
    "cartpole",
    "key-rooms-1",
)  # one of each kind: every environment goes through the same vmap


def test_one_seed_alone_is_the_same_as_among_several(record):
    """Compared over the first steps: rounding may differ, and grows."""
    if record.env.spec.name not in ALONE:
        pytest.skip("compiles another program")
    seen, ids, _, _ = unroll(record.streams, record.keys[1], 12)
    for alone, among in zip(jax.tree.leaves(seen), jax.tree.leaves(record.seen), strict=True):
        np.testing.assert_allclose(np.asarray(alone), among[1, :13], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ids, record.ids[1, :13])


def test_observations_are_within_the_specification(record):
    expected = (SEEDS, len(record.seen.first[0]), STREAMS)
    leaves = zip(
        jax.tree.leaves(record.seen.observation), jax.tree.leaves(record.env.spec.observation), strict=True
    )
    for leaf, spec in leaves:
        assert leaf.shape == (*expected, *spec.shape)
        assert leaf.dtype == spec.dtype
        assert np.all(np.isfinite(leaf))
        if isinstance(spec, Symbols):
            assert np.all(leaf < np.asarray(spec.sizes))
            assert len(np.unique(leaf.reshape(-1, *spec.shape), axis=0)) > 1


def test_first_steps_follow_last_ones_and_nothing_else(record):
    seen = record.seen
    assert seen.first[:, 0].all()
    np.testing.assert_array_equal(seen.first[:, 1:], record.last[:, :-1])
    assert record.last.any(axis=1).all()  # each stream has finished an episode, so all of this says something
    assert not np.any(seen.first & record.last)


def test_rewards_and_discounts(record):
    seen = record.seen
    assert np.all(np.isfinite(seen.reward))
    assert np.all(seen.reward[seen.first] == 0)
    assert np.all(seen.discount[seen.first] == 1)
    assert set(np.unique(seen.discount)) <= {0.0, 1.0}
    assert not np.any(seen.truncated & (seen.discount == 0))


def test_episodes_are_cut_at_the_time_limit_exactly(record):
    horizon = record.env.spec.horizon
    for seed, stream, begin, end in episodes(record):
        elapsed = int(record.begin.streams.steps[seed, stream]) if begin == 0 else 0
        steps = elapsed + end - begin
        terminated = record.seen.discount[seed, end, stream] == 0
        assert steps <= horizon
        assert terminated or steps == horizon
        assert record.seen.truncated[seed, end, stream] == (not terminated)


def test_tasks_that_end_by_themselves_are_never_cut(record):
    """Deep sea, catch and recall last as long as their rules say; only staggering cuts their first episodes."""
    if record.env.spec.name not in ("deep-sea-4", "catch", "recall-2"):
        pytest.skip("has a time limit")
    whole = [(seed, stream, begin, end) for seed, stream, begin, end in episodes(record) if begin > 0]
    assert len(whole) > 0
    for seed, stream, begin, end in whole:
        assert end - begin == record.env.spec.horizon
        assert record.seen.discount[seed, end, stream] == 0


def test_staggering(record):
    elapsed, horizon = record.begin.streams.steps, record.env.spec.horizon
    assert elapsed.min() >= 0
    assert elapsed.max() < horizon
    assert len(np.unique(elapsed)) > min(horizon, elapsed.size) / 3


def test_statistics_are_those_counted_by_hand(record):
    threshold = record.env.spec.success_return
    expected = np.zeros((4, SEEDS, STREAMS))
    for seed, stream, begin, end in episodes(record):
        if begin == 0 and record.begin.streams.steps[seed, stream] > 0:
            continue
        total = record.seen.reward[seed, begin + 1 : end + 1, stream].sum(dtype=np.float64)
        expected[:, seed, stream] += [1, total, end - begin, threshold is not None and total >= threshold]
    assert expected[0].sum() > 0
    sums = record.end.sums
    np.testing.assert_array_equal(sums.episodes, expected[0])
    np.testing.assert_allclose(sums.returns, expected[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(sums.lengths, expected[2])
    np.testing.assert_array_equal(sums.successes, expected[3])


def test_states_have_numbers_within_range(record):
    if not record.env.spec.n_states:
        with pytest.raises(TypeError, match="not numbered"):
            record.streams.state_ids(jax.tree.map(lambda leaf: leaf[0], record.end))
        return
    assert record.ids.min() >= 0
    assert record.ids.max() < record.env.spec.n_states
    assert len(np.unique(record.ids[record.seen.first])) == 1  # all of these start in one place
    here = record.env.spec.positions[record.ids]
    moved = np.abs(np.diff(here, axis=1)).sum(axis=-1)
    inside = ~record.seen.first[:, 1:] & (record.seen.discount[:, 1:] == 1)
    assert moved[inside].max() <= (2 if record.env.spec.name.startswith("deep-sea") else 1)


def test_numbers_and_observations_are_one_to_one(record):
    """Where nothing is hidden: the same number, the same observation, and different numbers, different ones."""
    if record.env.spec.name not in SEEN_WHOLE:
        pytest.skip("not every state shows itself")
    ids = record.ids.ravel()
    rows = record.seen.observation.reshape(len(ids), -1)
    known, places = np.unique(ids, return_index=True)
    assert len(known) > 4
    assert len(np.unique(rows[places], axis=0)) == len(known)
    np.testing.assert_array_equal(rows, rows[places][np.searchsorted(known, ids)])


def test_boxes_are_clipped(env):
    if not isinstance(env.spec.action, Box):
        pytest.skip("actions are numbers")
    key = jax.random.key(0)
    state, _ = env.reset(key)
    high = env.spec.action.high
    far, edge = (env.step(state, jnp.full(env.spec.action.size, size), key) for size in (7 * high, high))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), far, edge))
    inside = env.step(state, jnp.full(env.spec.action.size, 0.5 * high), key)
    assert float(inside[2]) != float(edge[2])


def test_pictures_are_of_one_size_and_show_what_happens(env):
    if not isinstance(env, DrawnEnvironment):
        pytest.skip("does not draw itself")
    key, pictures = jax.random.key(0), []
    state, _ = jax.jit(env.reset)(key)
    step = jax.jit(env.step)
    for number in range(min(env.spec.horizon, 6)):
        pictures.append(env.render(state))
        action_key, step_key, key = jax.random.split(jax.random.fold_in(key, number), 3)
        state = step(state, random_actions(action_key, env.spec, 1)[0], step_key)[0]
    assert all(isinstance(picture, np.ndarray) and picture.dtype == np.uint8 for picture in pictures)
    assert len({picture.shape for picture in pictures}) == 1
    height, width, channels = pictures[0].shape
    assert 60 <= height <= 600
    assert 100 <= width <= 600
    assert channels == 3
    assert any(not np.array_equal(pictures[0], picture) for picture in pictures[1:])
    assert len(np.unique(pictures[0].reshape(-1, 3), axis=0)) > 2


def test_all_of_these_draw_themselves():
    assert all(isinstance(make(name), DrawnEnvironment) for name in EXAMPLES)
