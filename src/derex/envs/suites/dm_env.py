"""dm_env adapter: `dm_env:package.module:function` wraps the environment that the function returns.

If the function has an argument `seed`, it is called again for every episode, so that episodes are reproducible;
otherwise it is called once and its randomness is not controlled. A discount of 0 at the last step is a termination,
any other a truncation; discounts between 0 and 1 before the last step are ignored.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from derex._text import hint
from derex.envs.interface import HostStep
from derex.envs.suites import common as words
from derex.envs.suites import spaces as actions
from derex.envs.suites.common import Unreadable, beside_user, load
from derex.envs.suites.spaces import GREY_RANK, ActionWriter, ObservationReader
from derex.types import Discrete, EnvironmentSpec, MultiDiscrete, Symbols, Words

HORIZON = 10_000
"""default time limit, since dm_env does not declare one; the environment may end episodes earlier"""


def observations(spec: Any) -> ObservationReader:
    """Returns a reader for observations of a dm_env spec; dicts stay dicts, lists and tuples become tuples."""
    if isinstance(spec, Mapping):
        parts = {name: observations(part) for name, part in spec.items()}
        return ObservationReader(
            {name: part.spec for name, part in parts.items()},
            lambda seen: {name: part.read(seen[name]) for name, part in parts.items()},
        )
    if isinstance(spec, list | tuple):
        several = [observations(part) for part in spec]
        return ObservationReader(
            tuple(part.spec for part in several),
            lambda seen: tuple(part.read(each) for part, each in zip(several, seen, strict=True)),
        )
    return _part(spec)


def acts(spec: Any) -> ActionWriter:
    """Returns a writer for actions of a dm_env spec: discrete, multi-discrete or continuous."""
    from dm_env import specs

    if isinstance(spec, specs.DiscreteArray):
        n = int(spec.num_values)
        return ActionWriter(Discrete(n), lambda action: np.asarray(actions.choice(action, n), spec.dtype))
    if isinstance(spec, specs.Array) and np.dtype(spec.dtype).kind == "f":
        bounds = actions.make_range(*_bounds(spec))
        return ActionWriter(
            bounds.spec,
            lambda action: bounds.scaled(action).reshape(spec.shape).astype(spec.dtype),
        )
    if isinstance(spec, specs.BoundedArray) and np.dtype(spec.dtype).kind in "iu":
        low, high = (bound.astype(np.int64) for bound in _bounds(spec))
        sizes = tuple(int(size) for size in (high - low + 1).ravel())
        return ActionWriter(
            MultiDiscrete(sizes),
            lambda action: (actions.choices(action, sizes).reshape(spec.shape) + low).astype(spec.dtype),
        )
    raise Unreadable(
        f"action_spec: {spec!r} cannot be acted in; expected a DiscreteArray, a BoundedArray of integers, or an Array "
        "of floats. Turn it into one with a wrapper."
    )


def _part(spec: Any) -> ObservationReader:
    from dm_env import specs

    if isinstance(spec, specs.StringArray):
        return _text()
    if isinstance(spec, specs.DiscreteArray):
        symbols = Symbols((1,), (int(spec.num_values),), np.int32)
        return ObservationReader(symbols, lambda seen: np.asarray(seen, np.int32).reshape(1))
    if isinstance(spec, specs.Array) and np.dtype(spec.dtype).kind in "fiub":
        return _numbers(spec)
    raise Unreadable(
        f"observation_spec: {spec!r} cannot be read; expected an Array of numbers, a DiscreteArray, a StringArray, or "
        "a dict or tuple of them."
    )


def _numbers(spec: Any) -> ObservationReader:
    """Keeps uint8, adds a channel axis to greyscale images, and casts all other numbers to float32."""
    kept = np.dtype(np.uint8 if np.dtype(spec.dtype) == np.uint8 else np.float32)
    shape = tuple(int(side) for side in spec.shape)
    ours = (*shape, 1) if kept == np.uint8 and len(shape) == GREY_RANK else shape

    def read(seen: Any) -> np.ndarray:
        array = np.asarray(seen)
        if array.size != int(np.prod(ours)) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"observation: {spec.name!r} came as {array.dtype} of shape {array.shape}, its spec says {spec.dtype} "
                f"of shape {shape}."
            )
        return array.astype(kept).reshape(ours)

    return ObservationReader(jax.ShapeDtypeStruct(ours, kept), read)


def _text() -> ObservationReader:
    kind = Words()

    def read(seen: Any) -> np.ndarray:
        parts = [
            part.decode() if isinstance(part, bytes) else str(part)
            for part in np.asarray(seen).ravel().tolist()
        ]
        return words.encode(" ".join(parts), kind)

    return ObservationReader(kind, read)


def _bounds(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower and upper bound of each entry, ∓∞ where unbounded."""
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    return np.broadcast_to(np.asarray(low), spec.shape), np.broadcast_to(np.asarray(high), spec.shape)


class DmEnv:
    """One dm_env environment."""

    def __init__(self, build: Callable[..., Any], name: str, *, horizon: int = HORIZON):
        """Builds the environment once to read its specs.

        Args:
            build: returns an environment; called again for each episode if it has an argument `seed`.
            name: name for `spec`.
            horizon: number of steps after which episodes are truncated.
        """
        self._build = build
        self._seeded = "seed" in inspect.signature(build).parameters
        self._env: Any = build(seed=0) if self._seeded else build()
        self._check(name)
        self._seen = observations(self._env.observation_spec())
        self._acted = acts(self._env.action_spec())
        self.spec = EnvironmentSpec(name, self._seen.spec, self._acted.spec, horizon)
        self._open = True

    def begin(self, seed: int) -> Any:
        """Starts a new episode; rebuilds the environment with `seed` if its function takes one."""
        if self._seeded:
            self._env.close()
            self._env = self._build(seed=seed)
        return self._seen.read(self._env.reset().observation)

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Takes one step."""
        step = self._env.step(self._acted.write(action))
        reward, (terminated, truncated) = reward_of(step), ends_of(step)
        return HostStep(self._seen.read(step.observation), reward, terminated, truncated)

    def close(self) -> None:
        """Closes the environment; later calls do nothing."""
        if self._open:
            self._open = False
            self._env.close()

    def _check(self, name: str) -> None:
        import dm_env

        if not isinstance(self._env, dm_env.Environment):
            raise Unreadable(
                f"name: {name!r} returned a {type(self._env).__name__}, expected a dm_env.Environment. Name a function "
                "that returns one."
            )


def make(name: str) -> DmEnv:
    """Makes the environment returned by `module:function`."""
    load("dm_env", "dm-env")
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"name: expected 'dm_env:package.module:function', got 'dm_env:{name}'.")
    beside_user()
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"name: 'dm_env:{name}' needs the module {error.name!r}, which cannot be found."
        ) from error
    build = getattr(holder, function, None)
    if not callable(build):
        callables = [
            each for each in vars(holder) if callable(getattr(holder, each)) and not each.startswith("_")
        ]
        near = hint(function, callables)
        raise ValueError(f"name: the module {module!r} has no function {function!r}.{near}")
    return DmEnv(build, f"dm_env:{name}")


def names() -> list[str]:
    """Returns an empty list: any importable function can be named."""
    return []


def reward_of(step: Any) -> float:
    """Returns a step's reward; 0 where dm_env has None, at first steps."""
    return 0.0 if step.reward is None else float(step.reward)


def ends_of(step: Any) -> tuple[bool, bool]:
    """Returns (terminated, truncated) of a time step."""
    terminated = bool(step.last()) and (step.discount is None or float(step.discount) == 0.0)
    return terminated, bool(step.last()) and not terminated
