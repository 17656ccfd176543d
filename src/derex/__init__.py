"""derex: singular-value decomposition of an agent's experience (De-Rex, ICML 2023), in JAX.

`DeRex` learns it from pairs (state, next state), `HistoryDeRex` from trajectories where the state is hidden; `exact`
has the ground truth for enumerable problems. `load_agent` reads what `derex export` wrote.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from derex._version import __version__

if TYPE_CHECKING:
    from derex.decomposition import exact
    from derex.estimators import DeRex, HistoryDeRex
    from derex.training.export import load_agent
    from derex.types import Trajectories

_PLACES = {
    "DeRex": "derex.estimators",
    "HistoryDeRex": "derex.estimators",
    "Trajectories": "derex.types",
    "load_agent": "derex.training.export",
}

__all__ = ["DeRex", "HistoryDeRex", "Trajectories", "__version__", "exact", "load_agent"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `derex --help` does not wait for JAX and scikit-learn."""
    if name == "exact":
        return import_module("derex.decomposition.exact")
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'derex' has no attribute {name!r}")
