"""User-defined JAX environments: `jax:package.module:Class`; the class or function is called without arguments.

The module is also searched for in the current directory.
"""

import importlib

from derex.envs.checks import check_environment
from derex.envs.interface import Environment
from derex.envs.suites.common import beside_user


def make(name: str) -> Environment:
    """Makes and checks the environment that the named class or function returns."""
    module, _, place = name.partition(":")
    if not module or not place:
        raise ValueError(f"name: expected 'jax:package.module:Class', got 'jax:{name}'.")
    beside_user()
    try:
        build = getattr(importlib.import_module(module), place)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"name: 'jax:{name}' could not be imported as package.module:Class: {error}."
        ) from error
    env = build()
    try:
        check_environment(env)
    except ValueError as error:
        raise ValueError(f"env: 'jax:{name}' cannot be used. {error}") from error
    return env


def names() -> list[str]:
    """Returns an empty list: any importable class can be named."""
    return []
