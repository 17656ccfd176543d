"""Asking for the same bits: a flag, set in time or refused."""

import os

import jax
import pytest
from jax._src import xla_bridge

from derex.training.preflight import DETERMINISM_FLAG, require_determinism


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    return monkeypatch


def test_the_flag_is_added_before_devices_are_looked_for(flags: pytest.MonkeyPatch) -> None:
    flags.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    require_determinism()
    require_determinism()
    assert os.environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false {DETERMINISM_FLAG}"


def test_on_a_cpu_it_is_never_too_late(flags: pytest.MonkeyPatch) -> None:
    jax.devices()
    require_determinism()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"


def test_on_a_gpu_it_can_be_too_late(flags: pytest.MonkeyPatch) -> None:
    flags.setattr(xla_bridge, "backends_are_initialized", lambda: True)
    flags.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match=f"set XLA_FLAGS={DETERMINISM_FLAG} before Python starts"):
        require_determinism()
    flags.setenv("XLA_FLAGS", DETERMINISM_FLAG)
    require_determinism()
