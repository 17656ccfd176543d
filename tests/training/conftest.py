"""What the training tests share."""

import os

import pytest


@pytest.fixture(scope="session")
def quick_process() -> dict[str, str]:
    """The environment variables of other processes that compile as these tests do."""
    return os.environ | {"JAX_PLATFORMS": "cpu"}
