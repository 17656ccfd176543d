"""DeepMind Lab's adapter against a stand-in that follows the published interface strictly."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from derex.envs.suites import common
from derex.envs.suites import dmlab as suite
from derex.types import Discrete, Words

STANDINS = Path(__file__).with_name("standins")


@pytest.fixture
def lab(monkeypatch, tmp_path):
    """The stand-in's module, and a cache of its own."""
    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.setenv("DEREX_DMLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEREX_DMLAB_DATASET", raising=False)
    module = importlib.import_module("deepmind_lab")
    module.opened.clear()
    return module


def test_an_episode(lab):
    env = suite.make("rooms_watermaze")
    assert env.spec.observation == {
        "image": jax.ShapeDtypeStruct((72, 96, 3), np.uint8),
        "instruction": Words(),
    }
    assert env.spec.action == Discrete(15)
    (level,) = lab.opened
    assert level.level == "contributed/dmlab30/rooms_watermaze"
    assert level.config == {"width": "96", "height": "72"}
    seen = env.begin(5)
    np.testing.assert_array_equal(seen["instruction"], common.encode("go to place 5", Words()))
    rewards, step = [], None
    while step is None or not step.terminated:
        before = seen if step is None else step.observation
        step = env.act(np.asarray(0))
        rewards.append(step.reward)
    assert len(rewards) == 12  # 45 frames, four at a time
    assert sum(rewards) == 15.0
    assert not step.truncated
    np.testing.assert_array_equal(step.observation["image"], before["image"])  # nothing is shown at the end
    assert [entry for entry in level.log if entry[0] == "step"] == [("step", (0, 0, 0, 1, 0, 0, 0), 4)] * 12
    env.close()
    env.close()


def test_actions_are_the_published_ones(lab):
    nine = [
        (0, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, -1, 0, 0, 0),
        (0, 0, -1, 0, 0, 0, 0),
        (0, 0, 1, 0, 0, 0, 0),
        (-20, 0, 0, 0, 0, 0, 0),
        (20, 0, 0, 0, 0, 0, 0),
        (-20, 0, 0, 1, 0, 0, 0),
        (20, 0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 1, 0, 0),
    ]
    fifteen = [
        *nine[:4],
        *((look, 0, 0, 0, 0, 0, 0) for look in (-10, 10, -60, 60)),
        (0, 10, 0, 0, 0, 0, 0),
        (0, -10, 0, 0, 0, 0, 0),
        *((look, 0, 0, 1, 0, 0, 0) for look in (-10, 10, -60, 60)),
        nine[-1],
    ]
    for name, expected in (("rooms_watermaze@9", nine), ("rooms_watermaze@15", fifteen)):
        env = suite.make(name)
        assert env.spec.action == Discrete(len(expected))
        env.begin(19)
        for number in range(9):
            env.act(np.asarray(number))
        env.begin(19)
        for number in range(9, len(expected)):
            env.act(np.asarray(number))
        sent = [entry[1] for entry in lab.opened[-1].log if entry[0] == "step"]
        assert sent == expected


def test_seeds_are_within_bounds(lab):
    env = suite.make("rooms_watermaze")
    for seed in (0, 2**31 - 2, 2**31 - 1, 2**40 + 3):
        env.begin(seed)
    assert [entry[1] for entry in lab.opened[0].log if entry[0] == "reset"] == [
        0,
        2**31 - 2,
        0,
        (2**40 + 3) % (2**31 - 1),
    ]


def test_train_and_test_levels(lab, monkeypatch):
    for name, level in (
        ("rooms_collect_good_objects", "rooms_collect_good_objects_train"),
        ("rooms_exploit_deferred_effects_train", "rooms_exploit_deferred_effects_train"),
        ("rooms_collect_good_objects_test", "rooms_collect_good_objects_test"),
    ):
        suite.make(name).begin(0)
        assert lab.opened[-1].level == f"contributed/dmlab30/{level}"
        assert lab.opened[-1].config.get("allowHoldOutLevels") == (
            "true" if level.endswith("_test") else None
        )
    monkeypatch.setenv("DEREX_DMLAB_DATASET", "pictures")
    suite.make("psychlab_visual_search")
    assert lab.opened[-1].config["datasetPath"] == "pictures"
    suite.make("rooms_watermaze")
    assert "datasetPath" not in lab.opened[-1].config


def test_every_level_can_be_made(lab):
    assert len(suite.names()) == 32
    for name in suite.names():
        suite.make(name).begin(1)
    assert sorted(each.level.rpartition("/")[2] for each in lab.opened) == sorted(lab.LEVELS)


def test_levels_are_compiled_once(lab, tmp_path):
    for name in ("rooms_watermaze", "rooms_watermaze@9", "rooms_keys_doors_puzzle"):
        suite.make(name).begin(0)
    assert [("compile",) in level.log for level in lab.opened] == [True, False, True]
    assert len(list((tmp_path / "cache").iterdir())) == 2  # and nothing half-written is left


def test_the_cache_leaves_nothing_half_written(tmp_path):
    cache = suite.LevelCache(tmp_path)
    with pytest.warns(RuntimeWarning, match=r"are not kept in .*: No such file"):
        cache.write("key", str(tmp_path / "missing.pk3"))
    assert list(tmp_path.iterdir()) == []
    assert cache.fetch("key", str(tmp_path / "out.pk3")) is False


def test_levels_that_cannot_be_kept_are_compiled_anew(lab, tmp_path, monkeypatch):
    """The folder's place is taken by a file: neither reading nor writing works, and episodes begin all the same."""
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("DEREX_DMLAB_CACHE", str(tmp_path / "taken" / "cache"))
    env = suite.make("rooms_watermaze")
    with pytest.warns(RuntimeWarning, match="DEREX_DMLAB_CACHE names another folder"):
        env.begin(0)
    with pytest.warns(RuntimeWarning):
        env.begin(1)
    assert lab.opened[0].log.count(("compile",)) == 2


def test_a_lab_with_other_actions_is_refused_and_closed(lab, monkeypatch):
    """Ours would turn where it should walk. One that does not list them is believed."""
    monkeypatch.setattr(lab, "ACTION_SPEC", [*lab.ACTION_SPEC[1::-1], *lab.ACTION_SPEC[2:]])
    with pytest.raises(ValueError, match=r"is LOOK_DOWN_UP.*; expected LOOK_LEFT_RIGHT.*in this order"):
        suite.make("rooms_watermaze")
    with pytest.raises(RuntimeError, match="closed"):
        lab.opened[0].is_running()
    monkeypatch.delattr(lab.Lab, "action_spec")
    suite.make("rooms_watermaze").close()


def test_the_stand_in_is_strict(lab):
    """What it would let pass, the adapter's tests would not find."""
    config = {"width": "96", "height": "72"}
    level = "contributed/dmlab30/rooms_watermaze"
    with pytest.raises(TypeError, match="must be str"):
        lab.Lab(level, ["INSTR"], config={"width": 96, "height": "72"})
    with pytest.raises(RuntimeError, match="Invalid level"):
        lab.Lab("rooms_watermaze", ["INSTR"], config=config)
    with pytest.raises(RuntimeError, match="hold-out"):
        lab.Lab("contributed/dmlab30/rooms_collect_good_objects_test", ["INSTR"], config=config)
    made = lab.Lab(level, ["RGB_INTERLEAVED", "INSTR"], config=config)
    with pytest.raises(RuntimeError, match="wrong status"):
        made.observations()
    made.reset(seed=1)
    for wrong in ([0] * 7, np.zeros(7, np.int64), np.zeros(6, np.intc), np.full(7, 2, np.intc)):
        with pytest.raises(ValueError, match="action"):
            made.step(wrong)
    made.step(np.zeros(7, np.intc), num_steps=60)
    assert not made.is_running()
    with pytest.raises(RuntimeError, match="wrong status"):
        made.observations()
    with pytest.raises(RuntimeError, match="wrong status"):
        made.step(np.zeros(7, np.intc))
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.is_running()


def test_it_cannot_be_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(ImportError, match="build it from its source"):
        suite.make("rooms_watermaze")


def test_wrong_names(lab):
    with pytest.raises(ValueError, match="Did you mean 'dmlab:rooms_watermaze'"):
        suite.make("room_watermaze")
    with pytest.raises(ValueError, match="has '7' after the @; expected one of 9, 15"):
        suite.make("rooms_watermaze@7")


def test_scores():
    """By hand: the ends of the scale and one in between."""
    assert len(suite.LEVELS) == len(suite.training_levels()) == len(suite.held_out_levels()) == 30
    for level, scores in suite.LEVELS.items():
        assert suite.human_normalised(level, scores.random) == 0.0
        assert suite.human_normalised(level, scores.human) == pytest.approx(100.0)
        assert scores.human > scores.random
    assert suite.human_normalised("dmlab:rooms_watermaze@9", 29.0325) == pytest.approx(50.0)
    assert suite.human_normalised("rooms_collect_good_objects_test", 10.0) == pytest.approx(100.0)
    with pytest.raises(ValueError, match="none of DMLab-30"):
        suite.human_normalised("rooms_of_doom", 1.0)
