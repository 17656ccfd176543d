"""dm_env adapter: `dm_env:package.module:function` wraps the environment that the function returns.

If the function has an argument `seed`, it is called again for every episode, so that episodes are reproducible;
otherwise it is called once and its randomness is not controlled. A discount of 0 at the last step is a termination,
any other a truncation; discounts between 0 and 1 before the last step are ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from derex.envs.interface import HostStep
from derex.envs.suites import common
from derex.envs.suites.common import ClosingOnce, Unreadable, load, load_user_function
from derex.types import EnvironmentSpec, Words

HORIZON = 10_000
"""default time limit, since dm_env does not declare one; the environment may end episodes earlier"""


def make_reader(spec: Any) -> common.ObservationReader:
    """The reader for observations of a dm_env spec; dicts stay dicts, lists and tuples become tuples."""
    from dm_env import specs

    match spec:
        case Mapping():
            return common.read_parts({name: make_reader(part) for name, part in spec.items()})
        case list() | tuple():
            return common.read_parts([make_reader(part) for part in spec])
        case specs.StringArray():
            return common.ObservationReader(Words(), lambda seen: common.encode(_join_text(seen), Words()))
        case specs.DiscreteArray():
            return common.read_symbols(spec.num_values)
        case specs.Array() if np.dtype(spec.dtype).kind in "fiub":
            return common.read_numbers(spec.shape, spec.dtype, str(spec.name))
    raise Unreadable(
        f"observation_spec: {spec!r} cannot be read; expected an Array of numbers, a DiscreteArray, a StringArray, or "
        "a dict or tuple of them."
    )


def make_writer(spec: Any) -> common.ActionWriter:
    """The writer for actions of a dm_env spec: discrete, multi-discrete or continuous."""
    from dm_env import specs

    if isinstance(spec, specs.DiscreteArray):
        return common.write_choice(spec.num_values, spec.dtype)
    kind = np.dtype(spec.dtype).kind if isinstance(spec, specs.Array) else ""
    if kind == "f" or (kind and kind in "iu" and isinstance(spec, specs.BoundedArray)):
        bounds = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
        low, high = (np.broadcast_to(np.asarray(bound, spec.dtype), spec.shape) for bound in bounds)
        if kind == "f":
            return common.write_numbers(low, high, spec.dtype)
        low, high = low.astype(np.int64), high.astype(np.int64)
        return common.write_choices(high - low + 1, spec.dtype, low)
    raise Unreadable(
        f"action_spec: {spec!r} cannot be acted in; expected a DiscreteArray, a BoundedArray of integers, or an Array "
        "of floats. Turn it into one with a wrapper."
    )


def _join_text(seen: Any) -> str:
    texts = np.asarray(seen).ravel().tolist()
    return " ".join(text.decode() if isinstance(text, bytes) else str(text) for text in texts)


class DmEnv(ClosingOnce):
    """One dm_env environment."""

    def __init__(self, build: Callable[..., Any], name: str):
        """Builds the environment once to read its specs; again for each episode if `build` takes a `seed`."""
        import dm_env

        self._build, self._seeded = build, "seed" in inspect.signature(build).parameters
        self._env: Any = build(seed=0) if self._seeded else build()
        if not isinstance(self._env, dm_env.Environment):
            raise Unreadable(
                f"name: {name!r} returned a {type(self._env).__name__}, expected a dm_env.Environment. Name a function "
                "that returns one."
            )
        self._reader = make_reader(self._env.observation_spec())
        self._writer = make_writer(self._env.action_spec())
        self.spec = EnvironmentSpec(name, self._reader.spec, self._writer.spec, HORIZON)

    def begin(self, seed: int) -> Any:
        """Starts a new episode; rebuilds the environment with `seed` if its function takes one."""
        if self._seeded:
            self._env.close()
            self._env = self._build(seed=seed)
        return self._reader.read(self._env.reset().observation)

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        step = self._env.step(self._writer.write(action))
        over = bool(step.last())
        terminated = over and (step.discount is None or float(step.discount) == 0.0)
        reward = 0.0 if step.reward is None else float(step.reward)
        return HostStep(self._reader.read(step.observation), reward, terminated, over and not terminated)


def make(name: str) -> DmEnv:
    """Makes the environment returned by `module:function`."""
    load("dm_env", "dm-env")
    return DmEnv(load_user_function("dm_env", name), f"dm_env:{name}")


def names() -> list[str]:
    """Returns an empty list: any importable function can be named."""
    return []
