"""What a fitted model remembers of what it has seen, so that the unseen gets the largest bonus.

A guard raises the bonus of inputs that training never met and leaves all others exactly as they are.
"""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from derex.decomposition.support import CEILING, Support, raise_bonus, unexplained_share


class Guard(Protocol):
    """Raises the bonus of rows unlike the training data; `features` are those of the rows, where asked for."""

    @property
    def needs_features(self) -> bool: ...

    def __call__(self, rows: np.ndarray, features: np.ndarray | None, bonus: np.ndarray) -> np.ndarray: ...


class NoGuard(NamedTuple):
    """Nothing is known about what was seen: every bonus is the norm."""

    needs_features: bool = False

    def __call__(self, rows: np.ndarray, features: np.ndarray | None, bonus: np.ndarray) -> np.ndarray:
        return bonus


class SeenIds(NamedTuple):
    """Which ids of a table were trained; an id never seen gets √2 times the largest bonus of those seen.

    That is the bonus of a state visited half as often as the rarest one: ‖f(s)‖ grows like d(s)^-½.
    """

    seen: Bool[np.ndarray, " n"]
    largest: Float[np.ndarray, ""]
    needs_features: bool = False

    def __call__(self, rows: np.ndarray, features: np.ndarray | None, bonus: np.ndarray) -> np.ndarray:
        return np.where(self.seen[rows], bonus, np.float32(CEILING) * self.largest).astype(np.float32)


class FeatureSpan(NamedTuple):
    """Features of the training rows; see `derex.decomposition.support`."""

    support: Support
    needs_features: bool = True

    def __call__(self, rows: np.ndarray, features: np.ndarray | None, bonus: np.ndarray) -> np.ndarray:
        assert features is not None
        return raise_bonus(bonus, unexplained_share(features, self.support), self.support)
