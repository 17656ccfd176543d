"""Host environments, which are no JAX: many streams of them in worker processes."""

from derex.envs.host.memory import Steps, empty_steps
from derex.envs.host.pool import EpisodeCounter, Pool, PoolOptions, Streams, WorkerFailed
from derex.envs.host.tasks import HostTask, JoinedPool, host_task, host_tasks, open_streams
from derex.envs.host.vector import VectorPool, VectorStreams

__all__ = [
    "EpisodeCounter",
    "HostTask",
    "JoinedPool",
    "Pool",
    "PoolOptions",
    "Steps",
    "Streams",
    "VectorPool",
    "VectorStreams",
    "WorkerFailed",
    "empty_steps",
    "host_task",
    "host_tasks",
    "open_streams",
]
