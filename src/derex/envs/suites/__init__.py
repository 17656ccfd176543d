"""Adapters for environments of other packages: one module for each, imported on first use.

The package itself is the suite of user-defined JAX environments, `jax:package.module:Class`; the class or function is
called without arguments, and its module is also searched for in the current directory.
"""

from derex.envs.checks import check_environment
from derex.envs.interface import Environment
from derex.envs.suites.common import load_user_function


def make(name: str) -> Environment:
    """Makes and checks the environment that the named class or function returns."""
    env = load_user_function("jax", name)()
    try:
        check_environment(env)
    except ValueError as error:
        raise ValueError(f"env: 'jax:{name}' cannot be used. {error}") from error
    return env


def names() -> list[str]:
    """Returns an empty list: any importable class can be named."""
    return []
