"""Steps a second of a host environment: in our workers, with a policy, and training, against bare environments.

    python benchmarks/host_speed.py --env vizdoom:VizdoomMyWayHome-v1 [--streams 8] [--workers 2] [--pin] [--json FILE]
    python benchmarks/host_speed.py --env vizdoom:VizdoomMyWayHome-v1 --rows bare adapters pool

Two rows are of processes that step with random actions and talk to nobody. In one are bare environments: what gymnasium
makes, with the same options as ours (resolution, frames of a step), stepped with samples of its own space; what it
shows is thrown away as it is. In the other are ours, which show what agents see: pictures at our size, words as
numbers. Suites that are not gymnasium's have the second alone. With --pin both stay on a core each, as our workers do.

All in one run, the rows in turn, so that what else the machine does falls on all of them; each row is the median of its
rounds, after one that does not count. Resets count as steps everywhere.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from derex.agents.config import AgentConfig
from derex.envs.host import HostTask, PoolOptions, allocate_steps, make_host_task, open_streams
from derex.envs.host.pool import worker_cores
from derex.envs.host.worker import episode_seed
from derex.training.config import TrainConfig
from derex.training.host import HostActor, group_sizes
from derex.training.learner import data_mesh, make_training, placed
from derex.types import Box, MultiDiscrete

BARE, OURS = "bare environments in processes, random actions", "our adapters in processes, random actions"
POOL = "our workers, no learner, random actions"
DRAWN = 1000  # steps whose actions are drawn at once
BASES = {BARE: "bare", OURS: "adapters"}
POLICY, TRAINING = "our workers, the policy acts, no learner", "our workers, training"
ROWS = {"bare": BARE, "adapters": OURS, "pool": POOL, "policy": POLICY, "training": TRAINING}


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
    parser.add_argument(
        "--pin", action="store_true", help="the processes of the first two rows stay on a core"
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), help="which to measure")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    rates = measure(options)
    for name, rate in rates.items():
        times = [f"{rate / rates[base]:5.2f} x {word}" for base, word in BASES.items() if base in rates]
        print(f"{name:<50} {rate:12,.0f} steps/s   {'   '.join(times)}")
    device = jax.local_devices()[0].device_kind
    print(f"\n{options.env}, {options.streams} streams, {options.workers} workers; device: {device}")
    if options.json:
        content = {"steps_per_second": rates, "options": vars(options), "device": device}
        Path(options.json).write_text(json.dumps(content, indent=2), encoding="utf-8")


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Median rate of each row."""
    task = make_host_task(options.env)
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Callable[[], float]]] = {
            BARE: lambda: processes(task, bare, options, stack),
            OURS: lambda: processes(task, adapted, options, stack),
            POOL: lambda: random_pool(task, options, stack),
            POLICY: lambda: acting(task, options, stack),
            TRAINING: lambda: training(options, stack),
        }
        wanted = [name for word, name in ROWS.items() if word in options.rows]
        rows = {name: makers[name]() for name in wanted if name != BARE or has_bare(task)}
        for row in rows.values():
            row()  # first episodes take long to begin: not a part of any rate
        found: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(options.rounds):
            for name, row in rows.items():
                found[name].append(row())
    return {name: statistics.median(rates) for name, rates in found.items()}


class Player(NamedTuple):
    """An environment that is stepped at random."""

    begin: Callable[[int], Any]
    """with a seed"""
    step: Callable[[], bool]
    """says whether the episode has ended"""
    close: Callable[[], None]


def adapted(source: Any, rng: np.random.Generator) -> Player:
    """One of ours."""
    environment = source()
    drawn = drawn_ahead(environment.spec.action, rng)

    def step() -> bool:
        _, _, terminated, truncated = environment.act(next(drawn))
        return terminated or truncated

    return Player(environment.begin, step, environment.close)


def bare(source: Any, rng: np.random.Generator) -> Player:
    """What is inside of one of ours, made anew without it: it has its time limit, and none of our pictures."""
    import gymnasium

    ours = source()
    inside = gymnasium_of(ours).spec
    ours.close()
    env = gymnasium.make(inside, disable_env_checker=True)
    env.action_space.seed(int(rng.integers(2**31)))

    def step() -> bool:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        return bool(terminated or truncated)

    return Player(lambda seed: env.reset(seed=seed), step, env.close)


def gymnasium_of(environment: Any) -> Any:
    """The environment of gymnasium that ours steps, or none."""
    return getattr(getattr(environment, "_task", environment), "_env", None)


def has_bare(task: HostTask) -> bool:
    """Whether it can be made without us."""
    environment = task.source()
    environment.close()
    return getattr(gymnasium_of(environment), "spec", None) is not None


def processes(
    task: HostTask, make: Callable[..., Player], options: argparse.Namespace, stack: ExitStack
) -> Callable[[], float]:
    """That wait until they are told to step for so many seconds."""
    context = multiprocessing.get_context("spawn")
    lines = []
    cores = worker_cores(options.workers) if options.pin else [None] * options.workers
    for number, core in enumerate(cores):
        ours, theirs = context.Pipe()
        share = len(range(number, options.streams, options.workers))
        work = (partial(make, task.source), share, number, core, theirs)
        process = context.Process(target=step_alone, args=work, daemon=True)
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


def step_alone(make: Callable[..., Player], share: int, number: int, core: int | None, line: Any) -> None:
    """In a process: all of its environments in turn."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    rng, begun = np.random.default_rng(number), 0
    players = [make(rng) for _ in range(share)]
    ended = [True] * share
    line.send("ready")
    while (seconds := line.recv()) is not None:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            for place, player in enumerate(players):
                if ended[place]:
                    player.begin(episode_seed((number, place), begun))
                    ended[place], begun = False, begun + 1
                else:
                    ended[place] = player.step()
            steps += share
        line.send(steps / (time.perf_counter() - start))
    for player in players:
        player.close()


def random_pool(task: HostTask, options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """Our workers, in two groups, with random actions."""
    groups = group_sizes(options.streams)
    pool = open_streams(task, [(0, b) for b in range(options.streams)], groups, PoolOptions(options.workers))
    stack.callback(pool.close)
    now = [[allocate_steps(task.spec, size) for size in groups] for _ in range(2)]
    rng = np.random.default_rng(0)
    drawn = [drawn_ahead(task.spec.action, rng, size) for size in groups]
    for group in range(len(groups)):
        pool.send(group)

    def part() -> float:
        start, rounds = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            for group in range(len(groups)):
                into, before = now[rounds % 2][group], now[1 - rounds % 2][group]
                pool.receive(group, into, before.observation)
                pool.send(group, next(drawn[group]))
            rounds += 1
        return rounds * options.streams / (time.perf_counter() - start)

    return part


def acting(task: HostTask, options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """The policy acts, and nobody learns from it."""
    config = train_config(options)
    trained = make_training(config)
    state = trained.init_seeds(config.all_seeds)
    keys = [(1, b) for b in range(options.streams)]
    pool = open_streams(task, keys, group_sizes(options.streams), PoolOptions(options.workers))
    stack.callback(pool.close)
    actor = HostActor(pool, trained.policy, 1)
    networks, draws = state.learner.trained.network, jax.random.split(jax.random.key(0), 1)
    actor.collect(networks, draws, options.unroll)

    def part() -> float:
        start, unrolls = time.perf_counter(), 0
        while time.perf_counter() - start < options.seconds:
            actor.collect(networks, jax.random.split(jax.random.key(unrolls), 1), options.unroll)
            unrolls += 1
        return unrolls * config.iteration_steps / (time.perf_counter() - start)

    return part


def training(options: argparse.Namespace, stack: ExitStack) -> Callable[[], float]:
    """All of it."""
    config = train_config(options)
    trained = make_training(config)
    loop = trained.open_loop(config, lambda event, **details: print(event, details))
    stack.callback(loop.close)
    mesh = data_mesh()
    held = [placed(trained, trained.init_seeds(config.all_seeds), mesh)]

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


def drawn_ahead(spec: Any, rng: np.random.Generator, *n: int) -> Iterator[np.ndarray]:
    """Random actions, of n streams at a time if it is given; to draw few at a time takes as long as to draw many."""
    while True:
        actions = random_actions(spec, rng, int(np.prod((DRAWN, *n))))
        yield from actions.reshape(DRAWN, *n, *actions.shape[1:])


def random_actions(spec: Any, rng: np.random.Generator, n: int) -> np.ndarray:
    """For n streams."""
    if isinstance(spec, Box):
        return rng.uniform(spec.low, spec.high, (n, spec.size)).astype(np.float32)
    if isinstance(spec, MultiDiscrete):
        return rng.integers(0, spec.sizes, (n, len(spec.sizes))).astype(np.int32)
    return rng.integers(0, spec.n, n).astype(np.int32)


if __name__ == "__main__":
    main()
