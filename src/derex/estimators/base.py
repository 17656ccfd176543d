"""What every estimator of a decomposition shares: parameters, the history of a fit, and the bonus."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator

from derex.decomposition.bonus import bonus as bonus_of
from derex.decomposition.normalisation import read_statistics
from derex.decomposition.objectives import Objective, make_objective
from derex.estimators import validation as check
from derex.estimators.data import map_rows
from derex.estimators.training import Progress, TrainState


class Decomposition(BaseEstimator, metaclass=ABCMeta):
    """An estimator with the parameters of a decomposition; subclasses say what is decomposed, and how it is read."""

    k: int
    objective: str
    lambda_r: float | str
    batch_size: int
    steps: int
    learning_rate: float | None
    weighted_bonus: bool
    sigma_floor: float

    objectives: tuple[str, ...]  # that a subclass can train
    fewest: int  # smallest batch

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "singular_values_")

    @property
    def _n_features_out(self) -> int:
        return len(self.singular_values_)

    @property
    def history_(self) -> dict[str, Float[np.ndarray, " entries"]]:
        columns = np.asarray(self._history, np.float64).T
        return dict(zip(("step", "loss", "trace", "off_diagonal"), columns, strict=True))

    def _check_parameters(self) -> Objective:
        check.check_integer("k", self.k, 1)
        check.check_integer("batch_size", self.batch_size, self.fewest)
        check.check_integer("steps", self.steps, 1)
        if self.learning_rate is not None:
            check.check_number("learning_rate", self.learning_rate, 0.0, inclusive=False)
        lambda_r = self.lambda_r
        if not isinstance(lambda_r, str):
            lambda_r = check.check_number("lambda_r", lambda_r, 0.0)
        check.check_choice("objective", self.objective, self.objectives)
        self._check_bonus_parameters()
        return make_objective(self.objective, int(self.k), lambda_r)

    def _check_bonus_parameters(self) -> None:
        check.check_flag("weighted_bonus", self.weighted_bonus)
        check.check_number("sigma_floor", self.sigma_floor, 0.0)

    @abstractmethod
    def _default_rate(self) -> float:
        """Learning rate where none is given."""

    def _learning_rate(self) -> float:
        return self._default_rate() if self.learning_rate is None else float(self.learning_rate)

    def _checked(self, step: int, seen: Progress) -> tuple[float, ...]:
        """An entry of the history, if training still makes sense."""
        if not seen.finite:
            raise FloatingPointError(
                f"Training diverged at update {step}: loss {float(seen.loss)}. Lower learning_rate "
                f"(now {self._learning_rate():g}) or check the scale of the inputs."
            )
        return (float(step), float(seen.loss), float(seen.trace), float(seen.off_diagonal))

    def _publish_state(self, state: TrainState, history: list[tuple[float, ...]]) -> None:
        """Set what can be read off the state of a fit."""
        self._state, self._history = state, history
        sigma = np.asarray(read_statistics(state.running).sigma, np.float32)
        self._order = np.argsort(-np.diag(sigma), kind="stable")
        self.sigma_ = sigma[np.ix_(self._order, self._order)]
        self.singular_values_ = np.maximum(np.diag(self.sigma_), 0.0)
        self.n_iter_ = int(state.step)

    def _norm(self, f: Float[np.ndarray, "n k"]) -> Float[np.ndarray, " n"]:
        """‖f‖_{Λ̃⁻¹} of each row."""
        sigma, floor, weighted = self.singular_values_, float(self.sigma_floor), bool(self.weighted_bonus)
        if weighted and floor == 0.0:  # Λ̃⁻¹ is then the pseudo-inverse
            f, sigma = f[:, sigma > 0.0], sigma[sigma > 0.0]
        function: Any = eqx.Partial(bonus_of, sigma=sigma, weighted=weighted, floor=floor)
        return map_rows(function, f, "float32")
