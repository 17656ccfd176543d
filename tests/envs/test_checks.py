"""A user environment that breaks the interface is refused with the class, the method and the fix."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make
from derex.envs.checks import check_environment, check_host_environment
from derex.envs.interface import HostStep
from derex.envs.registry import builtin_environments
from derex.types import Box, Discrete, EnvironmentSpec, MultiDiscrete

VECTOR = jax.ShapeDtypeStruct((3,), jnp.float32)
SPEC = EnvironmentSpec("walk", {"place": VECTOR}, Discrete(2), 10)
NOT_A_BOOL: Any = 0


def replaced(**fields: Any) -> EnvironmentSpec:
    return SPEC._replace(**fields)


def seen(cell: Any) -> dict[str, Any]:
    return {"place": jax.nn.one_hot(cell, 3)}


class Walk:
    """Three cells in a row."""

    spec = SPEC

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), seen(0)

    def step(self, cell: Any, action: Any, key: Any) -> Any:
        cell = jnp.clip(cell + 2 * action - 1, 0, 2)
        return cell, seen(cell), (cell == 2).astype(jnp.float32), cell == 2

    def state_id(self, cell: Any) -> Any:
        return cell


def test_an_environment_that_keeps_to_the_interface_is_described() -> None:
    lines = check_environment(Walk())
    assert all(text in lines[0] for text in ("Discrete(n=2)", "horizon 10", "float32[3]"))
    assert [line.partition("(")[0] for line in lines[1:3]] == ["reset", "step"]


@pytest.mark.parametrize("entry", builtin_environments(), ids=lambda entry: entry.example)
def test_every_builtin_environment_passes(entry: Any) -> None:
    check_environment(make(entry.example))


@pytest.mark.parametrize("action", [Discrete(2), MultiDiscrete((2, 3)), Box(2)])
def test_step_is_given_an_action_as_the_spec_says(action: Any) -> None:
    class Acts(Walk):
        spec = SPEC._replace(action=action)

        def step(self, cell: Any, action: Any, key: Any) -> Any:
            got.append((action.shape, action.dtype.name))
            return super().step(cell, action.sum().astype(jnp.int32), key)

    got: list[Any] = []
    check_environment(Acts())
    expected = {Discrete: ((), "int32"), MultiDiscrete: ((2,), "int32"), Box: ((2,), "float32")}
    assert set(got) == {expected[type(action)]}


def five(self: Any, cell: Any, action: Any, key: Any) -> Any:
    return (*Walk.step(self, cell, action, key), {})


def branching(self: Any, cell: Any, action: Any, key: Any) -> Any:
    return Walk.step(self, cell if cell > 0 else 1, action, key)


def counting(self: Any, cell: Any, action: Any, key: Any) -> Any:
    self.cell = cell + 1
    return Walk.step(self, cell, action, key)


def unseeded(self: Any, cell: Any, action: Any, key: Any) -> Any:
    return Walk.step(self, cell + np.random.default_rng().integers(10**6), action, key)


def unseeded_table(self: Any, key: Any) -> Any:
    return jnp.int32(0), {"place": jnp.asarray(np.random.default_rng().random(3), jnp.float32)}


def failing(self: Any, cell: Any, action: Any, key: Any) -> Any:
    return [][0]


def part(index: int, value: Any) -> Any:
    """A step with one of its values replaced."""

    def step(self: Any, cell: Any, action: Any, key: Any) -> Any:
        values = list(Walk.step(self, cell, action, key))
        values[index] = value(values[index])
        return tuple(values)

    return step


WRONG = {
    "five values": (
        {"step": five},
        r"Wrong\.step.*5 values.*4: state, observation, reward, terminated.*horizon",
    ),
    "three values": (
        {"reset": lambda self, key: (0, seen(0), {})},
        r"Wrong\.reset.*3 values.*2: state, observ",
    ),
    "no tuple": ({"reset": lambda self, key: seen(0)}, r"Wrong\.reset.*one dict.*2: state, observation"),
    "no step": ({"step": None}, r"Wrong: has no method step\(state, action, key\)"),
    "arguments": (
        {"step": lambda self, cell, action: None},
        r"Wrong\.step.*expected step\(state, action, key\)",
    ),
    "a branch": ({"step": branching}, r"Wrong\.step.*test_checks\.py, line \d+.*jnp\.where"),
    "an attribute": ({"step": counting}, r"Wrong\.step.*self\.cell.*state"),
    "numpy's numbers": ({"step": unseeded}, r"Wrong\.step.*pure.*jax\.random"),
    "numpy's tables": ({"reset": unseeded_table}, r"Wrong\.reset.*pure.*jax\.random"),
    "an error": ({"step": failing}, r"Wrong\.step.*IndexError.*test_checks\.py, line \d+"),
    "the state": (
        {"step": part(0, lambda x: x.astype(jnp.float32))},
        r"Wrong\.step: state is float32.*int32",
    ),
    "parts": ({"step": part(1, lambda x: x["place"])}, r"Wrong\.step: observation.*spec\.observation"),
    "a shape": (
        {"step": part(1, lambda x: {"place": x["place"][:2]})},
        r"Wrong\.step: observation\['place'\] is float32 of shape \(2,\), expected float32 of shape \(3,\)",
    ),
    "a dtype": (
        {"reset": lambda self, key: (0, {"place": jnp.zeros(3, int)})},
        r"Wrong\.reset.*int32.*astype",
    ),
    "a reward": (
        {"step": part(2, lambda x: x.astype(jnp.int32))},
        r"Wrong\.step: reward.*astype\(jnp\.float32\)",
    ),
    "rewards": ({"step": part(2, lambda x: x[None])}, r"Wrong\.step: reward.*\(1,\).*reward\[0\]"),
    "an end": (
        {"step": part(3, lambda x: x.astype(jnp.int32))},
        r"Wrong\.step: terminated.*astype\(jnp\.bool\)",
    ),
    "no spec": ({"spec": {"actions": 2}}, r"Wrong\.spec.*EnvironmentSpec"),
    "a spec of arrays": ({"spec": SPEC._replace(observation=3)}, r"spec\.observation.*ShapeDtypeStruct"),
    "an empty spec": ({"spec": SPEC._replace(observation={})}, r"spec\.observation.*ShapeDtypeStruct"),
    "an action": ({"spec": replaced(action=2)}, r"spec\.action.*Discrete\(n\)"),
    "no choice": ({"spec": SPEC._replace(action=Discrete(0))}, r"spec\.action.*at least one"),
    "a horizon": ({"spec": SPEC._replace(horizon=0)}, r"spec\.horizon.*1 or more.*got 0"),
    "a success": ({"spec": replaced(success_return="1")}, r"spec\.success_return.*number or None"),
    "numbers": ({"spec": SPEC._replace(n_states=3), "state_id": None}, r"state_id\(state\).*n_states is 3"),
    "places": ({"spec": SPEC._replace(n_states=3, positions=np.zeros((2, 2), int))}, r"positions.*\(3, 2\)"),
    "a ratio": ({"reset_ratio": 0}, r"Wrong\.reset_ratio.*1 or more"),
}


@pytest.mark.parametrize(("change", "match"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named_with_its_fix(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_environment(type("Wrong", (Walk,), change)())


class HostWalk:
    """The same in Python."""

    spec = SPEC

    def begin(self, seed: int) -> Any:
        self.cell = 0
        return {"place": np.eye(3, dtype=np.float32)[0]}

    def act(self, action: Any) -> HostStep:
        self.cell = min(self.cell + 1 - int(action), 2)
        observation = {"place": np.eye(3, dtype=np.float32)[self.cell]}
        return HostStep(observation, float(self.cell == 2), self.cell == 2, False)

    def close(self) -> None: ...


def test_a_host_environment_that_keeps_to_the_interface_is_described() -> None:
    assert "2 times, then the end" in check_host_environment(HostWalk())[-1]


WRONG_HOST = {
    "no close": ({"close": None}, r"Wrong: has no method close\(\)"),
    "a shape": (
        {"begin": lambda self, seed: {"place": np.zeros(2, np.float32)}},
        r"Wrong\.begin.*\(2,\).*\(3,\)",
    ),
    "a dtype": (
        {"begin": lambda self, seed: {"place": np.zeros(3)}},
        r"Wrong\.begin.*float64.*astype\(float32\)",
    ),
    "a tuple": ({"act": lambda self, action: (0, 1.0, False, False, {})}, r"Wrong\.act.*5 values.*HostStep"),
    "a reward": (
        {"act": lambda self, a: HostWalk.act(self, a)._replace(reward=np.nan)},
        r"Wrong\.act: reward is nan",
    ),
    "an end": (
        {"act": lambda self, a: HostStep(*HostWalk.act(self, a)[:3], NOT_A_BOOL)},
        r"Wrong\.act: truncated is 0",
    ),
    "an error": ({"act": lambda self, a: [][0]}, r"Wrong\.act.*raised IndexError"),
}


@pytest.mark.parametrize(("change", "match"), WRONG_HOST.values(), ids=WRONG_HOST.keys())
def test_what_is_wrong_with_a_host_environment_is_named(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        check_host_environment(type("Wrong", (HostWalk,), change)())


class FiveValues(Walk):
    """For `make`, by its name."""

    step = five


def test_user_environments_are_checked_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "five_values", sys.modules[__name__])
    with pytest.raises(ValueError, match=r"jax:five_values:FiveValues.*FiveValues\.step.*5 values.*4"):
        make("jax:five_values:FiveValues")
