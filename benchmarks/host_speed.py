"""Steps a second of a host environment: in our workers, with a policy, and training, against bare environments.

    python benchmarks/host_speed.py --env vizdoom:VizdoomMyWayHome-v0 [--streams 8] [--workers 2] [--json FILE]

Bare environments are stepped with random actions in as many processes, which talk to nobody. All in one run, the rows
in turn, so that what else the machine does falls on all of them; each row is the median of its rounds, after one that
does not count. Resets count as steps everywhere.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from derex.agents.config import AgentConfig
from derex.envs.host import HostTask, PoolOptions, empty_steps, host_task, open_streams
from derex.envs.host.stream import episode_seed
from derex.training.config import TrainConfig
from derex.training.host_acting import HostActor, group_sizes
from derex.training.making import make_loop, make_training
from derex.training.mesh import data_mesh, placed
from derex.types import Box, MultiDiscrete

BARE, POOL = "bare environments in processes, random actions", "our workers, no learner, random actions"
POLICY, TRAINING = "our workers, the policy acts, no learner", "our workers, training"


def main() -> None:
    """Print a table; with --json also write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="gymnasium:CartPole-v1")
    parser.add_argument("--method", default="vmpo")
    parser.add_argument("--form", default="")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one round of a row")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    rates = measure(options)
    for name, rate in rates.items():
        print(f"{name:<50} {rate:12,.0f} steps/s   {rate / rates[BARE]:5.2f} x bare")
    device = jax.local_devices()[0].device_kind
    print(f"\n{options.env}, {options.streams} streams, {options.workers} workers; device: {device}")
    if options.json:
        content = {"steps_per_second": rates, "options": vars(options), "device": device}
        Path(options.json).write_text(json.dumps(content, indent=2), encoding="utf-8")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Median rate of each row."""
    task = host_task(options.env)
    with ExitStack() as stack:
        rows = {
            BARE: bare(task, options, stack),
            POOL: random_pool(task, options, stack),
            POLICY: acting(task, options, stack),
            TRAINING: training(options, stack),
        }
        for row in rows.values():
            row()  # first episodes take long to begin: not a part of any rate
        found: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(options.rounds):
            for name, row in rows.items():
                found[name].append(row())
    return {name: statistics.median(rates) for name, rates in found.items()}


def bare(task: HostTask, options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """Processes that wait until they are told to step for so many seconds."""
    context = multiprocessing.get_context("spawn")
    lines = []
    for number in range(options.workers):
        ours, theirs = context.Pipe()
        share = len(range(number, options.streams, options.workers))
        process = context.Process(target=step_bare, args=(task.source, share, number, theirs), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(ours.send, None)
        lines.append(ours)
    for line in lines:
        line.recv()

    def part() -> float:
        for line in lines:
            line.send(options.seconds)
        return sum(line.recv() for line in lines)

    return part


def step_bare(source: Any, share: int, number: int, line: Any) -> None:
    """In a process: all of its environments in turn."""
    environments = [source() for _ in range(share)]
    rng, begun = np.random.default_rng(number), 0
    ended = [True] * share
    line.send("ready")
    while (seconds := line.recv()) is not None:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for place, environment in enumerate(environments):
                if ended[place]:
                    environment.begin(episode_seed((number, place), begun))
                    ended[place], begun = False, begun + 1
                else:
                    step = environment.act(random_actions(environment.spec.action, rng, 1)[0])
                    ended[place] = step.terminated or step.truncated
            steps += share
        line.send(steps / (time.perf_counter() - start))
    for environment in environments:
        environment.close()


def random_pool(task: HostTask, options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """Our workers, in two groups, with random actions."""
    groups = group_sizes(options.streams)
    pool = open_streams(task, [(0, b) for b in range(options.streams)], groups, PoolOptions(options.workers))
    stack.callback(pool.close)
    now = [[empty_steps(task.spec, size) for size in groups] for _ in range(2)]
    rng = np.random.default_rng(0)
    for group in range(len(groups)):
        pool.send(group)

    def part() -> float:
        start, rounds = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            for group, size in enumerate(groups):
                into, before = now[rounds % 2][group], now[1 - rounds % 2][group]
                pool.receive(group, into, before.observation)
                pool.send(group, random_actions(task.spec.action, rng, size))
            rounds += 1
        return rounds * options.streams / (time.perf_counter() - start)

    return part


def acting(task: HostTask, options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """The policy acts, and nobody learns from it."""
    config = train_config(options)
    trained = make_training(config)
    state = trained.begin_seeds(config.all_seeds)
    keys = [(1, b) for b in range(options.streams)]
    pool = open_streams(task, keys, group_sizes(options.streams), PoolOptions(options.workers))
    stack.callback(pool.close)
    actor = HostActor(pool, trained.policy, 1)
    networks, draws = state.learner.trained.network, jax.random.split(jax.random.key(0), 1)
    actor.unroll(networks, draws, options.unroll)

    def part() -> float:
        start, unrolls = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            actor.unroll(networks, jax.random.split(jax.random.key(unrolls), 1), options.unroll)
            unrolls += 1
        return unrolls * config.iteration_steps / (time.perf_counter() - start)

    return part


def training(options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """All of it."""
    config = train_config(options)
    trained = make_training(config)
    loop = make_loop(trained, config, lambda event, **details: print(event, details))
    stack.callback(loop.close)
    mesh = data_mesh()
    held = [placed(trained, trained.begin_seeds(config.all_seeds), mesh)]

    def advance(iterations: int) -> None:
        held[0] = placed(trained, loop.advance(held[0], iterations, False, True), mesh)

    for iterations in (0, 1, 1):  # compiles
        advance(iterations)

    def part() -> float:
        start, iterations = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            advance(1)
            iterations += 1
        return iterations * config.iteration_steps / (time.perf_counter() - start)

    return part


def train_config(options: argparse.Namespace) -> TrainConfig:
    """One seed."""
    agent = AgentConfig(width=options.width, unroll=options.unroll)
    folder = Path(tempfile.gettempdir()) / "derex-not-written"
    return TrainConfig(
        options.env,
        folder,
        method=options.method,
        form=options.form,
        streams=options.streams,
        agent=agent,
        workers=options.workers,
    )


def random_actions(spec: Any, rng: np.random.Generator, n: int) -> np.ndarray:
    """For n streams."""
    if isinstance(spec, Box):
        return rng.uniform(spec.low, spec.high, (n, spec.size)).astype(np.float32)
    if isinstance(spec, MultiDiscrete):
        return rng.integers(0, spec.sizes, (n, len(spec.sizes))).astype(np.int32)
    return rng.integers(0, spec.n, n).astype(np.int32)


if __name__ == "__main__":
    main()
