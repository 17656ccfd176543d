"""A JAX environment of one's own: `jax:package.module:Class`; the class, or a function, is called without arguments.

Its module is looked for beside the user too, as `python file.py` would find it.
"""

import importlib

from derex.envs.interface import Environment
from derex.envs.suites.common import beside_user


def make(name: str) -> Environment:
    """What the class or function of that name gives."""
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
    if not isinstance(env, Environment):
        raise ValueError(
            f"name: 'jax:{name}' gave a {type(env).__name__}, expected an environment with spec, reset(key) and "
            f"step(state, action, key); see docs/environments.md."
        )
    return env


def names() -> list[str]:
    """None: any class of any module will do."""
    return []
