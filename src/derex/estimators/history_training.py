"""Fits of history models, alone or several at once.

Models that differ in their seeds alone (and in their data, of one shape) are trained side by side in one program: it is
compiled once, and small scans over time, which leave most of an accelerator idle, cost little more than one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.utils import check_random_state

from derex.decomposition.objectives import Objective
from derex.estimators.history_building import build_networks, future_of
from derex.estimators.measuring import settled_statistics
from derex.estimators.progress import FitProgress
from derex.estimators.streams import StreamData, counted_rows
from derex.estimators.training import (
    Progress,
    TrainState,
    chunk_lengths,
    cosine_rates,
    initial_state,
    train_chunk,
)
from derex.estimators.trajectories import (
    StreamSpec,
    check_trajectories,
    describe,
    fingerprint,
    stored_once,
)

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
    checkpoint: str | os.PathLike[str] | None
    state: TrainState
    history: list[tuple[float, ...]]

    @property
    def shape(self) -> str:
        """All that decides which program trains it."""
        return str((self.spec, self.data.streams.shape[1], jax.tree.map(np.shape, self.data.source.values)))

    def record(self, end: int, seen: Progress) -> None:
        """What a chunk of updates showed."""
        self.history.append(self.model._checked(end, seen))

    def publish(self) -> None:
        """What the fit has come to is the model; it is also written, if there is to be a checkpoint."""
        self.model._publish(self.spec, self.state, self.history, self.code)
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
    begin(model, X, None).finish()


def begin(model: Any, X: Any, checkpoint: str | os.PathLike[str] | None) -> Fit:
    """Check everything; networks are fresh, or those of the checkpoint."""
    objective = model._check_parameters()
    X = check_trajectories(X)
    spec = describe(X, model.n_actions)
    useful = model._useful(X, objective.tied)
    X = stored_once(X, most=int(model.batch_size) * X.shape[1] // 4)
    seed = int(check_random_state(model.random_state).randint(2**31 - 1))
    data = StreamData(X, useful, future_of(model.tests, objective.tied), int(model.batch_size), seed)
    code = fingerprint(X) if checkpoint is not None else 0
    resumed = model._resumed(checkpoint, code)
    if resumed is None:
        networks = build_networks(model, spec, objective, X, data, seed)
        resumed = initial_state(networks, int(model.k)), []
    return Fit(model, objective, spec, data, code, checkpoint, *resumed)


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
        trajectories: of the same shapes.
        checkpoints: a file for each, as in `HistoryDeRex.fit`.
        watch: as in `HistoryDeRex.fit`; it sees the mean over the models.
    """
    if not models or len(models) != len(trajectories):
        raise ValueError(
            f"models and trajectories: expected as many of each, got {len(models)} and {len(trajectories)}."
        )
    if checkpoints is not None and len(checkpoints) != len(models):
        raise ValueError(
            f"checkpoints: expected one for each of {len(models)} models, got {len(checkpoints)}."
        )
    _check_alike(models)
    places = [None] * len(models) if checkpoints is None else checkpoints
    fits = [begin(*each) for each in zip(models, trajectories, places, strict=True)]
    shapes = sorted({fit.shape for fit in fits})
    if len(shapes) > 1:
        raise ValueError(f"trajectories: fits side by side read the same shapes; got {' and '.join(shapes)}.")
    for done in sorted({int(fit.state.step) for fit in fits}):  # resumed ones may be ahead
        level = [fit for fit in fits if int(fit.state.step) == done]
        _train(level, watch)
    for fit in fits:
        fit.finish()


def _check_alike(models: Sequence[Any]) -> None:
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
    with FitProgress(steps, enabled=bool(lead.model.verbose)) as progress:
        for start, end in pairwise([done, *(end for end in ends if end > done)]):
            rates = jnp.asarray(cosine_rates(start, end - start, steps, lead.model._learning_rate()))
            for fit, seen in zip(fits, _advance(fits, start, end, rates), strict=True):
                fit.record(end, seen)
            news = np.mean([fit.history[-1][1:] for fit in fits], axis=0).tolist()
            progress.update(end, *news)
            if watch is not None:
                watch(end, *news)
            if lead.checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                for fit in fits:
                    fit.publish()
                saved = time.monotonic()


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
