"""`HistoryDeRex`: the decomposition of histories and futures (Section 5), with the conventions of `DeRex`.

Shapes: n streams of one step; B streams of T steps; k features.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, no_type_check

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from derex.decomposition.objectives import Objective
from derex.estimators import files, fitting
from derex.estimators import trajectories as streams
from derex.estimators import validation as check
from derex.estimators.data import StreamData, trajectories_to_device
from derex.estimators.networks import build_history_networks
from derex.estimators.reading import Reading
from derex.networks.histories import HistoryNetworks, apply_per_step, make_future
from derex.networks.recurrent import LSTMState
from derex.types import Trajectories

BLOCK_STEPS = 1 << 15  # encoded at a time by `transform`


class StepOutput(NamedTuple):
    """The output of `HistoryDeRex.step`."""

    memory: LSTMState  # pass it to the next `step`
    representation: Float[np.ndarray, "n k"]
    bonus: Float[np.ndarray, " n"]


@dataclass(eq=False, repr=False, kw_only=True)
class HistoryDeRex(fitting.DecompositionEstimator):
    """Top-k singular functions of the system-dynamics matrix, learnt from trajectories; bonuses from their norm.

    f reads histories h_t = (o_0, a_0, …, o_t) through a forward LSTM, g reads the tests τ = (a_t, o_{t+1}, …, o_{t+L})
    that followed them through a reverse one, and Σ(θ) = E[f(h) g(τ)ᵀ] becomes diagonal and as large as possible
    (Section 5). f(h_t) is then a belief-like summary of all that the history says about the future.

    Args:
        k, lambda_r, steps, weighted_bonus, sigma_floor, random_state, verbose: as in `DeRex`.
        objective: as in `DeRex`; "laplacian" is graph drawing on successive histories and reads no tests.
        encoder: "auto" (by the kinds of the observation's parts: pictures, numbers, ids), an Equinox module mapping one
            observation to a vector, or a function (key, width) -> module.
        width: units of both LSTMs and of every layer.
        tests: L_max: tests end 1 ≤ L ≤ L_max steps after t, L uniform and independent of t, and the last L_max
            histories of an episode stay out of Σ̂. "to-end" is the paper's τ, which runs to the end of the episode; with
            episodes of one length its leading functions are clocks.
        test_actions: whether tests hold the actions taken along them, as in the paper. False leaves observations
            alone: what the policy's futures look like. In a world without chance, actions and observations together
            tell almost everything about t, all σ are near 1, and a few features cannot say which matter most.
        batch_size: trajectories per update, half of them for each of the two independent estimates.
        learning_rate: Adam's, with a cosine decay in `fit`; None: 1e-3.
        n_actions: how many actions there are, if the training data may not show them all.
        n_ids: the same of observations, or parts of them, that are ids.

    Attributes: `singular_values_`, `sigma_`, `history_`, `n_iter_` as in `DeRex`.
    """

    encoder: Any = "auto"
    width: int = 256
    tests: int | str = 32
    test_actions: bool = True
    batch_size: int = 128
    n_actions: int | None = None
    n_ids: int | None = None

    min_batch_size = 2
    structural = ("k", "objective", "encoder", "width", "tests", "test_actions", "lambda_r")
    file_format = "derex-history-model"

    @no_type_check  # wrong types are refused by name
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        watch: fitting.Watch | None = None,
    ) -> HistoryDeRex:
        """Learns from `derex.types.Trajectories`.

        Args:
            X: the trajectories.
            y: ignored, scikit-learn's convention.
            checkpoint: a file that `load` can read, written every minute and at the end. An interrupted fit resumes
                from it, with the result of an uninterrupted one.
            watch: called as watch(updates done, loss, tr Σ̃, largest off-diagonal) about every hundred updates.
        """
        run_fits([self], [X], [checkpoint], watch, ["X"])
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "B T k"]:
        """Computes f(h_t) for each step: mean 0 and variance 1 over training histories, in order of σ; padding 0."""
        check_is_fitted(self)
        X = streams.check_trajectories(X, fitted=self._spec)
        rows = max(1, BLOCK_STEPS // X.shape[1])
        parts = []
        for start in range(0, len(X.first), rows):
            block = X.rows(slice(start, start + rows))
            missing = rows - len(block.first) if len(X.first) > rows else 0  # one shape, one compilation
            padded = block.rows(np.r_[np.arange(len(block.first)), np.zeros(missing, int)])
            f, _ = self._encode(padded, None)
            parts.append(f[: len(block.first)] * block.valid[..., None])
        return np.concatenate(parts)

    def fit_transform(self, X: Any, y: Any = None) -> Float[np.ndarray, "B T k"]:
        """Calls `fit`, then `transform` of the same trajectories."""
        return self.fit(X).transform(X)

    def bonus(self, X: Any) -> Float[np.ndarray, "B T"]:
        """Computes ‖f(h_t)‖_{Λ̃⁻¹} for each step (Section 5): large where such histories are rare; padding 0."""
        return self.bonus_of(self.transform(X))

    def bonus_of(self, representation: Any) -> Float[np.ndarray, "*batch"]:
        """Computes the bonus of representations returned by `transform` or `step`."""
        check_is_fitted(self)
        check.check_scalars(self, self.bonus_parameters)
        f, k = np.asarray(representation, np.float32), len(self.singular_values_)
        if f.shape[-1:] != (k,):
            raise ValueError(f"representation: expected {k} columns, got shape {f.shape}.")
        return self._norm(f)

    def initial_memory(self, streams: int = 1) -> LSTMState:
        """Makes the memory of streams before their first step."""
        check_is_fitted(self)
        return self._state.networks.forward.initial(check.check_integer("streams", streams, 1))

    def step(
        self, memory: LSTMState, observation: Any, previous_action: Any, first: Any = None
    ) -> StepOutput:
        """Encodes one more observation of each stream: the same numbers as `transform`, without passing the past.

        Args:
            memory: from `initial_memory` or the last `step`.
            observation: a pytree of arrays (streams, …), or a list with the observation of each stream.
            previous_action: the last action of each stream, (streams,) numbers (none: -1) or (streams, …) vectors
                (none: 0). None, alone or in the place of a stream's action, means no action.
            first: (streams,), where a new episode begins, so that the stream's past is forgotten; None: nowhere.
        """
        check_is_fitted(self)
        width = self._state.networks.forward.width
        if not isinstance(memory, LSTMState) or memory.hidden.shape[1:] != (width,):
            expected = f"what `initial_memory` or `step` of this model gave, {width} units wide"
            raise ValueError(f"memory: expected {expected}; got {memory!r}.")
        steps = streams.make_step(observation, previous_action, first, len(memory.hidden), self._spec)
        f, memory = self._encode(steps, memory)
        return StepOutput(memory, f[:, 0], self._norm(f[:, 0]))

    def score(self, X: Any, y: Any = None) -> float:
        """Computes the squared correlation of these histories and their futures: at most the sum of k squared σ."""
        check_is_fitted(self)
        X = streams.check_trajectories(X, fitted=self._spec)
        batch_size = check.check_integer("batch_size", self.batch_size, self.min_batch_size)
        future = make_future(self._trained_as["tests"], self._state.networks.reverse is None)
        useful = streams.find_useful_streams(X, future.needs, int(self._trained_as["k"]))
        data = StreamData(X, useful, future, batch_size, 0)
        f, g, _ = data.encode_sample(self._state.networks, len(X.first))
        return fitting.squared_correlation(f, g)

    def _check_parameters(self) -> Objective:
        objective = super()._check_parameters()
        given = [name for name in ("n_actions", "n_ids") if getattr(self, name) is not None]
        if isinstance(self.tests, str):
            check.check_choice("tests", self.tests, ("to-end",))
        else:
            given.append("tests")
        check.check_scalars(self, {"width": 1, "test_actions": bool} | dict.fromkeys(given, 1))
        check.check_seed("random_state", self.random_state)
        if self.k > self.width:
            what = f"f and g are read off width = {self.width} units, which span no more functions"
            raise ValueError(f"k: got {self.k}, but {what}; choose width >= k.")
        return objective

    def _check_encoder(self) -> None:
        if isinstance(self.encoder, str):
            check.check_choice("encoder", self.encoder, ("auto",))
        elif not (isinstance(self.encoder, eqx.Module) or callable(self.encoder)):
            expected = "'auto', an Equinox module or a function (key, width) -> module"
            raise TypeError(f"encoder: expected {expected}; got {self.encoder!r}.")

    def _publish_fit(self, fit: StreamFit, reading: Reading | None) -> None:
        self._spec, self._fingerprint, self._seed = fit.spec, fit.fingerprint, fit.seed
        self._publish(fit.state, fit.history, reading)
        self._report(reading)

    def _encode(
        self, X: Trajectories, memory: LSTMState | None
    ) -> tuple[Float[np.ndarray, "B T k"], LSTMState]:
        """Computes the singular functions of every step, and the memory after the last."""
        networks = replace(self._state.networks, f=self._read("f"), reverse=None, g=None)
        f, memory = _encode_steps(networks, trajectories_to_device(X), memory)
        return np.asarray(f), memory


@eqx.filter_jit
def _encode_steps(
    networks: HistoryNetworks, trajectories: Trajectories, memory: LSTMState | None
) -> tuple[Any, LSTMState]:
    """Computes f of every step; in full precision, so that single steps and batches agree on every device."""
    with jax.default_matmul_precision("highest"):
        embedded = networks.embed(trajectories).history
        beliefs, memory = networks.beliefs(embedded, trajectories.first, memory)
        return apply_per_step(networks.f, beliefs), memory


# --- fits ----------------------------------------------------------------------------------------------------------


@dataclass
class StreamFit(fitting.Fit):
    """A fit of trajectories in progress, with what identifies its data and where it is saved."""

    spec: streams.StreamSpec
    fingerprint: int  # of the data
    seed: int
    checkpoint: str | os.PathLike[str] | None

    @property
    def program(self) -> tuple[int, str]:
        """Updates done, and the shapes that decide which program trains it: equal ones go on side by side."""
        return int(self.state.step), str((self.spec, jax.tree.map(np.shape, self.data.source.values)))

    def publish(self, reading: Reading | None = None) -> None:
        """Makes the model fitted as far as training has come, and writes its checkpoint."""
        self.model._publish_fit(self, reading)
        if self.checkpoint is not None:
            self.model.save(self.checkpoint)

    def finish(self) -> None:
        """Publishes the model with the singular functions of its final networks."""
        self.state, reading = self.measure()
        self.publish(reading)
        self.model._warn()


def init_fits(
    models: Sequence[Any], sets: Sequence[Any], checkpoints: Sequence[Any], names: list[str]
) -> list[StreamFit]:
    """Checks everything, then starts the fits from new networks or from their checkpoints.

    Sets of trajectories that one program is to read get networks with room for the ids and actions of all of them.
    """
    objective, *_ = [model._check_parameters() for model in models]
    sets = [streams.check_trajectories(*each) for each in zip(sets, names, strict=True)]
    specs = [
        streams.make_stream_spec(X, model.n_actions, model.n_ids, name)
        for X, model, name in zip(sets, models, names, strict=True)
    ]
    spec, lead = streams.merge_specs(specs, names), models[0]
    for X, name in zip(sets, names, strict=True):
        if X.shape[1] != sets[0].shape[1]:
            expected = f"expected {sets[0].shape[1]} steps, as in {names[0]}; got {X.shape[1]}"
            raise ValueError(f"{name}: {expected}. Pad the shorter at their ends, with valid False there.")
    future = make_future(lead.tests, objective.tied)
    useful = [
        streams.find_useful_streams(X, future.needs, int(lead.k), n) for X, n in zip(sets, names, strict=True)
    ]
    codes = [
        0 if c is None else streams.compute_fingerprint(X) for X, c in zip(sets, checkpoints, strict=True)
    ]
    sets = streams.deduplicate_together(sets, most=int(lead.batch_size) * sets[0].shape[1] // 4)
    fits = []
    for i, (model, X) in enumerate(zip(models, sets, strict=True)):
        before = None
        if checkpoints[i] is not None:
            argument = "checkpoint" if names[i] == "X" else names[i].replace("trajectories", "checkpoints")
            before = files.load_checkpoint(model, checkpoints[i], codes[i], argument)
        seed = int(check_random_state(model.random_state).randint(2**31 - 1))
        if before is not None and before._seed is not None:
            seed = before._seed
        data = StreamData(X, useful[i], future, int(model.batch_size), seed)
        if before is None:
            networks = build_history_networks(model, spec, objective.tied, X, data, seed)
            begun = fitting.init_fit_state(networks, int(model.k)), [], spec
        else:
            begun = before._state, before._history, before._spec
        fits.append(StreamFit(model, objective, data, *begun, codes[i], seed, checkpoints[i]))
    return fits


def run_fits(
    models: list[Any], sets: list[Any], checkpoints: list[Any], watch: Any, names: list[str]
) -> None:
    """Fits each model to its set of trajectories, side by side where one program can train them."""
    if watch is not None and not callable(watch):
        raise TypeError(f"watch: expected a function of four numbers, or None; got {watch!r}.")
    fits = init_fits(models, sets, checkpoints, names)
    for program in sorted({fit.program for fit in fits}):  # resumed fits may be ahead
        group = [fit for fit in fits if fit.program == program]
        fitting.run_updates(group, watch, None if group[0].checkpoint is None else StreamFit.publish)
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
    watch: fitting.Watch | None = None,
) -> None:
    """Fits each `HistoryDeRex` to its own trajectories, all in one program.

    Args:
        models: with the same parameters, except `random_state`.
        trajectories: one set per model, of the same kind and number of steps. Ids and actions are those of any set.
        checkpoints: a file for each, as in `HistoryDeRex.fit`.
        watch: as in `HistoryDeRex.fit`; it gets the means over the models.
    """
    given = {"models": models, "trajectories": trajectories, "checkpoints": checkpoints}
    for name, values in given.items():
        single = isinstance(values, str | os.PathLike | Trajectories) or not isinstance(values, Iterable)
        if single and not (name == "checkpoints" and values is None):
            came = type(values).__name__
            raise TypeError(
                f"{name}: expected a list with one for each fit, got {came}. See HistoryDeRex.fit."
            )
    models, trajectories = list(models), list(trajectories)
    if not models or len(models) != len(trajectories):
        sizes = f"{len(models)} and {len(trajectories)}"
        raise ValueError(f"models and trajectories: expected as many of each, got {sizes}.")
    for number, model in enumerate(models):
        if not isinstance(model, HistoryDeRex):
            raise TypeError(f"models[{number}]: expected a HistoryDeRex, got {type(model).__name__}.")
        if any(model is other for other in models[:number]):
            raise ValueError(f"models[{number}] is there twice; use copies: sklearn.base.clone(model).")
        if different := sorted(files.find_differences(models[0], model) - {"random_state"}):
            raise ValueError(f"models: they may differ in random_state alone; these differ in {different}.")
    paths = [None] * len(models) if checkpoints is None else list(checkpoints)
    if len(paths) != len(models):
        raise ValueError(f"checkpoints: expected one for each of {len(models)} models, got {len(paths)}.")
    if checkpoints is not None:
        found = {files.check_path(f"checkpoints[{n}]", path).resolve() for n, path in enumerate(paths)}
        if len(found) < len(paths):
            raise ValueError(f"checkpoints: expected a file of its own for each fit, got {paths}.")
    run_fits(models, trajectories, paths, watch, [f"trajectories[{n}]" for n in range(len(models))])
