"""derex: singular-value decomposition of an agent's experience (De-Rex, ICML 2023), in JAX.

`DeRex` learns it from pairs (state, next state), `HistoryDeRex` from trajectories where the state is hidden; `exact`
has the ground truth for enumerable problems. `load_agent` reads what `derex export` wrote.
"""

from typing import TYPE_CHECKING, Any

from derex._version import __version__

if TYPE_CHECKING:
    from derex.decomposition import exact
    from derex.estimators import DeRex, HistoryDeRex
    from derex.training.export import load_agent
    from derex.types import Trajectories

__all__ = ["DeRex", "HistoryDeRex", "Trajectories", "__version__", "exact", "load_agent"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `derex --help` does not wait for JAX and scikit-learn."""
    if name in ("DeRex", "HistoryDeRex"):
        from derex import estimators

        return getattr(estimators, name)
    if name == "Trajectories":
        from derex.types import Trajectories

        return Trajectories
    if name == "load_agent":
        from derex.training.export import load_agent

        return load_agent
    if name == "exact":
        from derex.decomposition import exact

        return exact
    raise AttributeError(f"module 'derex' has no attribute {name!r}")
