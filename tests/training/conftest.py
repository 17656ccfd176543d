"""What the training tests share."""

import os
from collections.abc import Iterator

import pytest

from derex.agents import update as learning
from derex.representations import optimised as own
from derex.training.factory import clear_shared


@pytest.fixture(scope="session")
def quick_process() -> dict[str, str]:
    """The environment variables of other processes that compile as these tests do."""
    return os.environ | {"JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="package", autouse=True)
def large_adam_epsilon() -> Iterator[None]:
    """Keeps programs that differ in the order of their sums together.

    Where a gradient is exactly 0, as it is for a bias before a standardisation, Adam with its usual ε makes steps of
    ±learning rate out of rounding errors.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "ADAM_EPSILON", 1e-3)
        patch.setattr(own, "ADAM_EPSILON", 1e-3)
        clear_shared()  # programs with the other ε
        yield
    clear_shared()
