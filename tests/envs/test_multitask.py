"""Many JAX tasks as one: names, what is seen, which stream plays what, and that nothing else changes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs.multitask import (
    MultiTask,
    TaskStreams,
    assign_tasks,
    make_padding,
    make_task_streams,
    merge_specs,
    multi_task,
    observation_parts,
)
from derex.envs.registry import SETS, expand_tasks, make
from derex.envs.wrappers import AutoReset, Batched
from derex.types import Amount, Box, Discrete, EnvironmentSpec, Symbols, Words

TASKS = ("recall-2", "rooms-chain-2", "key-rooms-1")
STREAMS = 8
CHOICE = Discrete(3)


def spec_of(name: str, observation: Any, action: Any = CHOICE, **more: Any) -> EnvironmentSpec:
    return EnvironmentSpec(name, observation, action, more.pop("horizon", 10), **more)


def numbers(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(scope="module")
def three() -> MultiTask:
    return multi_task(",".join(TASKS), {name: make(name) for name in TASKS})


# --- names -----------------------------------------------------------------------------------------------------------


def test_sets_have_their_tasks() -> None:
    sizes = {"babyai-8": 8, "babyai-8-envpool": 8, "dmlab30": 30, "dmlab30-test": 30, "hard8": 8}
    assert {name: len(expand_tasks(name)) for name in SETS} == sizes
    assert expand_tasks("babyai-8")[-1] == "babyai:BabyAI-SynthS5R2-v0"
    levels = [[task.partition(":")[2] for task in expand_tasks(f"babyai-8{how}")] for how in ("", "-envpool")]
    assert levels[0] == levels[1]
    assert [task.partition(":")[0] for task in expand_tasks("babyai-8-envpool")] == ["envpool"] * 7 + [
        "babyai"
    ]
    assert expand_tasks("dmlab30")[0] == "dmlab:rooms_collect_good_objects_train"
    both = [set(expand_tasks(name)) for name in ("dmlab30", "dmlab30-test")]
    levels = ("rooms_collect_good_objects", "rooms_exploit_deferred_effects")
    for own, other, how in zip(both, reversed(both), ("_train", "_test"), strict=True):
        assert own - other == {f"dmlab:{level}{how}" for level in levels}
    assert "hard8:throw_across" in expand_tasks("hard8")


def test_lists_have_their_items_and_sets_within_them_theirs() -> None:
    assert expand_tasks("catch") == ("catch",)
    assert expand_tasks("recall-2, rooms-chain-2") == ("recall-2", "rooms-chain-2")
    assert expand_tasks("catch,hard8") == ("catch", *expand_tasks("hard8"))


def test_what_stands_behind_an_at_goes_to_every_task() -> None:
    assert expand_tasks("dmlab30@9")[5] == "dmlab:language_select_described_object@9"
    assert expand_tasks("hard8@localhost:10001")[0].endswith("@localhost:10001")
    assert expand_tasks("vizdoom:VizdoomBasic-v1@2") == ("vizdoom:VizdoomBasic-v1@2",)
    with pytest.raises(ValueError, match="'babyai-8@3' has the suffix '@3', expected 'babyai-8' alone"):
        expand_tasks("babyai-8@3")


@pytest.mark.parametrize("name", ["catch,", ",catch", "catch,,recall-2", " , "])
def test_empty_items_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name: .* has an empty item"):
        expand_tasks(name)


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_at_all_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"name: expected the name of an environment, such as 'catch'; got none"
    ):
        expand_tasks(name)


def test_repeated_names_are_refused() -> None:
    with pytest.raises(ValueError, match="'catch,recall-2,catch' has catch more than once"):
        expand_tasks("catch,recall-2,catch")
    with pytest.raises(ValueError, match="has hard8:throw_across more than once"):
        expand_tasks("hard8,hard8:throw_across")


# --- what is seen ----------------------------------------------------------------------------------------------------


def test_parts_are_as_large_as_the_largest() -> None:
    one = spec_of(
        "one",
        {
            "image": numbers(4, 6, 1, dtype=np.uint8),
            "tiles": Symbols((3, 3, 2), (5, 4)),
            "told": Words(8, 100),
            "reward": Amount(),
        },
        horizon=10,
        success_return=1.0,
    )
    two = spec_of(
        "two",
        {
            "image": numbers(5, 2, 3, dtype=np.uint8),
            "tiles": Symbols((2, 4, 2), (2, 9), np.int32),
            "told": Words(5, 1000),
            "speed": numbers(2),
        },
        horizon=30,
        success_return=1.0,
    )
    joined = merge_specs("both", [one, two])
    assert joined == EnvironmentSpec(
        "both",
        {
            "image": numbers(5, 6, 3, dtype=np.uint8),
            "tiles": Symbols((3, 4, 2), (5, 9), np.dtype(np.int32)),
            "told": Words(8, 1000),
            "reward": Amount(),
            "speed": numbers(2),
        },
        Discrete(3),
        30,
        1.0,
    )
    assert merge_specs("x", [one, two._replace(success_return=2.0)]).success_return is None
    assert merge_specs("x", [one._replace(success_return=None), two]).success_return is None


def test_parts_go_by_their_paths() -> None:
    assert observation_parts(spec_of("a", numbers(3))) == {"observation": numbers(3)}
    nested = spec_of("b", {"eye": (numbers(3), {"left": numbers(2)}), "ear": numbers()})
    assert list(observation_parts(nested)) == ["ear", "eye/0", "eye/1/left"]


@pytest.mark.parametrize("arrays", [np, jnp])
def test_padding_is_exact(arrays: Any) -> None:
    """Pictures at the top left, missing parts 0, types those of the whole."""
    parts = {
        "image": numbers(3, 3, 1, dtype=np.uint8),
        "speed": numbers(2),
        "tiles": Symbols((3,), (4,), np.int32),
    }
    own = spec_of("a", {"image": numbers(2, 2, 1, dtype=np.uint8), "tiles": Symbols((2,), (4,))})
    seen = make_padding(own, parts).pad(
        {
            "image": arrays.arange(1, 5, dtype=np.uint8).reshape(2, 2, 1),
            "tiles": arrays.asarray([3, 2], np.uint8),
        },
        arrays,
    )
    assert isinstance(seen["image"], np.ndarray if arrays is np else jax.Array)
    np.testing.assert_array_equal(seen["image"][:, :, 0], [[1, 2, 0], [3, 4, 0], [0, 0, 0]])
    np.testing.assert_array_equal(seen["speed"], [0, 0])
    np.testing.assert_array_equal(seen["tiles"], [3, 2, 0])
    assert {name: part.dtype for name, part in seen.items()} == {
        "image": np.uint8,
        "speed": np.float32,
        "tiles": np.int32,
    }


def test_floats_of_two_widths_take_the_wider() -> None:
    joined = merge_specs("x", [spec_of("a", numbers(2, dtype=np.float16)), spec_of("b", numbers(2))])
    assert joined.observation == {"observation": numbers(2)}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            numbers(4, 4, 3, dtype=np.uint8),
            numbers(7),
            "an array of uint8 .4, 4, 3. in a and an array of float32 .7,.",
        ),
        (
            numbers(4, dtype=np.uint8),
            numbers(4),
            "an array of uint8 .4,. in a and an array of float32 .4,. in b",
        ),
        (Symbols((2,), (3,)), numbers(2), "Symbols of uint8 .2,. in a and an array of float32 .2,. in b"),
        (Amount(), numbers(), "Amount of float32 .. in a and an array"),
    ],
)
def test_parts_of_different_kinds_are_refused(one: Any, other: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"env: the part 'eye' is {said}"):
        merge_specs("x", [spec_of("a", {"eye": one}), spec_of("b", {"eye": other})])


def test_different_actions_are_refused_and_named() -> None:
    with pytest.raises(ValueError, match=r"Discrete\(n=3\) in a, c; Box\(size=2, low=-1.0, high=1.0\) in b"):
        merge_specs(
            "x", [spec_of("a", numbers(1)), spec_of("b", numbers(1), Box(2)), spec_of("c", numbers(1))]
        )


# --- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "tasks"), [(3, 3), (8, 3), (30, 7), (256, 30)])
def test_streams_are_shared_out_evenly(n: int, tasks: int) -> None:
    specs = [spec_of(str(k), numbers(1)) for k in range(tasks)]
    of = assign_tasks(specs, n).task
    counts = np.bincount(of, minlength=tasks)
    assert counts.sum() == n
    assert counts.max() - counts.min() <= 1
    for half in np.split(of, [n // 2]):  # groups of streams, halves of double sampling
        assert len(set(half.tolist())) == min(tasks, len(half))


def test_too_few_streams_are_refused(three: MultiTask) -> None:
    with pytest.raises(ValueError, match="streams: expected at least one for each of the 3 tasks, got 2"):
        TaskStreams(three, 2)


def test_every_stream_is_as_its_task_alone(three: MultiTask) -> None:
    """Bit by bit with the same keys: steps, resets, time limits; what is padded is 0."""
    streams = TaskStreams(three, STREAMS)
    alone = [Batched(AutoReset(make(name)), count) for name, count in zip(TASKS, (3, 3, 2), strict=True)]
    keys = jax.random.split(jax.random.key(0), 121)
    actions = jax.random.randint(jax.random.key(1), (120, STREAMS), 0, 4)

    def together(state: Any, now: Any) -> Any:
        state, step = streams.step(state, *now)
        return state, step

    state, first = jax.jit(streams.reset)(keys[0])
    _, steps = jax.lax.scan(together, state, (actions, keys[1:]))
    for k, single in enumerate(alone):
        state, begun = jax.jit(single.reset)(jax.random.split(keys[0], 3)[k])
        own_keys = jax.vmap(lambda key, k=k: jax.random.split(key, 3)[k])(keys[1:])
        _, expected = jax.lax.scan(
            lambda state, now, single=single: single.step(state, *now), state, (actions[:, k::3], own_keys)
        )
        for ours, theirs in ((first, begun), (steps, expected)):
            mine = jax.tree.map(
                lambda leaf, k=k, axis=ours.first.ndim - 1: leaf.swapaxes(0, axis)[k::3], ours
            )
            mine = jax.tree.map(lambda leaf, axis=ours.first.ndim - 1: leaf.swapaxes(0, axis), mine)
            seen, width = mine.observation["observation"], theirs.observation.shape[-1]
            np.testing.assert_array_equal(seen[..., :width], theirs.observation)
            assert not np.any(seen[..., width:])
            for name in ("reward", "discount", "truncated", "first"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
        assert np.any(expected.first)
        assert np.any(expected.truncated)


def test_episodes_are_counted_by_the_rules_of_their_task() -> None:
    """Every recall episode is 3 steps long; success of each by its own threshold."""
    easy, hard = make("recall-1"), make("recall-1")
    hard.spec = hard.spec._replace(success_return=2.0)  # type: ignore[misc]
    undefined = make("recall-2")
    undefined.spec = undefined.spec._replace(success_return=None)  # type: ignore[misc]
    streams = make_task_streams(multi_task("x", {"easy": easy, "hard": hard, "undefined": undefined}), 6)
    state, _ = streams.reset(jax.random.key(0), stagger=False)

    def step(state: Any, key: Any) -> Any:
        return streams.step(state, jnp.zeros(6, jnp.int32), key)[0], None

    state, _ = jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 60))
    sums = streams.summary(state)
    np.testing.assert_array_equal(sums.lengths / sums.episodes, [3, 3, 4] * 2)
    np.testing.assert_array_equal(sums.episodes, [15, 15, 12] * 2)
    assert np.all(sums.returns[:3] > 0)
    assert np.all(sums.successes[0::3] == sums.returns[0::3])
    assert not np.any(sums.successes[1::3])
    assert not np.any(sums.successes[2::3])
    cleared = streams.cleared(state)
    assert not np.any(jax.tree.leaves(streams.summary(cleared)))
    assert streams.assigned.names == ("easy", "hard", "undefined")


def test_seeds_are_apart_and_states_keep_their_types(three: MultiTask) -> None:
    streams = make_task_streams(three, STREAMS)
    keys = jax.random.split(jax.random.key(3), 2)
    state, _ = jax.vmap(streams.reset)(keys)
    actions = jnp.ones((2, STREAMS), jnp.int32)
    after, step = jax.jit(jax.vmap(streams.step))(state, actions, keys)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(lambda leaf: leaf.dtype, state)
    assert step.observation["observation"].shape == (2, STREAMS, 17)
    with pytest.raises(TypeError, match="not numbered"):
        streams.state_ids(after)


def test_the_previous_reward_is_seen_beside_all_parts() -> None:
    both = multi_task("x", {"a": make("recall-1"), "b": make("rooms-chain-1")}, previous_reward=True)
    assert both.spec.observation["reward"] == Amount()
    assert list(both.spec.observation["observation"]) == ["observation"]
    _, step = TaskStreams(both, 2).reset(jax.random.key(0))
    assert jax.tree.structure(step.observation) == jax.tree.structure(both.spec.observation)
