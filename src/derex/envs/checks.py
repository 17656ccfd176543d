"""Checks of user environments: whether one does what `derex.envs.interface` asks, said before training starts.

JAX environments are only traced, which takes milliseconds; host environments play a few steps.
"""

from __future__ import annotations

import inspect
import numbers
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from derex.envs.interface import HostStep, action_struct
from derex.types import Amount, Box, Discrete, EnvironmentSpec, MultiDiscrete, Symbols, Words

HOST_STEPS = 20  # of a host environment, that are checked
_TRACING_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)


def check_environment(env: Any) -> list[str]:
    """Checks that a JAX environment satisfies `Environment`; nothing is compiled or run.

    Args:
        env: the environment.

    Returns:
        What was found, one line for each part of the interface.

    Raises:
        ValueError: names the class, the method, what it returned, what was expected and the fix.
    """
    name = type(env).__name__
    _check_methods(env, {"reset": ("key",), "step": ("state", "action", "key")})
    spec = _check_spec(env)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state, observation = _trace(env, "reset", (key,), ("state", "observation"))
    _check_observation(f"{name}.reset", observation, spec)
    action = action_struct(spec)
    after = _trace(env, "step", (state, action, key), ("state", "observation", "reward", "terminated"))
    _check_state(f"{name}.step", state, after[0])
    _check_observation(f"{name}.step", after[1], spec)
    _check_scalar(f"{name}.step", "reward", after[2], jnp.float32)
    _check_scalar(f"{name}.step", "terminated", after[3], jnp.bool_)
    if spec.n_states:
        _check_methods(env, {"state_id": ("state",)}, why=f" since spec.n_states is {spec.n_states}")
        _check_scalar(f"{name}.state_id", "id", _trace(env, "state_id", (state,), ("id",))[0], jnp.int32)
    ratio = getattr(env, "reset_ratio", 1)
    if not _is_integer(ratio, 1):
        raise ValueError(f"{name}.reset_ratio: expected an integer of 1 or more, got {ratio!r}.")
    return [
        *_describe(spec),
        f"reset(key): state {_text(state)}, observation as in the spec",
        f"step(state, action, key) with an action {_text(action)}: state, observation, reward, terminated",
        *(["state_id(state): int32"] if spec.n_states else []),
        "pure: two traces of each function are the same",
    ]


def check_host_environment(env: Any, seed: int = 0) -> list[str]:
    """Checks that a host environment satisfies `HostEnvironment`, by some steps of one episode; it is left open.

    Args:
        env: the environment.
        seed: of the episode.

    Returns:
        What was found, one line for each part of the interface.

    Raises:
        ValueError: names the class, the method, what it returned, what was expected and the fix.
    """
    name = type(env).__name__
    _check_methods(env, {"begin": ("seed",), "act": ("action",), "close": ()})
    spec = _check_spec(env)
    _check_observation(f"{name}.begin", _call(env, "begin", seed), spec)
    struct, steps, over = action_struct(spec), 0, False
    middle = (spec.action.low + spec.action.high) / 2 if isinstance(spec.action, Box) else 0
    while steps < min(HOST_STEPS, spec.horizon) and not over:
        step, steps = _call(env, "act", np.full(struct.shape, middle, struct.dtype)), steps + 1
        if not isinstance(step, HostStep):
            raise ValueError(
                f"{name}.act: returned {_values(step)}, expected a HostStep. "
                "Return derex.envs.interface.HostStep(observation, reward, terminated, truncated)."
            )
        _check_observation(f"{name}.act", step.observation, spec)
        if not isinstance(step.reward, numbers.Real) or not np.isfinite(step.reward):
            raise ValueError(f"{name}.act: reward is {step.reward!r}, expected a finite float.")
        for flag in ("terminated", "truncated"):
            if not isinstance(getattr(step, flag), bool | np.bool_):
                value = getattr(step, flag)
                raise ValueError(
                    f"{name}.act: {flag} is {value!r}, expected True or False. Return bool({flag})."
                )
        over = bool(step.terminated or step.truncated)
    return [
        *_describe(spec),
        f"begin({seed}): observation as in the spec",
        f"act(action) with an action {_text(struct)}: a HostStep, {steps} times{', then the end' if over else ''}",
    ]


# --- the spec and the methods -------------------------------------------------------------------------------------


def _check_methods(env: Any, methods: dict[str, tuple[str, ...]], why: str = "") -> None:
    name = type(env).__name__
    for method, arguments in methods.items():
        call, signature = getattr(env, method, None), f"{method}({', '.join(arguments)})"
        if not callable(call):
            raise ValueError(f"{name}: has no method {signature}{why}. Define it; see docs/environments.md.")
        try:
            inspect.signature(call).bind(*arguments)
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
    fields = (
        ("name", isinstance(spec.name, str) and bool(spec.name), "a string"),
        (
            "observation",
            bool(parts) and all(isinstance(part, kinds) for part in parts),
            "jax.ShapeDtypeStruct, Symbols, Words or Amount in every part, such as "
            "jax.ShapeDtypeStruct((12,), jnp.float32)",
        ),
        (
            "action",
            has_choices,
            "Discrete(n), MultiDiscrete(sizes) or Box(size, low, high) of derex.types with at least one choice",
        ),
        (
            "horizon",
            _is_integer(spec.horizon, 1),
            "an integer of 1 or more, the steps after which an episode is truncated",
        ),
        (
            "success_return",
            spec.success_return is None or isinstance(spec.success_return, numbers.Real),
            "a number or None",
        ),
        ("n_states", _is_integer(spec.n_states, 0), "an integer of 0 or more"),
        (
            "positions",
            spec.positions is None or np.shape(spec.positions) == shape,
            f"None or an array of shape {shape}, a row and a column for each state",
        ),
    )
    for field, valid, expected in fields:
        if not valid:
            raise ValueError(f"{name}.spec.{field}: expected {expected}; got {getattr(spec, field)!r}.")
    return spec


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


# --- calls --------------------------------------------------------------------------------------------------------


def _trace(env: Any, method: str, inputs: Sequence[Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    """Shapes and dtypes of what a method returns, by name; two traces have to agree."""
    where = f"{type(env).__name__}.{method}"

    def call(*arguments: Any) -> Any:
        values = getattr(env, method)(*arguments)
        if len(names) == 1:
            return (values,)
        if not isinstance(values, tuple) or len(values) != len(names):
            raise ValueError(
                f"{where}: returned {_values(values)}, expected a tuple of {len(names)}: {', '.join(names)}."
                + _fix(method, values)
            )
        return tuple(values)

    before = dict(getattr(env, "__dict__", {}))
    # a new function each time: JAX caches traces by function
    tracers = [jax.make_jaxpr(lambda *arguments: call(*arguments), return_shape=True) for _ in range(2)]
    jaxprs, shapes = zip(*(_call(env, method, *inputs, call=tracer) for tracer in tracers), strict=True)
    after = getattr(env, "__dict__", {})
    changed = {each: value for each, value in after.items() if before.get(each) is not value}
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(changed)):
        raise ValueError(
            f"{where}: stores arrays in {', '.join(f'self.{each}' for each in changed)}. Functions have to be pure: "
            "what one step passes to the next belongs in the state that it returns."
        )
    if _printed(jaxprs[0]) != _printed(jaxprs[1]) or not _equal_constants(*jaxprs):
        raise ValueError(
            f"{where}: two traces differ, so that it is not pure. Draw random numbers by jax.random from `key`, not by "
            "numpy or random, and change nothing outside of the function."
        )
    return shapes[0]


def _call(env: Any, method: str, *inputs: Any, call: Callable[..., Any] | None = None) -> Any:
    where = f"{type(env).__name__}.{method}"
    try:
        return (call or getattr(env, method))(*inputs)
    except _TRACING_ERRORS as error:
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


def _printed(jaxpr: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))


def _equal_constants(one: Any, other: Any) -> bool:
    pairs = zip(one.consts, other.consts, strict=True)
    return all(np.array_equal(*pair, equal_nan=np.asarray(pair[0]).dtype.kind == "f") for pair in pairs)


def _fix(method: str, values: Any) -> str:
    if method == "step" and isinstance(values, tuple) and len(values) == 5:
        return (
            " Drop truncated and info, as gymnasium has them: the time limit is spec.horizon, and what has to be "
            "remembered is in the state."
        )
    return f" Return all of them from {method} in this order."


# --- values -------------------------------------------------------------------------------------------------------


def _check_observation(where: str, observation: Any, spec: EnvironmentSpec) -> None:
    expected, structure = jax.tree.flatten_with_path(spec.observation)
    if jax.tree.structure(observation) != structure:
        raise ValueError(
            f"{where}: observation has the parts {jax.tree.structure(observation)}, expected {structure} as in "
            f"spec.observation. Return the same dict or tuple as in the spec, or change the spec."
        )
    for (path, part), leaf in zip(expected, jax.tree.leaves(observation), strict=True):
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if leaf.shape != tuple(part.shape) or leaf.dtype != np.dtype(part.dtype):
            place = f"observation{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"{where}: {place} is {_text(leaf)}, expected {_text(part)} as in spec.observation. Return "
                f"{place}.astype({np.dtype(part.dtype).name}) of that shape, or change the spec."
            )


def _check_state(where: str, before: Any, after: Any) -> None:
    if jax.tree.structure(before) != jax.tree.structure(after) or _text(before) != _text(after):
        raise ValueError(
            f"{where}: state is {_text(after)}, expected {_text(before)} as from reset. Return the same structure, "
            "shapes and dtypes from both, e.g. jnp.int32(0) instead of 0."
        )


def _check_scalar(where: str, name: str, value: Any, dtype: Any) -> None:
    kind = np.dtype(dtype).name
    if value.shape != () or value.dtype != dtype:
        fix = (
            f"Reduce it to one number, e.g. {name}[0]."
            if value.shape
            else f"Return {name}.astype(jnp.{kind})."
        )
        raise ValueError(f"{where}: {name} is {_text(value)}, expected {kind} of shape (). {fix}")


def _values(values: Any) -> str:
    if isinstance(values, tuple | list):
        return f"a {type(values).__name__} of {len(values)} values"
    return f"one {type(values).__name__}"


def _text(tree: Any) -> str:
    """Shapes and dtypes of a pytree, for people."""
    if hasattr(tree, "dtype"):
        return f"{np.dtype(tree.dtype).name} of shape {tuple(tree.shape)}"
    return str(jax.tree.map(_Text, tree))


class _Text:
    """A leaf that prints as its dtype and shape."""

    def __init__(self, leaf: Any):
        self.leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)

    def __repr__(self) -> str:
        return f"{np.dtype(self.leaf.dtype).name}{list(self.leaf.shape)}"


def _describe(spec: EnvironmentSpec) -> list[str]:
    success = (
        "not defined" if spec.success_return is None else f"a return of at least {spec.success_return:g}"
    )
    return [
        f"spec: {spec.name}, observation {_text(spec.observation)}, {spec.action}, horizon {spec.horizon}, "
        f"success {success}"
    ]
