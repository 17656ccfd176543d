"""Fits of history models, alone or several at once.

Models that differ in their seeds alone (and in their data, of one shape) are trained side by side in one program: it is
compiled once, and small scans over time, which leave most of an accelerator idle, cost little more than one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from sklearn.utils import check_random_state

from derex.decomposition.objectives import Objective
from derex.estimators.base import describe_progress, settled_statistics
from derex.estimators.building import build_history_networks
from derex.estimators.files import check_file, resumable
from derex.estimators.fitting import (
    Progress,
    TrainState,
    chunk_lengths,
    cosine_rates,
    initial_state,
    train_chunk,
)
from derex.estimators.streams import StreamData, counted_rows
from derex.estimators.trajectories import (
    StreamSpec,
    check_trajectories,
    common_spec,
    describe,
    fingerprint,
    stored_alike,
    useful_streams,
)
from derex.networks.histories import make_future
from derex.progress import ProgressBar
from derex.types import Trajectories

Watch = Callable[[int, float, float, float], None]  # updates done, loss, tr Σ̃, largest off-diagonal

MEASURED_STREAMS = 512  # at most, for the statistics of a finished fit
CHECKPOINT_SECONDS = 60.0


@dataclass
class Fit:
    """A fit under way."""

    model: Any
    objective: Objective
    spec: StreamSpec
    data: StreamData
    code: int  # of the data
    seed: int
    checkpoint: str | os.PathLike[str] | None
    state: TrainState
    history: list[tuple[float, ...]]

    @property
    def level(self) -> tuple[int, str]:
        """Updates done, and all that decides which program trains it: fits of one level go on side by side."""
        return int(self.state.step), str((self.spec, jax.tree.map(np.shape, self.data.source.values)))

    def record(self, end: int, seen: Progress) -> None:
        """What a chunk of updates showed."""
        self.history.append(self.model._checked(end, seen))

    def publish(self) -> None:
        """What the fit has come to is the model; it is also written, if there is to be a checkpoint."""
        self.model._publish(self.spec, self.state, self.history, self.code, self.seed)
        if self.checkpoint is not None:
            self.model.save(self.checkpoint)

    def finish(self) -> None:
        """Replace running statistics, which lag, by those of the final networks; the model is then fitted."""
        batches = self.data.sample(MEASURED_STREAMS)
        running = settled_statistics(*counted_rows(self.data.source, batches, self.state.networks))
        self.state = self.state._replace(running=running)
        self.publish()


def untrained(model: Any, X: Any) -> None:
    """The model as it is before its first update, with the statistics that its networks then have: a control."""
    begin([model], [X], [None], ["X"])[0].finish()


def begin(
    models: Sequence[Any], sets: Sequence[Any], checkpoints: Sequence[Any], names: list[str]
) -> list[Fit]:
    """Check everything; networks are fresh, or those of the checkpoints.

    Sets of trajectories that one program is to read get networks with room for the ids and actions of all of them.
    """
    objectives = [model._check_parameters() for model in models]
    sets = [check_trajectories(*each) for each in zip(sets, names, strict=True)]
    specs = [
        describe(X, model.n_actions, model.n_ids, name)
        for X, model, name in zip(sets, models, names, strict=True)
    ]
    spec, lead = common_spec(specs, names), models[0]
    for X, name in zip(sets, names, strict=True):
        if X.shape[1] != sets[0].shape[1]:
            raise ValueError(
                f"{name}: expected {sets[0].shape[1]} steps, as in {names[0]}; got {X.shape[1]}. Pad the shorter at "
                "their ends, with valid False there."
            )
    future = make_future(lead.tests, objectives[0].tied)
    useful = [useful_streams(X, future.needs, int(lead.k), name) for X, name in zip(sets, names, strict=True)]
    codes = [0 if c is None else fingerprint(X) for X, c in zip(sets, checkpoints, strict=True)]
    sets = stored_alike(sets, most=int(lead.batch_size) * sets[0].shape[1] // 4)
    rows = zip(models, objectives, sets, useful, codes, checkpoints, names, strict=True)
    return [_begun(spec, *row) for row in rows]


def _begun(
    spec: StreamSpec,
    model: Any,
    objective: Objective,
    X: Trajectories,
    useful: Int[np.ndarray, " n"],
    code: int,
    checkpoint: Any,
    name: str,
) -> Fit:
    """One fit: from the start, or from where its checkpoint says it was."""
    name = "checkpoint" if name == "X" else name.replace("trajectories", "checkpoints")
    before = None if checkpoint is None else resumable(model, checkpoint, code, name)
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))
    if before is not None:
        seed, spec = seed if before._seed is None else before._seed, before._spec
    data = StreamData(X, useful, make_future(model.tests, objective.tied), int(model.batch_size), seed)
    if before is not None:
        return Fit(model, objective, spec, data, code, seed, checkpoint, before._state, before._history)
    networks = build_history_networks(model, spec, objective, X, data, seed)
    return Fit(
        model, objective, spec, data, code, seed, checkpoint, initial_state(networks, int(model.k)), []
    )


def fit_one(model: Any, X: Any, checkpoint: Any, watch: Any) -> None:
    """`HistoryDeRex.fit`."""
    if checkpoint is not None:
        check_file("checkpoint", checkpoint)
    _fit([model], [X], [checkpoint], watch, ["X"])


@no_type_check  # wrong types are refused by name
def fit_together(
    models: Sequence[Any],
    trajectories: Sequence[Any],
    *,
    checkpoints: Sequence[str | os.PathLike[str]] | None = None,
    watch: Watch | None = None,
) -> None:
    """Fit each `HistoryDeRex` to its own trajectories, all in one program.

    Args:
        models: with the same parameters, except `random_state`.
        trajectories: of as many steps, of the same kind. Ids and actions are those of any of the sets.
        checkpoints: a file for each, as in `HistoryDeRex.fit`.
        watch: as in `HistoryDeRex.fit`; it sees the mean over the models.
    """
    models, trajectories = _listed("models", models), _listed("trajectories", trajectories)
    if not models or len(models) != len(trajectories):
        raise ValueError(
            f"models and trajectories: expected as many of each, got {len(models)} and {len(trajectories)}."
        )
    _check_alike(models)
    places = [None] * len(models) if checkpoints is None else _listed("checkpoints", checkpoints)
    if len(places) != len(models):
        raise ValueError(f"checkpoints: expected one for each of {len(models)} models, got {len(places)}.")
    if checkpoints is not None:
        files = [check_file(f"checkpoints[{n}]", place).resolve() for n, place in enumerate(places)]
        if len(set(files)) < len(files):
            raise ValueError(
                f"checkpoints: expected a file of its own for each fit, got {list(map(str, places))}."
            )
    _fit(models, trajectories, places, watch, [f"trajectories[{n}]" for n in range(len(models))])


def _fit(models: list[Any], sets: list[Any], checkpoints: list[Any], watch: Any, names: list[str]) -> None:
    if watch is not None and not callable(watch):
        raise TypeError(f"watch: expected a function of four numbers, or None; got {watch!r}.")
    fits = begin(models, sets, checkpoints, names)
    for level in sorted({fit.level for fit in fits}):  # resumed ones may be ahead
        _train([fit for fit in fits if fit.level == level], watch)
    for fit in fits:
        fit.finish()


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | os.PathLike | Trajectories) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name}: expected a list with one entry for each fit, got {type(values).__name__}. For one fit: "
            "HistoryDeRex.fit."
        )
    return list(values)


def _check_alike(models: list[Any]) -> None:
    from derex.estimators.histories import HistoryDeRex

    for number, model in enumerate(models):
        if not isinstance(model, HistoryDeRex):
            raise TypeError(f"models[{number}]: expected a HistoryDeRex, got {type(model).__name__}.")
        if any(model is other for other in models[:number]):
            raise ValueError(
                f"models[{number}] is there twice; make a model for each fit: sklearn.base.clone(model)."
            )
    first, *others = (
        {n: v for n, v in model.get_params().items() if n != "random_state"} for model in models
    )
    for other in others:
        different = sorted(
            name for name in first if first[name] is not other[name] and first[name] != other[name]
        )
        if different:
            raise ValueError(
                f"models: fits side by side differ in random_state alone; these differ in {different}."
            )


def _train(fits: list[Fit], watch: Watch | None) -> None:
    """The updates that are left, a chunk at a time."""
    lead = fits[0]
    steps, done, saved = int(lead.model.steps), int(lead.state.step), time.monotonic()
    ends = np.cumsum(chunk_lengths(steps, lead.data.chunk)).tolist()
    with ProgressBar("fit", enabled=bool(lead.model.verbose)) as progress:
        progress.start()
        for start, end in pairwise([done, *(end for end in ends if end > done)]):
            rates = jnp.asarray(cosine_rates(start, end - start, steps, lead.model._learning_rate()))
            for fit, seen in zip(fits, _advance(fits, start, end, rates), strict=True):
                fit.record(end, seen)
            news = np.mean([fit.history[-1][1:] for fit in fits], axis=0).tolist()
            progress.update(end, steps, describe_progress(*news))
            if watch is not None:
                watch(end, *news)
            if lead.checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                for fit in fits:
                    fit.publish()
                saved = time.monotonic()
        progress.finish(f"{steps} steps")


def _advance(fits: list[Fit], start: int, end: int, rates: Float[jax.Array, " steps"]) -> list[Progress]:
    """One chunk of updates of each."""
    items = [fit.data.items(start, end - start) for fit in fits]
    if len(fits) == 1:
        fit = fits[0]
        fit.state, seen = train_chunk(fit.objective, fit.data.source, fit.state, items[0], rates)
        return [seen]
    source, states, batch = map(_stacked, ([f.data.source for f in fits], [f.state for f in fits], items))
    states, seen = _side_by_side(fits[0].objective, source, states, batch, rates)
    for number, fit in enumerate(fits):
        fit.state = _taken(states, number)
    return [_taken(seen, number) for number in range(len(fits))]


@eqx.filter_jit
def _side_by_side(objective: Objective, source: Any, states: Any, items: Any, rates: Any) -> Any:
    mapped = eqx.if_array(0)
    return eqx.filter_vmap(train_chunk, in_axes=(None, mapped, mapped, mapped, None))(
        objective, source, states, items, rates
    )


def _stacked(trees: Sequence[Any]) -> Any:
    """Trees of one structure as one, with a leading axis in front of every array."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *trees)


def _taken(tree: Any, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, tree)
