"""Checks shapes and types of every annotated derex function; keeps compilation, most of the time, short."""

import os
from collections.abc import Iterator
from pathlib import Path

# OpenBLAS reads this when it is loaded. Its idle threads spin and take the cores from other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# One cache of compiled programs for all workers, all runs and all child processes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Programs of tests run briefly: optimising them takes longer than it saves. `optimised_compilation` is the exception.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import pytest
from jaxtyping import install_import_hook

install_import_hook("derex", "beartype.beartype")

MAPS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Linux allows a process 65 530 memory mappings (vm.max_map_count)."""


@pytest.fixture(scope="module", autouse=True)
def limit_memory_mappings() -> Iterator[None]:
    """Clears JAX's caches before the process runs out of memory mappings.

    Each compiled program holds mappings for as long as it is cached. Without this a worker dies of a
    segmentation fault.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        import jax  # late: some tests check what importing derex loads

        jax.clear_caches()


@pytest.fixture(scope="module")
def optimised_compilation() -> Iterator[None]:
    """For modules whose programs run long: `pytestmark = pytest.mark.usefixtures("optimised_compilation")`."""
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
