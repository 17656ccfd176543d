"""What the training tests share."""

import os
from collections.abc import Iterator

import pytest

from derex.agents import update as learning
from derex.representations import optimised as own


@pytest.fixture(scope="session")
def quick_process() -> dict[str, str]:
    """The environment variables of other processes that compile as these tests do."""
    return os.environ | {"JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module", autouse=True)
def calm_adam() -> Iterator[None]:
    """Adam makes steps of ±learning rate out of rounding errors where a gradient is exactly 0, as it is for a bias
    before a standardisation; with a larger ε, programs that differ in the order of their sums stay together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "ADAM_EPSILON", 1e-3)
        patch.setattr(own, "ADAM_EPSILON", 1e-3)
        yield
