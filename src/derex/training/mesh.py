"""Where the arrays of a training state are: streams split over all devices, everything else on each.

Splitting changes where the loop computes and nothing of what: it is written for one global batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from derex.training.loop import Training, TrainState

STREAMS = PartitionSpec(None, "data")  # (seeds, streams, …)


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """A line of devices, all of them unless some are given, along the axis "data"."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), ("data",), (AxisType.Auto,))


def check_streams(streams: int, mesh: Mesh | AbstractMesh) -> None:
    """Refuses streams that cannot be split evenly."""
    if streams % mesh.size:
        raise ValueError(
            f"streams: expected a multiple of the {mesh.size} devices, since they are split evenly; got {streams}."
        )


def placed(training: Training, state: TrainState, mesh: Mesh) -> TrainState:
    """The state of all seeds with its streams split over the mesh; what is there already is not moved.

    What has rows that cannot be split evenly is on every device: states of tasks whose streams are no multiple of them.
    """
    check_streams(training.streams.n, mesh)
    split, whole = NamedSharding(mesh, STREAMS), NamedSharding(mesh, PartitionSpec())

    def over(sharding: NamedSharding, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: sharding if _fits(leaf, sharding) else whole, tree)

    places = over(whole, state)._replace(actor=over(split, state.actor))
    memory = over(split, state.representation.memory)
    places = places._replace(representation=places.representation._replace(memory=memory))
    return jax.device_put(state, places)


def _fits(leaf: Any, sharding: NamedSharding) -> bool:
    """Whether it can be split; states of one task among many have a row for each of that task's streams alone."""
    return sharding.is_fully_replicated or leaf.shape[1] % sharding.mesh.size == 0
