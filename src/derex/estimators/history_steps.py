"""One step of some streams, as a user gives it to `HistoryDeRex.step`.

Shapes: n streams.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from derex.estimators.trajectories import StreamSpec, check_like_fitted, check_trajectories
from derex.types import NO_ACTION, Trajectories, stacked


def one_step(
    observation: Any, previous_action: Any, first: Any, streams: int, spec: StreamSpec
) -> Trajectories:
    """Trajectories (n, 1) of what each stream saw and had just done, like those of the fit."""
    parts = (
        isinstance(spec.outline, dict) and "list" in spec.outline
    )  # the model was fitted on lists of parts
    if isinstance(observation, list) and not parts:
        observation = stacked("observation", observation) if observation else np.zeros(0)
    steps = Trajectories(
        jax.tree.map(lambda leaf: _row("observation", leaf, streams), observation),
        _row("previous_action", _actions(previous_action, streams, spec), streams),
        np.zeros((streams, 1), bool) if first is None else _row("first", np.asarray(first, bool), streams),
        np.ones((streams, 1), bool),
    )
    steps = check_trajectories(steps, "")
    check_like_fitted(steps, spec, "")
    return steps


def _row(name: str, values: Any, streams: int) -> np.ndarray:
    """(n, …) -> (n, 1, …)."""
    array = np.asarray(values)
    if array.ndim == 0 or len(array) != streams:
        came = f"a single {array.dtype}" if array.ndim == 0 else f"shape {array.shape}"
        one = f" The memory is of one stream: [{name}]." if streams == 1 else ""
        raise ValueError(f"{name}: expected one entry for each of {streams} streams, got {came}.{one}")
    return array[:, None]


def _actions(given: Any, streams: int, spec: StreamSpec) -> Any:
    """The actions with what stands for none in the place of every None."""
    if given is None:
        given = [None] * streams
    if not isinstance(given, list | tuple) or all(action is not None for action in given):
        return given
    if spec.actions == "ids":
        return [NO_ACTION if action is None else action for action in given]
    none = np.zeros(spec.choices, np.float32)
    return np.stack([none if action is None else np.ravel(action) for action in given])
