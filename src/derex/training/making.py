"""From a config to what it trains."""

from __future__ import annotations

from derex.envs.registry import make
from derex.envs.wrappers import make_streams
from derex.training.config import TrainConfig
from derex.training.loop import Training


def make_training(config: TrainConfig) -> Training:
    """Environment, agent and representation of the config."""
    config = config.resolved()
    streams = make_streams(make(config.env), config.streams)
    return Training(streams, config.representation.build(), config.agent)
