"""Environments by name, and what a wrong name is answered."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from derex.envs import make, names
from derex.envs.registry import is_installed


def test_names():
    assert names() == (
        "rooms-chain-N",
        "rooms-chain-N-hidden",
        "four-rooms",
        "four-rooms-pixels",
        "four-rooms-hidden",
        "key-rooms-N",
        "deep-sea-N",
        "catch",
        "cartpole",
        "recall-L",
        "pendulum",
        "point-mass",
    )


def test_the_number_counts():
    assert make("rooms-chain-4").spec.horizon == 100
    assert make("rooms-chain-12-hidden").spec.horizon == 300
    assert make("recall-7").spec.horizon == 9


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("room-chain-8", "rooms-chain-8"),
        ("rooms-chain-8-hiden", "rooms-chain-8-hidden"),
        ("deepsea-10", "deep-sea-10"),
        ("recal-5", "recall-5"),
        ("rooms-chain", "rooms-chain-N"),
        ("cart-pole", "cartpole"),
        ("fourrooms", "four-rooms"),
    ],
)
def test_a_wrong_name_is_told_the_nearest(wrong, meant):
    with pytest.raises(ValueError, match=f"no environment '{wrong}'. Did you mean '{meant}'") as error:
        make(wrong)
    assert all(name in str(error.value) for name in names())


def test_a_strange_name_is_told_the_known_ones():
    with pytest.raises(ValueError, match=r"no environment 'xyzzy'\. Known: rooms-chain-N, "):
        make("xyzzy")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rooms-chain-0", "0 in 'rooms-chain-N', expected 1 to 1000"),
        ("rooms-chain-0-hidden", "'rooms-chain-N-hidden', expected 1 to"),
        ("rooms-chain-5000", "5000 .*1 to 1000"),
        ("key-rooms-0", "1 to 11"),
        ("deep-sea-1", "2 to 200"),
        ("recall-10001", "'recall-L', expected 0 to 10000"),
    ],
)
def test_numbers_are_checked(name, says):
    with pytest.raises(ValueError, match=says):
        make(name)


@pytest.mark.parametrize("package", ["ale_py", "gymnasium"])
def test_atari_needs_both_of_its_packages(package, monkeypatch):
    """ale_py is there without gymnasium, by which its games are made."""
    for name in ("ale_py", "gymnasium"):
        module = types.ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    assert is_installed("atari")
    monkeypatch.setitem(sys.modules, package, None)
    assert not is_installed("atari")
