"""Shapes and types of every annotated function of derex are checked while the tests run."""

import os
from collections.abc import Iterator

# Before it is loaded: its idle threads spin, and take the cores from those of other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from jaxtyping import install_import_hook

install_import_hook("derex", "beartype.beartype")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs() -> Iterator[None]:
    """Drop what a module compiled once it is done.

    Each compiled program holds some memory mappings for as long as it is cached. Left alone they add up over a whole
    run to more than Linux allows a process (vm.max_map_count, 65 530), and the worker dies of a segmentation fault.
    """
    yield
    import jax  # not at the top: some tests look at what importing derex loads

    jax.clear_caches()
