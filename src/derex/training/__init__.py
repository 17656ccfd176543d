"""Training agents: `train(TrainConfig(env="rooms-chain-8", out=Path("runs/a")))`, or `derex train`.

What is asked for is imported when it is asked for: a progress bar needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derex.training.config import TrainConfig
    from derex.training.folder import load_config, read_metrics
    from derex.training.learner import Training, make_training
    from derex.training.metrics import DivergedError
    from derex.training.preflight import Stopped
    from derex.training.run import RestoredRun, TrainResult, restore_run, train

_PLACES = {
    "DivergedError": "metrics",
    "RestoredRun": "run",
    "Stopped": "preflight",
    "TrainConfig": "config",
    "TrainResult": "run",
    "Training": "learner",
    "load_config": "folder",
    "make_training": "learner",
    "read_metrics": "folder",
    "restore_run": "run",
    "train": "run",
}

__all__ = [
    "DivergedError",
    "RestoredRun",
    "Stopped",
    "TrainConfig",
    "TrainResult",
    "Training",
    "load_config",
    "make_training",
    "read_metrics",
    "restore_run",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports the module that holds the name."""
    if name in _PLACES:
        return getattr(import_module(f"derex.training.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'derex.training' has no attribute {name!r}")
