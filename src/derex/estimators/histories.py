"""`HistoryDeRex`: the decomposition of histories and futures (Section 5), with the conventions of `DeRex`.

Shapes: n streams of one step; B streams of T steps; k features.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, no_type_check

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted

from derex.decomposition.bonus import SIGMA_FLOOR
from derex.decomposition.objectives import REFERENCE_LAMBDA_R, Objective
from derex.decomposition.statistics import read_statistics
from derex.estimators import validation as check
from derex.estimators.base import DecompositionEstimator, squared_correlation
from derex.estimators.fitting import FitState, Watch, standardise_side
from derex.estimators.streams import StreamData, check_encoder, encode_pairs, run_fits
from derex.estimators.trajectories import (
    StreamSpec,
    check_like_fitted,
    check_trajectories,
    find_useful_streams,
    trajectories_to_device,
)
from derex.networks.histories import HistoryNetworks, apply_per_step, make_future
from derex.networks.recurrent import LSTMState
from derex.types import NO_ACTION, Trajectories, stack_observations

LEARNING_RATE = 1e-3
BLOCK_STEPS = 1 << 15  # encoded at a time by `transform`


class StepOutput(NamedTuple):
    """The output of `HistoryDeRex.step`."""

    memory: LSTMState  # pass it to the next `step`
    representation: Float[np.ndarray, "n k"]
    bonus: Float[np.ndarray, " n"]


class HistoryDeRex(DecompositionEstimator):
    """Top-k singular functions of the system-dynamics matrix, learnt from trajectories; bonuses from their norm.

    f reads histories h_t = (o_0, a_0, …, o_t) through a forward LSTM, g reads the tests τ = (a_t, o_{t+1}, …, o_{t+L})
    that followed them through a reverse one, and Σ(θ) = E[f(h) g(τ)ᵀ] becomes diagonal and as large as possible
    (Section 5). f(h_t) is then a belief-like summary of all that the history says about the future.

    Args:
        k: number of singular functions.
        objective: "derex" (the paper's loss), "nested" (a true, ordered decomposition) or "laplacian" (graph drawing
            on successive histories; no tests are read).
        encoder: "auto" (by the kinds of the observation's parts: pictures, numbers, ids), an Equinox module mapping one
            observation to a vector, or a function (key, width) -> module.
        width: units of both LSTMs and of every layer.
        tests: L_max: tests end 1 ≤ L ≤ L_max steps after t, L uniform and independent of t, and the last L_max
            histories of an episode stay out of Σ̂. "to-end" is the paper's τ, which runs to the end of the episode; with
            episodes of one length its leading functions are clocks.
        test_actions: whether tests hold the actions taken along them, as in the paper. False leaves observations
            alone: what the policy's futures look like. In a world without chance, actions and observations together
            tell almost everything about t, all σ are near 1, and a few features cannot say which matter most.
        lambda_r: weight of the off-diagonal penalty, or "grow" for 10 (k-1)/15. The paper uses 10.
        batch_size: trajectories per update, half of them for each of the two independent estimates.
        steps: updates in `fit`.
        learning_rate: Adam's, with a cosine decay in `fit`; None: 1e-3.
        weighted_bonus: weights Σ̃⁻² in the bonus (the paper's); False: the plain norm.
        sigma_floor: smaller singular values count as this much in the weights.
        n_actions: how many actions there are, if the training data may not show them all.
        n_ids: the same of observations, or parts of them, that are ids.
        random_state: seed; the same seed and data give the same result.
        verbose: whether to show a progress bar; None: where stderr is a terminal.

    Attributes: `singular_values_`, `sigma_`, `history_`, `n_iter_` as in `DeRex`.

    Example:
        >>> model = HistoryDeRex(k=16).fit(trajectories)  # doctest: +SKIP
        >>> model.transform(trajectories).shape  # (streams, steps, k)  # doctest: +SKIP
        >>> memory = model.initial_memory()  # doctest: +SKIP
        >>> memory, f, bonus = model.step(memory, [observation], [previous_action])  # None at first  # doctest: +SKIP
    """

    min_batch_size = 2

    @no_type_check  # scikit-learn's rule: any value may be set, `fit` refuses it
    def __init__(
        self,
        k: int = 16,
        *,
        objective: str = "derex",
        encoder: Any = "auto",
        width: int = 256,
        tests: int | str = 32,
        test_actions: bool = True,
        lambda_r: float | str = REFERENCE_LAMBDA_R,
        batch_size: int = 128,
        steps: int = 3000,
        learning_rate: float | None = None,
        weighted_bonus: bool = True,
        sigma_floor: float = SIGMA_FLOOR,
        n_actions: int | None = None,
        n_ids: int | None = None,
        random_state: Any = None,
        verbose: bool | None = None,
    ):
        self.k = k
        self.objective = objective
        self.encoder = encoder
        self.width = width
        self.tests = tests
        self.test_actions = test_actions
        self.lambda_r = lambda_r
        self.batch_size = batch_size
        self.steps = steps
        self.learning_rate = learning_rate
        self.weighted_bonus = weighted_bonus
        self.sigma_floor = sigma_floor
        self.n_actions = n_actions
        self.n_ids = n_ids
        self.random_state = random_state
        self.verbose = verbose

    # --- training ------------------------------------------------------------------------------------------------

    @no_type_check  # as in __init__
    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        watch: Watch | None = None,
    ) -> HistoryDeRex:
        """Learns from `derex.types.Trajectories`.

        Args:
            X: the trajectories.
            y: ignored, scikit-learn's convention.
            checkpoint: a file that `load` can read, written every minute and at the end. An interrupted fit resumes
                from it, with the result of an uninterrupted one.
            watch: called as watch(updates done, loss, tr Σ̃, largest off-diagonal) about every hundred updates.
        """
        from derex.estimators.files import check_path

        if checkpoint is not None:
            check_path("checkpoint", checkpoint)
        run_fits([self], [X], [checkpoint], watch, ["X"])
        return self

    # --- reading -------------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Float[np.ndarray, "B T k"]:
        """Computes f(h_t) for each step: mean 0 and variance 1 over training histories, in order of σ; padding 0."""
        check_is_fitted(self)
        X = check_trajectories(X)
        check_like_fitted(X, self._spec)
        rows = max(1, BLOCK_STEPS // X.shape[1])
        parts = []
        for start in range(0, len(X.first), rows):
            block = X.rows(slice(start, start + rows))
            missing = rows - len(block.first) if len(X.first) > rows else 0  # one shape, one compilation
            padded = block.rows(np.r_[np.arange(len(block.first)), np.zeros(missing, int)])
            f, _ = _encode_steps(self._standardised_networks(), trajectories_to_device(padded), None)
            parts.append(np.asarray(f)[: len(block.first)] * block.valid[..., None])
        return np.concatenate(parts)[..., self._order]

    def fit_transform(self, X: Any, y: Any = None) -> Float[np.ndarray, "B T k"]:
        """Calls `fit`, then `transform` of the same trajectories."""
        return self.fit(X).transform(X)

    def bonus(self, X: Any) -> Float[np.ndarray, "B T"]:
        """Computes ‖f(h_t)‖_{Λ̃⁻¹} for each step (Section 5): large where such histories are rare; padding 0."""
        return self.bonus_of(self.transform(X))

    def bonus_of(self, representation: Any) -> Float[np.ndarray, "*batch"]:
        """Computes the bonus of representations returned by `transform` or `step`."""
        check_is_fitted(self)
        self._check_bonus_parameters()
        f = np.asarray(representation, np.float32)
        if f.shape[-1:] != self.singular_values_.shape:
            raise ValueError(
                f"representation: expected {len(self.singular_values_)} columns, got shape {f.shape}."
            )
        return self._norm(f.reshape(-1, f.shape[-1])).reshape(f.shape[:-1])

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
            raise ValueError(
                f"memory: expected what `initial_memory` or `step` of this model gave, {width} units wide; got "
                f"{memory!r}."
            )
        steps = make_step(observation, previous_action, first, len(memory.hidden), self._spec)
        f, memory = _encode_steps(self._standardised_networks(), trajectories_to_device(steps), memory)
        f = np.asarray(f)[:, 0, self._order]
        return StepOutput(memory, f, self._norm(f))

    def score(self, X: Any, y: Any = None) -> float:
        """Computes the squared correlation of these histories and their futures: at most the sum of k squared σ."""
        check_is_fitted(self)
        X = check_trajectories(X)
        check_like_fitted(X, self._spec)
        batch_size = check.check_integer("batch_size", self.batch_size, self.min_batch_size)
        future = make_future(self._trained_as["tests"], self._state.networks.reverse is None)
        useful = find_useful_streams(X, future.needs, int(self._trained_as["k"]))
        data = StreamData(X, useful, future, batch_size, 0)
        return squared_correlation(
            *encode_pairs(data.source, data.sample(len(X.first)), self._state.networks)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the fitted model to one file (no code in it), atomically."""
        from derex.estimators.files import save_histories

        check_is_fitted(self)
        save_histories(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: Any = None) -> HistoryDeRex:
        """Reads a model written by `save`. Models with own modules need them again: `encoder=`."""
        from derex.estimators.files import load_histories

        return load_histories(cls, path, encoder)

    # --- internals -----------------------------------------------------------------------------------------------

    def _check_parameters(self) -> Objective:
        objective = super()._check_parameters()
        check.check_integer("width", self.width, 1)
        check.check_flag("test_actions", self.test_actions)
        for name in ("n_actions", "n_ids"):
            if getattr(self, name) is not None:
                check.check_integer(name, getattr(self, name), 1)
        if isinstance(self.tests, str):
            check.check_choice("tests", self.tests, ("to-end",))
        else:
            check.check_integer("tests", self.tests, 1)
        check_encoder(self.encoder)
        check.check_seed("random_state", self.random_state)
        if self.k > self.width:
            raise ValueError(
                f"k: got {self.k}, but f and g are read off width = {self.width} units, which have no more than that "
                "many singular functions; choose width >= k."
            )
        return objective

    def _default_learning_rate(self) -> float:
        return LEARNING_RATE

    def _publish(
        self,
        spec: StreamSpec,
        state: FitState,
        history: list[tuple[float, ...]],
        fingerprint: int,
        seed: int | None,
    ) -> None:
        self._spec, self._fingerprint, self._seed = spec, fingerprint, seed
        names = ("k", "objective", "encoder", "width", "tests", "test_actions", "lambda_r")
        self._publish_state(state, history, names)

    def _standardised_networks(self) -> HistoryNetworks:
        """Returns the networks without g, with f standardised on the training data."""
        networks = self._state.networks
        f = standardise_side(networks.f, read_statistics(self._state.running).f)
        return eqx.tree_at(
            lambda n: (n.f, n.reverse, n.g), networks, (f, None, None), is_leaf=lambda x: x is None
        )


@eqx.filter_jit
def _encode_steps(
    networks: HistoryNetworks, trajectories: Trajectories, memory: LSTMState | None
) -> tuple[Any, LSTMState]:
    """Computes f of every step; in full precision, so that single steps and batches agree on every device."""
    with jax.default_matmul_precision("highest"):
        embedded = networks.embed(trajectories).history
        beliefs, memory = networks.beliefs(embedded, trajectories.first, memory)
        return apply_per_step(networks.f, beliefs), memory


def make_step(
    observation: Any, previous_action: Any, first: Any, streams: int, spec: StreamSpec
) -> Trajectories:
    """Makes trajectories (n, 1) of one observation and previous action per stream, checked against the fit."""
    list_of_parts = isinstance(spec.outline, dict) and "list" in spec.outline
    if isinstance(observation, list) and not list_of_parts:
        observation = stack_observations("observation", observation) if observation else np.zeros(0)
    steps = Trajectories(
        jax.tree.map(lambda leaf: _add_time_axis("observation", leaf, streams), observation),
        _add_time_axis("previous_action", _fill_actions(previous_action, streams, spec), streams),
        np.zeros((streams, 1), bool)
        if first is None
        else _add_time_axis("first", np.asarray(first, bool), streams),
        np.ones((streams, 1), bool),
    )
    steps = check_trajectories(steps, "")
    check_like_fitted(steps, spec, "")
    return steps


def _add_time_axis(name: str, values: Any, streams: int) -> np.ndarray:
    """Reshapes (n, …) to (n, 1, …)."""
    array = np.asarray(check.convert_rows(name, values))
    if array.ndim == 0 or len(array) != streams:
        came = f"a single {array.dtype}" if array.ndim == 0 else f"shape {array.shape}"
        one = f" The memory is of one stream: [{name}]." if streams == 1 else ""
        raise ValueError(f"{name}: expected one entry for each of {streams} streams, got {came}.{one}")
    return array[:, None]


def _fill_actions(given: Any, streams: int, spec: StreamSpec) -> Any:
    """Replaces every None by the number or vector that stands for no action."""
    if given is None:
        given = [None] * streams
    if not isinstance(given, list | tuple) or all(action is not None for action in given):
        return given
    if spec.actions == "ids":
        return [NO_ACTION if action is None else action for action in given]
    none = np.zeros(spec.choices, np.float32)
    return np.stack([none if action is None else np.ravel(action) for action in given])
