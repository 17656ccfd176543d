"""Streams of host environments: non-JAX environments that are stepped in worker processes."""

from derex.envs.host.memory import HostSteps, allocate_steps
from derex.envs.host.pool import EpisodeCounter, Pool, PoolOptions, StreamSources, WorkerFailed
from derex.envs.host.tasks import HostTask, JoinedPool, make_host_task, make_host_tasks, open_streams
from derex.envs.host.vector import VectorPool, VectorStreams

__all__ = [
    "EpisodeCounter",
    "HostSteps",
    "HostTask",
    "JoinedPool",
    "Pool",
    "PoolOptions",
    "StreamSources",
    "VectorPool",
    "VectorStreams",
    "WorkerFailed",
    "allocate_steps",
    "make_host_task",
    "make_host_tasks",
    "open_streams",
]
