"""Checks of user environments: whether one does what `derex.envs.interface` asks, said before training starts.

JAX environments are only traced, which takes milliseconds; host environments play a few steps.
"""

from __future__ import annotations

import inspect
import numbers
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import errors

from derex.envs.interface import HostStep, action_struct
from derex.types import Amount, Box, Discrete, EnvironmentSpec, MultiDiscrete, Symbols, Words

HOST_STEPS = 20  # of a host environment, that are checked


def check_environment(env: Any) -> list[str]:
    """Checks that a JAX environment satisfies `Environment`; nothing is compiled or run.

    Returns:
        What was found, one line for each part of the interface.

    Raises:
        ValueError: names the class, the method, what it returned, what was expected and the fix.
    """
    name = type(env).__name__
    _check_methods(env, reset="key", step="state, action, key")
    spec = _check_spec(env)
    key, action = jax.eval_shape(lambda: jax.random.key(0)), action_struct(spec)
    state, observation = _trace(env, "reset", (key,), "state, observation")
    _check_observation(f"{name}.reset", observation, spec)
    step = f"{name}.step"
    after = _trace(env, "step", (state, action, key), "state, observation, reward, terminated")
    _require(
        jax.tree.structure(state) == jax.tree.structure(after[0]) and _text(state) == _text(after[0]),
        f"{step}: state is {_text(after[0])}, expected {_text(state)} as from reset. Return the same structure, "
        "shapes and dtypes from both, e.g. jnp.int32(0) instead of 0.",
    )
    _check_observation(step, after[1], spec)
    _check_scalar(step, "reward", after[2], jnp.float32)
    _check_scalar(step, "terminated", after[3], jnp.bool_)
    if spec.n_states:
        _check_methods(env, f" since spec.n_states is {spec.n_states}", state_id="state")
        _check_scalar(f"{name}.state_id", "id", _trace(env, "state_id", (state,), "id")[0], jnp.int32)
    ratio = getattr(env, "reset_ratio", 1)
    _require(_is_integer(ratio, 1), f"{name}.reset_ratio: expected an integer of 1 or more, got {ratio!r}.")
    return [
        _describe(spec),
        f"reset(key): state {_text(state)}, observation as in the spec",
        f"step(state, action, key) with an action {_text(action)}: state, observation, reward, terminated",
        *(["state_id(state): int32"] if spec.n_states else []),
        "pure: two traces of each function are the same",
    ]


def check_host_environment(env: Any, seed: int = 0) -> list[str]:
    """As `check_environment` for a `HostEnvironment`, by some steps of the episode of a seed; it is left open."""
    name = type(env).__name__
    _check_methods(env, begin="seed", act="action", close="")
    spec = _check_spec(env)
    _check_observation(f"{name}.begin", _call(env, "begin", seed), spec)
    struct, steps, over = action_struct(spec), 0, False
    middle = (spec.action.low + spec.action.high) / 2 if isinstance(spec.action, Box) else 0
    while steps < min(HOST_STEPS, spec.horizon) and not over:
        step, steps = _call(env, "act", np.full(struct.shape, middle, struct.dtype)), steps + 1
        _require(
            isinstance(step, HostStep),
            f"{name}.act: returned {_values(step)}, expected a HostStep. "
            "Return derex.envs.interface.HostStep(observation, reward, terminated, truncated).",
        )
        _check_observation(f"{name}.act", step.observation, spec)
        _require(
            isinstance(step.reward, numbers.Real) and np.isfinite(float(step.reward)),
            f"{name}.act: reward is {step.reward!r}, expected a finite float.",
        )
        for flag, value in (("terminated", step.terminated), ("truncated", step.truncated)):
            _require(
                isinstance(value, bool | np.bool_),
                f"{name}.act: {flag} is {value!r}, expected True or False. Return bool({flag}).",
            )
        over = bool(step.terminated or step.truncated)
    return [
        _describe(spec),
        f"begin({seed}): observation as in the spec",
        f"act(action) with an action {_text(struct)}: a HostStep, {steps} times{', then the end' if over else ''}",
    ]


def _require(valid: bool | np.bool_, message: str) -> None:
    if not valid:
        raise ValueError(message)


# --- the spec and the methods -------------------------------------------------------------------------------------


def _check_methods(env: Any, why: str = "", /, **arguments: str) -> None:
    """Checks that the environment has each method, with arguments of these names."""
    name = type(env).__name__
    for method, expected in arguments.items():
        call, signature = getattr(env, method, None), f"{method}({expected})"
        if not callable(call):
            raise ValueError(f"{name}: has no method {signature}{why}. Define it; see docs/environments.md.")
        try:
            inspect.signature(call).bind(*filter(None, expected.split(", ")))
        except TypeError as error:
            takes = f"{method}{inspect.signature(call)}"
            raise ValueError(f"{name}.{method}: is {takes}, expected {signature} ({error}).") from error


def _check_spec(env: Any) -> EnvironmentSpec:
    name, spec = type(env).__name__, getattr(env, "spec", None)
    if not isinstance(spec, EnvironmentSpec):
        raise ValueError(
            f"{name}.spec: expected a derex.types.EnvironmentSpec, got {spec!r}. Set spec = EnvironmentSpec(name, "
            "observation, action, horizon) on the class or in __init__."
        )
    parts, action, shape = jax.tree.leaves(spec.observation), spec.action, (spec.n_states, 2)
    kinds = jax.ShapeDtypeStruct | Symbols | Words | Amount
    has_choices = (
        (isinstance(action, Discrete) and action.n >= 1)
        or (isinstance(action, MultiDiscrete) and min(action.sizes, default=0) >= 1)
        or (isinstance(action, Box) and action.size >= 1 and action.low < action.high)
    )
    fields = {
        "name": (isinstance(spec.name, str) and bool(spec.name), "a string"),
        "observation": (
            bool(parts) and all(isinstance(part, kinds) for part in parts),
            "jax.ShapeDtypeStruct, Symbols, Words or Amount in every part, such as "
            "jax.ShapeDtypeStruct((12,), jnp.float32)",
        ),
        "action": (
            has_choices,
            "Discrete(n), MultiDiscrete(sizes) or Box(size, low, high) of derex.types with at least one choice",
        ),
        "horizon": (
            _is_integer(spec.horizon, 1),
            "an integer of 1 or more, the steps after which an episode is truncated",
        ),
        "success_return": (isinstance(spec.success_return, numbers.Real | None), "a number or None"),
        "n_states": (_is_integer(spec.n_states, 0), "an integer of 0 or more"),
        "positions": (
            spec.positions is None or np.shape(spec.positions) == shape,
            f"None or an array of shape {shape}, a row and a column for each state",
        ),
    }
    for field, (valid, expected) in fields.items():
        _require(valid, f"{name}.spec.{field}: expected {expected}; got {getattr(spec, field)!r}.")
    return spec


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


# --- calls --------------------------------------------------------------------------------------------------------


def _trace(env: Any, method: str, inputs: tuple[Any, ...], names: str) -> tuple[Any, ...]:
    """Shapes and dtypes of what a method returns, by name; two traces have to agree."""
    where, n = f"{type(env).__name__}.{method}", len(names.split(", "))

    def call(*arguments: Any) -> Any:
        values = getattr(env, method)(*arguments)
        if n == 1:
            return (values,)
        found = len(values) if isinstance(values, tuple) else 1
        fix = (
            "Drop truncated and info, as gymnasium has them: the time limit is spec.horizon, and what has to be "
            "remembered is in the state."
            if method == "step" and found == 5
            else f"Return all of them from {method} in this order."
        )
        _require(found == n, f"{where}: returned {_values(values)}, expected a tuple of {n}: {names}. {fix}")
        return tuple(values)

    before = dict(getattr(env, "__dict__", {}))
    # a new function each time: JAX caches traces by function
    tracers = [jax.make_jaxpr(lambda *arguments: call(*arguments), return_shape=True) for _ in range(2)]
    (one, shapes), (other, _) = (_call(env, method, *inputs, call=tracer) for tracer in tracers)
    after = getattr(env, "__dict__", {})
    changed = {each: value for each, value in after.items() if before.get(each) is not value}
    _require(
        not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(changed)),
        f"{where}: stores arrays in {', '.join(f'self.{each}' for each in changed)}. Functions have to be pure: "
        "what one step passes to the next belongs in the state that it returns.",
    )
    texts = [re.sub(r"0x[0-9a-f]+", "", str(jaxpr)) for jaxpr in (one, other)]
    constants = zip(one.consts, other.consts, strict=True)
    _require(
        texts[0] == texts[1]
        and all(np.array_equal(*pair, equal_nan=np.asarray(pair[0]).dtype.kind == "f") for pair in constants),
        f"{where}: two traces differ, so that it is not pure. Draw random numbers by jax.random from `key`, not by "
        "numpy or random, and change nothing outside of the function.",
    )
    return shapes


def _call(env: Any, method: str, *inputs: Any, call: Callable[..., Any] | None = None) -> Any:
    where = f"{type(env).__name__}.{method}"
    try:
        return (call or getattr(env, method))(*inputs)
    except (
        errors.ConcretizationTypeError,
        errors.NonConcreteBooleanIndexError,
        errors.TracerArrayConversionError,
        errors.TracerIntegerConversionError,
        errors.UnexpectedTracerError,
    ) as error:
        raise ValueError(
            f"{where}: cannot be traced by jax.jit{_line(env, error)}: {str(error).splitlines()[0]} Values of arrays "
            "are not known while tracing: use jnp.where or jax.lax.cond instead of if, jnp instead of np, no float(), "
            "int() or bool() of arrays."
        ) from error
    except Exception as error:
        if str(error).startswith(where):  # a finding
            raise
        raise ValueError(f"{where}: raised {type(error).__name__}{_line(env, error)}: {error}") from error


def _line(env: Any, error: BaseException) -> str:
    """Where in the environment's own file the error was raised."""
    try:
        file = inspect.getsourcefile(type(env))
    except TypeError:
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


# --- values -------------------------------------------------------------------------------------------------------


def _check_observation(where: str, observation: Any, spec: EnvironmentSpec) -> None:
    expected, structure = jax.tree.flatten_with_path(spec.observation)
    _require(
        jax.tree.structure(observation) == structure,
        f"{where}: observation has the parts {jax.tree.structure(observation)}, expected {structure} as in "
        "spec.observation. Return the same dict or tuple as in the spec, or change the spec.",
    )
    for (path, part), leaf in zip(expected, jax.tree.leaves(observation), strict=True):
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        place = f"observation{jax.tree_util.keystr(path)}"
        _require(
            leaf.shape == tuple(part.shape) and leaf.dtype == np.dtype(part.dtype),
            f"{where}: {place} is {_text(leaf)}, expected {_text(part)} as in spec.observation. Return "
            f"{place}.astype({np.dtype(part.dtype).name}) of that shape, or change the spec.",
        )


def _check_scalar(where: str, name: str, value: Any, dtype: Any) -> None:
    kind = np.dtype(dtype).name
    reduce, cast = f"Reduce it to one number, e.g. {name}[0].", f"Return {name}.astype(jnp.{kind})."
    _require(
        value.shape == () and value.dtype == dtype,
        f"{where}: {name} is {_text(value)}, expected {kind} of shape (). {reduce if value.shape else cast}",
    )


def _values(values: Any) -> str:
    if isinstance(values, tuple | list):
        return f"a {type(values).__name__} of {len(values)} values"
    return f"one {type(values).__name__}"


def _text(tree: Any) -> str:
    """Shapes and dtypes of a pytree, for people."""
    if hasattr(tree, "dtype"):
        return f"{np.dtype(tree.dtype).name} of shape {tuple(tree.shape)}"

    def leaf_text(leaf: Any) -> str:
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"

    return re.sub(r"'(\w+\[[\d, ]*\])'", r"\1", str(jax.tree.map(leaf_text, tree)))


def _describe(spec: EnvironmentSpec) -> str:
    threshold = spec.success_return
    success = "not defined" if threshold is None else f"a return of at least {threshold:g}"
    observation = f"{spec.name}, observation {_text(spec.observation)}"
    return f"spec: {observation}, {spec.action}, horizon {spec.horizon}, success {success}"
