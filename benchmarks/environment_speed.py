"""Steps a second of environments under random actions: streams side by side, one compiled scan.

    python benchmarks/environment_speed.py                                     # a few of ours and of gymnax
    python benchmarks/environment_speed.py four-rooms navix:Navix-DoorKey-8x8-v0 --streams 1024

Streams as in training: time limits, resets, statistics. Two calls before the clock starts, of the same program; the
median of several afterwards. Numbers of one run on an idle machine can be compared, and others cannot.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import jax
import tyro
from jax import Array

from derex.envs import EpisodeStatistics, make, make_streams
from derex.types import Discrete, MultiDiscrete

USUAL = (
    "four-rooms",
    "rooms-chain-8",
    "deep-sea-20",
    "gymnax:DeepSea-bsuite",
    "xminigrid:MiniGrid-DoorKey-8x8",
)


@dataclass(frozen=True)
class Speed:
    """What is timed."""

    names: tyro.conf.Positional[tuple[str, ...]] = USUAL
    streams: int = 256
    steps: int = 256
    """of each stream in a call"""
    repeats: int = 5


def random_actions(key: Array, streams: EpisodeStatistics) -> Array:
    """One for each stream."""
    action = streams.spec.action
    if isinstance(action, Discrete):
        return jax.random.randint(key, (streams.n,), 0, action.n)
    if isinstance(action, MultiDiscrete):
        sizes = jax.numpy.asarray(action.sizes)
        return jax.random.randint(key, (streams.n, len(action.sizes)), 0, sizes)
    return jax.random.uniform(key, (streams.n, action.size), minval=action.low, maxval=action.high)


def rate(name: str, asked: Speed) -> tuple[float, float]:
    """Steps a second, and seconds until the first call was through."""
    streams = make_streams(make(name), asked.streams)

    def step(state: Any, key: Array) -> tuple[Any, Array]:
        action_key, step_key = jax.random.split(key)
        state, seen = streams.step(state, random_actions(action_key, streams), step_key)
        # the observations have to be made, or the compiler would leave them out
        sums = [leaf.sum(dtype="float32") for leaf in jax.tree.leaves(seen.observation)]
        return state, jax.numpy.stack(sums)

    walk = jax.jit(lambda state, key: jax.lax.scan(step, state, jax.random.split(key, asked.steps)))
    begin = time.perf_counter()
    state, _ = jax.jit(streams.reset)(jax.random.key(0))
    state, _ = jax.block_until_ready(walk(state, jax.random.key(1)))
    first = time.perf_counter() - begin
    state, _ = jax.block_until_ready(walk(state, jax.random.key(2)))
    times = []
    for number in range(asked.repeats):
        begin = time.perf_counter()
        state, _ = jax.block_until_ready(walk(state, jax.random.key(3 + number)))
        times.append(time.perf_counter() - begin)
    return asked.streams * asked.steps / statistics.median(times), first


def main() -> None:
    asked = tyro.cli(Speed)
    print(f"{asked.streams} streams, {asked.steps} steps a call, {jax.local_devices()[0].device_kind}")
    for name in asked.names:
        speed, first = rate(name, asked)
        print(f"{name:<44} {speed:14,.0f} steps/s   first call {first:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
