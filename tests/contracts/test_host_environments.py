"""What every host environment promises: one suite for all adapters.

DeepMind Lab is a stand-in, DM-Hard-8 a server of ours, dm_env a corridor; all others are the real packages.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from derex.envs.interface import DrawnHostEnvironment, HostEnvironment, HostStep
from derex.types import Box, Discrete, MultiDiscrete, Symbols, Words

STANDINS = Path(__file__).parents[1] / "envs" / "standins"
NAMES = [
    "gymnasium:CartPole-v1",
    "gymnasium:Pendulum-v1",
    "gymnasium:FrozenLake-v1",
    "minigrid:MiniGrid-LavaGapS5-v0",
    "babyai:BabyAI-GoToObj-v0",
    "vizdoom:VizdoomBasic-v1",
    "vizdoom:VizdoomMyWayHome-v0@8",
    "dm_env:dm_corridor:corridor",
    "dmlab:rooms_watermaze",
    "dmlab:language_select_described_object@9",
    "hard8:throw_across",
    pytest.param("atari:ALE/Breakout-v5", marks=pytest.mark.slow),
    pytest.param("envpool:BabyAI-GoToObj-v0", marks=pytest.mark.slow),
    pytest.param("envpool:Pong-v5", marks=pytest.mark.slow),
]
DRAWN = ("gymnasium", "minigrid", "babyai", "vizdoom", "dmlab", "hard8", "atari")
STEPS = 60


@pytest.fixture(params=NAMES, scope="module")
def name(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name, with what it needs around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STANDINS)
        patch.setenv("DEREX_DMLAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        if not request.param.startswith("hard8"):
            yield request.param
            return
        server = importlib.import_module("hard8_server").Server()
        patch.setenv("DEREX_HARD8_ADDRESS", server.address)
        patch.setenv("DEREX_HARD8_FRESH_WORLDS", "1")
        yield request.param
        server.stop()


def made(name: str) -> Any:
    suite, _, rest = name.partition(":")
    module = "minigrid" if suite == "babyai" else suite
    return importlib.import_module(f"derex.envs.suites.{module}").make(rest)


def random_action(spec: Any, random: np.random.Generator) -> np.ndarray:
    if isinstance(spec, Discrete):
        return np.asarray(random.integers(spec.n), np.int32)
    if isinstance(spec, MultiDiscrete):
        return random.integers(spec.sizes).astype(np.int32)
    return random.uniform(spec.low, spec.high, spec.size).astype(np.float32)


def played(env: Any, seed: int) -> list[Any]:
    """The first observation, then steps with random actions to the end of the episode or for so many."""
    random = np.random.default_rng(seed)
    found: list[Any] = [env.begin(seed)]
    for _ in range(STEPS):
        found.append(env.act(random_action(env.spec.action, random)))
        if found[-1].terminated or found[-1].truncated:
            break
    return found


@pytest.fixture(scope="module")
def record(name: str) -> Iterator[SimpleNamespace]:
    env = made(name)
    first, other, again = (played(env, seed) for seed in (11, 12, 11))
    yield SimpleNamespace(env=env, first=first, other=other, again=again)
    env.close()
    env.close()


def leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        len(leaves(a)) == len(leaves(b)) and all(map(np.array_equal, leaves(a), leaves(b)))
        for a, b in zip(one, other, strict=True)
    )


def test_it_is_a_host_environment(name: str, record: SimpleNamespace) -> None:
    env = record.env
    assert isinstance(env, HostEnvironment)
    assert isinstance(env, DrawnHostEnvironment) == (name.partition(":")[0] in DRAWN)
    assert env.spec.name == name
    assert env.spec.horizon >= 1
    assert isinstance(env.spec.action, Discrete | MultiDiscrete | Box)


def test_observations_are_as_the_specification_says(record: SimpleNamespace) -> None:
    spec = record.env.spec.observation
    for each in (*record.first, *record.other):
        seen = each.observation if isinstance(each, HostStep) else each
        assert jax.tree.structure(seen) == jax.tree.structure(spec)
        for leaf, part in zip(leaves(seen), leaves(spec), strict=True):
            assert isinstance(leaf, np.ndarray)
            assert leaf.shape == part.shape
            assert leaf.dtype == part.dtype
            assert np.all(np.isfinite(leaf))
            if isinstance(part, Symbols):
                assert np.all(leaf < np.asarray(part.sizes))
                assert np.all(leaf >= 0)
            if isinstance(part, Words):
                assert np.all((leaf >= 0) & (leaf < part.buckets))
                assert leaf[0] > 0


def test_something_happens(record: SimpleNamespace) -> None:
    """Observations change, and steps do not write into those that were handed out before."""
    env = record.env
    kept = env.begin(5)
    copied = jax.tree.map(np.copy, kept)
    random, changed = np.random.default_rng(5), False
    for _ in range(20):
        step = env.act(random_action(env.spec.action, random))
        changed |= not equal([step.observation], [copied])
        assert equal([kept], [copied])
        if step.terminated or step.truncated:
            break
    assert changed


def test_steps_are_plain_numbers(record: SimpleNamespace) -> None:
    for step in record.first[1:]:
        assert type(step.reward) is float
        assert np.isfinite(step.reward)
        assert type(step.terminated) is bool
        assert type(step.truncated) is bool
        assert not (step.terminated and step.truncated)
    assert len(record.first) - 1 <= record.env.spec.horizon


def test_the_same_seed_gives_the_same_episode(record: SimpleNamespace) -> None:
    assert equal(record.first, record.again)
    assert not equal(record.first, record.other)


def test_another_one_of_that_name_is_the_same(name: str, record: SimpleNamespace) -> None:
    env = made(name)
    assert env.spec == record.env.spec
    assert equal(played(env, 11), record.first)
    env.close()


def test_it_begins_anew_in_the_middle_of_an_episode(record: SimpleNamespace) -> None:
    env = record.env
    env.begin(12)
    env.act(random_action(env.spec.action, np.random.default_rng(0)))
    assert equal(played(env, 11), record.first)


def test_wrong_actions_are_refused(record: SimpleNamespace) -> None:
    env, spec = record.env, record.env.spec.action
    env.begin(1)
    if isinstance(spec, Discrete):
        wrong = [np.asarray(spec.n), np.asarray(-1), np.asarray(0.5), np.zeros(2, int)]
    elif isinstance(spec, Box):
        wrong = [np.full(spec.size, np.nan), np.zeros(spec.size + 1), np.asarray(0.5)]
    else:
        wrong = [np.asarray(spec.sizes), np.asarray(0), np.zeros(len(spec.sizes))]
    for action in wrong:
        with pytest.raises(ValueError, match="action"):
            env.act(action)


def test_pictures(name: str, record: SimpleNamespace) -> None:
    env = record.env
    if name.partition(":")[0] not in DRAWN:
        pytest.skip("does not draw itself")
    env.begin(2)
    before = np.copy(env.picture())
    env.act(random_action(env.spec.action, np.random.default_rng(0)))
    after = env.picture()
    assert before.dtype == after.dtype == np.uint8
    assert before.shape == after.shape
    assert before.ndim == 3
    assert before.shape[-1] == 3
    assert min(before.shape[:2]) >= 60


def test_wrong_names_are_told_the_nearest(name: str) -> None:
    suite, _, rest = name.partition(":")
    wrong = rest[:5] + rest[6:]
    with pytest.raises(ValueError, match="Did you mean"):
        made(f"{suite}:{wrong}" if suite != "dm_env" else "dm_env:dm_corridor:coridor")
    with pytest.raises(ValueError, match="name: "):
        made(f"{suite}:xyzzy")
