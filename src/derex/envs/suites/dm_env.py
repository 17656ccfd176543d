"""Any environment of dm_env: `dm_env:package.module:function` calls the function and takes what it returns.

If the function has an argument `seed`, it is called again for every episode, and the same seed gives the same one;
otherwise it is called once, and its environment does with chance as it likes. A discount of 0 at a last step is an
end by the rules, any other a cut; discounts between 0 and 1 before the end are not used.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import Shaped

from derex.envs.interface import HostStep
from derex.envs.suites import dm_specs
from derex.envs.suites.support import Unreadable, beside_user, load
from derex.types import EnvironmentSpec

HORIZON = 10_000
"""dm_env says nothing of time limits; an environment's own cuts sooner"""


class DmEnv:
    """One environment."""

    def __init__(self, build: Callable[..., Any], name: str, *, horizon: int = HORIZON):
        """Builds the environment for its specification.

        Args:
            build: returns an environment; called again for each episode if it has an argument `seed`.
            name: as it stands in the specification.
            horizon: steps after which episodes are cut.
        """
        self._build = build
        self._seeded = "seed" in inspect.signature(build).parameters
        self._env: Any = build(seed=0) if self._seeded else build()
        self._check(name)
        self._seen = dm_specs.observations(self._env.observation_spec())
        self._acted = dm_specs.acts(self._env.action_spec())
        self.spec = EnvironmentSpec(name, self._seen.spec, self._acted.spec, horizon)
        self._open = True

    def begin(self, seed: int) -> Any:
        """Resets, where the function takes a seed in an environment made with this one."""
        if self._seeded:
            self._env.close()
            self._env = self._build(seed=seed)
        return self._seen.read(self._env.reset().observation)

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Steps once."""
        step = self._env.step(self._acted.write(action))
        reward, (terminated, truncated) = reward_of(step), ends_of(step)
        return HostStep(self._seen.read(step.observation), reward, terminated, truncated)

    def close(self) -> None:
        """Closes it, once."""
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
    """What the function `module:function` returns."""
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
        close = difflib.get_close_matches(function, callables, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"name: the module {module!r} has no function {function!r}.{hint}")
    return DmEnv(build, f"dm_env:{name}")


def names() -> list[str]:
    """None: any function of any module will do."""
    return []


def reward_of(step: Any) -> float:
    """A step's reward; dm_env leaves it out at first steps."""
    return 0.0 if step.reward is None else float(step.reward)


def ends_of(step: Any) -> tuple[bool, bool]:
    """Whether the episode has ended by the rules, and whether it was cut."""
    terminated = bool(step.last()) and (step.discount is None or float(step.discount) == 0.0)
    return terminated, bool(step.last()) and not terminated
