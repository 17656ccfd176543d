"""Training agents: `train(TrainConfig(env="rooms-chain-8", out=Path("runs/a")))`, or `derex train`.

Modules are imported when a name is first used: a progress bar needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derex.training.config import TrainConfig as TrainConfig
    from derex.training.folder import load_config as load_config
    from derex.training.folder import read_metrics as read_metrics
    from derex.training.learner import Training as Training
    from derex.training.learner import make_training as make_training
    from derex.training.metrics import DivergedError as DivergedError
    from derex.training.preflight import Stopped as Stopped
    from derex.training.run import RestoredRun as RestoredRun
    from derex.training.run import TrainResult as TrainResult
    from derex.training.run import restore_run as restore_run
    from derex.training.run import train as train

_MODULES = {
    "config": ("TrainConfig",),
    "folder": ("load_config", "read_metrics"),
    "learner": ("Training", "make_training"),
    "metrics": ("DivergedError",),
    "preflight": ("Stopped",),
    "run": ("RestoredRun", "TrainResult", "restore_run", "train"),
}


def __getattr__(name: str) -> Any:
    """Imports the module that holds the name."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"derex.training.{module}"), name)
    raise AttributeError(f"module 'derex.training' has no attribute {name!r}")
