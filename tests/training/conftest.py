"""Compilation is most of the time of these tests: it is cut short, and done once for programs that are the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from derex.agents import update as learning
from derex.representations import optimised as own


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are kept."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def quick_process(compiled_programs: Path) -> dict[str, str]:
    """The environment of other processes that compile as these tests do."""
    options = {
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(compiled_programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return os.environ | options


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(compiled_programs: Path) -> Iterator[None]:
    """Few optimisations, and programs from the cache."""
    options = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(compiled_programs),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: jax.config.values[name] for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


@pytest.fixture(scope="module", autouse=True)
def calm_adam() -> Iterator[None]:
    """Adam makes steps of ±learning rate out of rounding errors where a gradient is exactly 0, as it is for a bias
    before a standardisation; with a larger ε, programs that differ in the order of their sums stay together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "ADAM_EPSILON", 1e-3)
        patch.setattr(own, "ADAM_EPSILON", 1e-3)
        yield
