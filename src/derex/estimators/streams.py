"""Fits of trajectories, alone or several at once: batches of whole streams, networks for them, checkpoints.

The two halves of an update are trajectories drawn independently and with replacement; a half's statistics are taken
over all its histories that count.

Shapes: b streams of a batch, t histories of each (every step but the last), k features.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray
from sklearn.utils import check_random_state

from derex.decomposition.statistics import Half
from derex.estimators import validation as check
from derex.estimators.base import compute_statistics
from derex.estimators.fitting import (
    Fit,
    Watch,
    calibrate_side,
    call_encoder,
    init_fit_state,
    make_identity_side,
    run_updates,
)
from derex.estimators.trajectories import (
    StreamSpec,
    check_trajectories,
    compute_fingerprint,
    deduplicate_together,
    find_useful_streams,
    make_stream_spec,
    merge_specs,
    sample_observations,
    trajectories_to_device,
)
from derex.networks.histories import (
    Embedding,
    Future,
    Head,
    HistoryNetworks,
    make_future,
    read_pairs,
    split_halves,
)
from derex.networks.inputs import make_encoder
from derex.networks.recurrent import LSTM
from derex.types import Indexed, Trajectories

CHUNK_STEPS = 100  # updates between reports of progress
CHUNK_BYTES = 1 << 28  # most that one chunk gathers on the host
CHECKPOINT_SECONDS = 60.0
MEASURED_STREAMS = 512  # at most, for the statistics of a finished fit
CALIBRATION_OBSERVATIONS = 4096  # that set the input scales of encoders
CALIBRATION_STRIDE = 4  # every fourth of them suffices for the scale of the outputs
CALIBRATION_STREAMS = 64  # that set the initial scales of f and g
# Of f and g before training, where the objective does not set their scale itself: from small values the strongest
# correlations grow first, whereas large random outputs have to be undone before anything is learnt.
INITIAL_DEVIATION = 0.1


# --- batches -------------------------------------------------------------------------------------------------------


class TrajectoryBatch(NamedTuple):
    """The streams of one update and the random phases of their tests."""

    trajectories: Trajectories  # observations that recur are given by their indices
    phase: Int[Array, " b"]


class StreamSource(eqx.Module):
    """Encodes a batch: f of its histories, g of their futures, first half against second."""

    values: Any  # observations that recur, or None
    future: Future = eqx.field(static=True)

    def halves(self, item: TrajectoryBatch, networks: HistoryNetworks) -> tuple[Half, Half]:
        return split_halves(*self.encode(item, networks))

    def encode(
        self, item: TrajectoryBatch, networks: HistoryNetworks
    ) -> tuple[Float[Array, "b t k"], Float[Array, "b t k"], Float[Array, "b t"]]:
        """Computes f(h_t), g(τ_t) and whether the pair counts, for every step but the last."""
        trajectories = item.trajectories
        if self.values is not None:
            trajectories = trajectories._replace(observation=Indexed(self.values, trajectories.observation))
        embedded = networks.embed(trajectories)
        beliefs, _ = networks.beliefs(embedded.history, trajectories.first)
        return read_pairs(networks, self.future, embedded, beliefs, trajectories, item.phase)


class StreamData:
    """A data set of trajectories to draw from.

    Attributes:
        source: where a training step takes its two halves from.
        chunk: updates to run between reports of progress.
    """

    def __init__(
        self, X: Trajectories, useful: Int[np.ndarray, " n"], future: Future, batch_size: int, seed: int
    ):
        self.useful, self.future, self.seed = useful, future, seed
        self.batch_size = 2 * (batch_size // 2)
        indexed = isinstance(X.observation, Indexed)
        values = jax.tree.map(jnp.asarray, X.observation.values) if indexed else None
        self.source = StreamSource(values, future)
        self.streams = X._replace(observation=X.observation.index) if indexed else X
        step_bytes = sum(leaf[:1].nbytes for leaf in jax.tree.leaves(self.streams)) * self.batch_size
        self.chunk = int(np.clip(CHUNK_BYTES // step_bytes, 1, CHUNK_STEPS))

    def items(self, start: int, steps: int) -> TrajectoryBatch:
        """Draws the batches of updates start, …, start + steps - 1; a draw depends on the update's number alone."""
        indices, phases = [], []
        for step in range(start, start + steps):
            rng = np.random.default_rng([self.seed, step])
            indices.append(self.useful[rng.integers(0, len(self.useful), self.batch_size)])
            phases.append(self.future.draw_on_host(rng, self.batch_size, self.streams.shape[1]))
        return self._gather(np.stack(indices), np.stack(phases))

    def sample(self, most: int) -> list[TrajectoryBatch]:
        """Returns batches of at most `most` of the useful trajectories, each once."""
        rng = np.random.default_rng([self.seed, 1 << 32])
        chosen = self.useful if len(self.useful) <= most else rng.choice(self.useful, most, replace=False)
        phases = self.future.draw_on_host(rng, len(chosen), self.streams.shape[1])
        parts = range(0, len(chosen), self.batch_size)
        return [self._gather(*(a[i : i + self.batch_size] for a in (chosen, phases))) for i in parts]

    def _gather(self, indices: np.ndarray, phases: np.ndarray) -> TrajectoryBatch:
        return TrajectoryBatch(trajectories_to_device(self.streams.rows(indices)), jnp.asarray(phases))


def encode_pairs(
    source: StreamSource, batches: list[TrajectoryBatch], networks: HistoryNetworks
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]]:
    """Computes f and g of all pairs that count."""
    f, g = [], []
    for batch in batches:
        f_rows, g_rows, counted = map(np.asarray, _encode_batch(source, batch, networks))
        f.append(f_rows[counted > 0])
        g.append(g_rows[counted > 0])
    return np.concatenate(f), np.concatenate(g)


@eqx.filter_jit
def _encode_batch(
    source: StreamSource, item: TrajectoryBatch, networks: HistoryNetworks
) -> tuple[Array, Array, Array]:
    return source.encode(item, networks)


# --- networks ------------------------------------------------------------------------------------------------------


def check_encoder(encoder: Any) -> None:
    """Checks for "auto", a module, or a function that makes one."""
    if isinstance(encoder, str):
        check.check_choice("encoder", encoder, ("auto",))
    elif not (isinstance(encoder, eqx.Module) or callable(encoder)):
        raise TypeError(
            f"encoder: expected 'auto', an Equinox module or a function (key, width) -> module; got {encoder!r}."
        )


def make_networks(
    encoder: Any, spec: StreamSpec, width: int, k: int, tied: bool, test_actions: bool, key: PRNGKeyArray
) -> HistoryNetworks:
    """Makes untrained networks; no scales are set from data yet."""
    keys = jax.random.split(key, 6)
    example = spec.observation([jax.ShapeDtypeStruct(part.shape, part.dtype) for part in spec.parts])
    if isinstance(encoder, str):
        network = make_encoder(list(spec.parts), width, key=keys[0])
        out = eqx.filter_eval_shape(network, example)
    else:
        network: Any = call_encoder(encoder, "key, width", keys[0], width)
        unit = "observations, without stream and time axes"
        out = check.eval_network("encoder", network, example, f"with parts {spec.parts}", unit)
        if len(getattr(out, "shape", ())) != 1 or not jnp.issubdtype(out.dtype, jnp.floating):
            raise ValueError(f"encoder: the module must return a vector of floats, got {out}.")
    embedding = Embedding(network, out.shape[0], spec.choices, width, key=keys[1])
    forward, reverse = (LSTM(width, width, key=k) for k in keys[2:4])
    f, g = (make_identity_side(Head(width, k, key=head_key), k) for head_key in keys[4:6])
    return HistoryNetworks(
        embedding, forward, None if tied else reverse, f, None if tied else g, bool(test_actions)
    )


def build_history_networks(
    model: Any, spec: StreamSpec, tied: bool, X: Trajectories, data: StreamData, seed: int
) -> HistoryNetworks:
    """Builds networks for this data: inputs rescaled to it, f and g of mean 0 and small variance on some of it."""
    key = jax.random.key(seed)
    networks = make_networks(
        model.encoder, spec, int(model.width), int(model.k), tied, model.test_actions, key
    )
    rows = sample_observations(X, CALIBRATION_OBSERVATIONS, np.random.default_rng(seed))
    embedding = networks.embedding
    if hasattr(embedding.encoder, "prepared"):
        embedding = eqx.tree_at(lambda e: e.encoder, embedding, embedding.encoder.prepared(rows))
    leaves = zip(jax.tree.leaves(rows), spec.parts, strict=True)
    few = [jnp.asarray(leaf[::CALIBRATION_STRIDE], part.dtype) for leaf, part in leaves]
    embedding = _calibrate(embedding, spec.observation(few))
    networks = eqx.tree_at(lambda n: n.embedding, networks, embedding)
    outputs = encode_pairs(data.source, data.sample(CALIBRATION_STREAMS), networks)
    sides = [
        None if side is None else calibrate_side(side.network, out, INITIAL_DEVIATION)
        for side, out in zip((networks.f, networks.g), outputs, strict=True)
    ]
    return eqx.tree_at(lambda n: (n.f, n.g), networks, tuple(sides), is_leaf=lambda x: x is None)


@eqx.filter_jit
def _calibrate(embedding: Embedding, observations: Any) -> Embedding:
    return embedding.calibrate(observations)


# --- fits ----------------------------------------------------------------------------------------------------------


@dataclass
class StreamFit(Fit):
    """A fit of trajectories in progress, with what identifies its data and where it is saved."""

    spec: StreamSpec
    fingerprint: int  # of the data
    seed: int
    checkpoint: str | os.PathLike[str] | None

    @property
    def program(self) -> tuple[int, str]:
        """Updates done, and the shapes that decide which program trains it: equal ones go on side by side."""
        return int(self.state.step), str((self.spec, jax.tree.map(np.shape, self.data.source.values)))

    def publish(self) -> None:
        """Makes the model fitted as far as training has come, and writes its checkpoint."""
        self.model._publish(self.spec, self.state, self.history, self.fingerprint, self.seed)
        if self.checkpoint is not None:
            self.model.save(self.checkpoint)

    def finish(self) -> None:
        """Replaces the running statistics, which lag, by those of the final networks, and publishes the model."""
        batches = self.data.sample(MEASURED_STREAMS)
        running = compute_statistics(*encode_pairs(self.data.source, batches, self.state.networks))
        self.state = self.state._replace(running=running)
        self.publish()


def init_fits(
    models: Sequence[Any], sets: Sequence[Any], checkpoints: Sequence[Any], names: list[str]
) -> list[StreamFit]:
    """Checks everything, then starts the fits from new networks or from their checkpoints.

    Sets of trajectories that one program is to read get networks with room for the ids and actions of all of them.
    """
    objective, *_ = [model._check_parameters() for model in models]
    sets = [check_trajectories(*each) for each in zip(sets, names, strict=True)]
    specs = [
        make_stream_spec(X, model.n_actions, model.n_ids, name)
        for X, model, name in zip(sets, models, names, strict=True)
    ]
    spec, lead = merge_specs(specs, names), models[0]
    for X, name in zip(sets, names, strict=True):
        if X.shape[1] != sets[0].shape[1]:
            raise ValueError(
                f"{name}: expected {sets[0].shape[1]} steps, as in {names[0]}; got {X.shape[1]}. Pad the shorter at "
                "their ends, with valid False there."
            )
    future = make_future(lead.tests, objective.tied)
    useful = [find_useful_streams(X, future.needs, int(lead.k), n) for X, n in zip(sets, names, strict=True)]
    codes = [0 if c is None else compute_fingerprint(X) for X, c in zip(sets, checkpoints, strict=True)]
    sets = deduplicate_together(sets, most=int(lead.batch_size) * sets[0].shape[1] // 4)
    fits = []
    for model, X, streams, code, checkpoint, name in zip(
        models, sets, useful, codes, checkpoints, names, strict=True
    ):
        before = None
        if checkpoint is not None:
            from derex.estimators.files import load_checkpoint

            argument = "checkpoint" if name == "X" else name.replace("trajectories", "checkpoints")
            before = load_checkpoint(model, checkpoint, code, argument)
        seed = int(check_random_state(model.random_state).randint(2**31 - 1))
        if before is not None and before._seed is not None:
            seed = before._seed
        data = StreamData(X, streams, future, int(model.batch_size), seed)
        if before is None:
            networks = build_history_networks(model, spec, objective.tied, X, data, seed)
            state, history, its_spec = init_fit_state(networks, int(model.k)), [], spec
        else:
            state, history, its_spec = before._state, before._history, before._spec
        fits.append(StreamFit(model, objective, data, state, history, its_spec, code, seed, checkpoint))
    return fits


def run_fits(
    models: list[Any], sets: list[Any], checkpoints: list[Any], watch: Any, names: list[str]
) -> None:
    """Fits each model to its set of trajectories, side by side where one program can train them."""
    if watch is not None and not callable(watch):
        raise TypeError(f"watch: expected a function of four numbers, or None; got {watch!r}.")
    fits = init_fits(models, sets, checkpoints, names)
    for program in sorted({fit.program for fit in fits}):  # resumed fits may be ahead
        group, saved = [fit for fit in fits if fit.program == program], time.monotonic()

        def save() -> None:
            nonlocal saved
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                for fit in group:  # noqa: B023
                    fit.publish()
                saved = time.monotonic()

        run_updates(group, watch, save if group[0].checkpoint is not None else None)
    for fit in fits:
        fit.finish()


def fit_untrained(model: Any, X: Any) -> None:
    """Makes the model as it is before its first update, with the statistics of its initial networks: a control."""
    init_fits([model], [X], [None], ["X"])[0].finish()


@no_type_check  # wrong types are refused by name
def fit_together(
    models: Sequence[Any],
    trajectories: Sequence[Any],
    *,
    checkpoints: Sequence[str | os.PathLike[str]] | None = None,
    watch: Watch | None = None,
) -> None:
    """Fits each `HistoryDeRex` to its own trajectories, all in one program.

    Args:
        models: with the same parameters, except `random_state`.
        trajectories: one set per model, of the same kind and number of steps. Ids and actions are those of any set.
        checkpoints: a file for each, as in `HistoryDeRex.fit`.
        watch: as in `HistoryDeRex.fit`; it gets the means over the models.
    """
    from derex.estimators.files import check_path

    models, trajectories = _check_list("models", models), _check_list("trajectories", trajectories)
    if not models or len(models) != len(trajectories):
        raise ValueError(
            f"models and trajectories: expected as many of each, got {len(models)} and {len(trajectories)}."
        )
    _check_alike(models)
    paths = [None] * len(models) if checkpoints is None else _check_list("checkpoints", checkpoints)
    if len(paths) != len(models):
        raise ValueError(f"checkpoints: expected one for each of {len(models)} models, got {len(paths)}.")
    if checkpoints is not None:
        files = {check_path(f"checkpoints[{n}]", path).resolve() for n, path in enumerate(paths)}
        if len(files) < len(paths):
            raise ValueError(
                f"checkpoints: expected a file of its own for each fit, got {list(map(str, paths))}."
            )
    run_fits(models, trajectories, paths, watch, [f"trajectories[{n}]" for n in range(len(models))])


def _check_list(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | os.PathLike | Trajectories) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name}: expected a list with one entry for each fit, got {type(values).__name__}. For one fit: "
            "HistoryDeRex.fit."
        )
    return list(values)


def _check_alike(models: list[Any]) -> None:
    """Checks for distinct models that differ in `random_state` alone."""
    from derex.estimators.histories import HistoryDeRex

    for number, model in enumerate(models):
        if not isinstance(model, HistoryDeRex):
            raise TypeError(f"models[{number}]: expected a HistoryDeRex, got {type(model).__name__}.")
        if any(model is other for other in models[:number]):
            raise ValueError(
                f"models[{number}] is there twice; make a model for each fit: sklearn.base.clone(model)."
            )
    first, *others = (model.get_params() for model in models)
    for other in others:
        names = sorted(
            name for name in first if first[name] is not other[name] and first[name] != other[name]
        )
        if different := [name for name in names if name != "random_state"]:
            raise ValueError(
                f"models: fits side by side may differ in random_state alone; these differ in {different}."
            )
