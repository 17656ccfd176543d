"""Environment steps a second while training, and ratios: ours against a plain feed-forward PPO, methods against V-MPO.

    python benchmarks/agent_speed.py [--env rooms-chain-8] [--streams 256] [--rows RND] [--json FILE]

Agents and representations are those of `derex reproduce exploration`. All in one run, on the same environment with the
same streams, unroll, epochs and mini-batches; parts of the rows are timed in turn, so that what else the machine does
falls on all of them. Absolute numbers mean something on an idle accelerator only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
from plain_ppo import PlainPPO

from derex.envs import make, make_streams
from derex.training.learner import JaxTraining
from derex.training.presets import exploration_agent, exploration_form

ROWS = {
    "V-MPO, feed-forward": ("vmpo", "", "feed-forward"),
    "V-MPO, recurrent": ("vmpo", "", "lstm"),
    "RND, feed-forward": ("rnd", "", "feed-forward"),
    "De-Rex on states, feed-forward": ("derex", "states", "feed-forward"),
    "De-Rex on histories, own encoder, recurrent": ("derex", "histories", "lstm"),
    "De-Rex on the agent's belief, recurrent": ("derex", "belief", "lstm"),
    "Laplacian, recurrent": ("laplacian", "", "lstm"),
}
PPO = "plain PPO, feed-forward"
BASE = {"lstm": "V-MPO, recurrent", "feed-forward": "V-MPO, feed-forward"}


def main() -> None:
    """Print a table; with --json also write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="rooms-chain-8")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", nargs="*", default=[""], help="rows whose names hold one of these words")
    parser.add_argument("--iterations", type=int, default=10, help="of one timed part")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    rows = measure(options)
    for name, rate in rows.items():
        print(f"{name:<46} {rate:12,.0f} steps/s   {rate / rows[PPO]:5.2f} x plain PPO")
    for name, (method, _, core) in ROWS.items():
        base = rows.get(BASE[core])
        if base and name in rows and method != "vmpo":
            print(f"time of {name} over V-MPO's: {base / rows[name]:.2f} x")
    print(f"device: {jax.local_devices()[0].device_kind}")
    if options.json:
        content = {
            "steps_per_second": rows,
            "options": vars(options),
            "device": jax.local_devices()[0].device_kind,
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Median rate of each row."""
    streams = make_streams(make(options.env), options.streams)
    unroll = exploration_agent(options.env).unroll
    ppo = PlainPPO(streams, unroll, options.width)

    def ours(name: str) -> Callable[[], float]:
        method, form, core = ROWS[name]
        agent = exploration_agent(options.env, method, form, width=options.width)
        representation = exploration_form(options.env, method, form, width=options.width).build()
        training = JaxTraining(streams, representation, replace(agent, core=core))
        return runner(training.init_seeds((0,)), training.advance, options.iterations)

    chosen = [name for name in ROWS if any(word in name for word in options.rows)]
    with ThreadPoolExecutor() as pool:  # compilation is most of the wait, and each is by itself
        plain = pool.submit(runner, ppo.begin(jax.random.key(0)), ppo.advance, options.iterations)
        parts = dict(zip(chosen, pool.map(ours, chosen), strict=True))
        parts = {PPO: plain.result()} | parts
    steps = options.iterations * options.streams * unroll
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(options.repeats):
        for name, part in parts.items():
            times[name].append(part())
    return {name: steps / statistics.median(found) for name, found in times.items()}


def runner(state: Any, advance: Callable[[Any, int], Any], iterations: int) -> Callable[[], float]:
    """A function that runs some iterations and says how long they took; compiled already."""
    held = [advance(state, 1)]
    held[0] = jax.block_until_ready(advance(held[0], 1))

    def part() -> float:
        start = time.perf_counter()
        held[0] = jax.block_until_ready(advance(held[0], iterations))
        return time.perf_counter() - start

    return part


if __name__ == "__main__":
    main()
