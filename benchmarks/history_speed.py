"""Where the time of training on histories goes, and what each trick is worth: ratios side by side in one run.

    python benchmarks/history_speed.py [--width 256] [--batch 128] [--json FILE]

The paper-sized step: 64 + 64 trajectories of 250 steps of four rooms as 30×30×3 pictures, LSTMs of 256 units, k = 64.
Absolute numbers mean something on an idle accelerator only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from derex.decomposition.objectives import make_objective
from derex.envs import FOUR_ROOMS, GridWorld, HiddenAgent
from derex.estimators import HistoryDeRex
from derex.estimators.data import StreamData
from derex.estimators.fitting import cosine_rates, init_fit_state, train_chunk
from derex.estimators.networks import build_history_networks
from derex.estimators.trajectories import check_trajectories, make_stream_spec
from derex.networks import recurrent
from derex.networks.histories import BoundedTests, make_future

UPDATES = 20  # of one timed chunk


def main() -> None:
    """Print a table; with --json also write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--horizon", type=int, default=250)
    parser.add_argument("--tests", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--plain-images", action="store_true", help="also encode every frame of every trajectory"
    )
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    rows = measure(options)
    ours = rows["a training step"]
    for name, seconds in rows.items():
        print(f"{name:<58} {1e3 * seconds:8.2f} ms   {seconds / ours:5.2f} x a step")
    scans = rows["forward scan and its gradient"] + rows["reverse scan and its gradient"]
    print(
        f"\ntrajectories a second: {options.batch / ours:.0f}   in the two LSTM scans: {100 * scans / ours:.0f} %"
    )
    print(f"device: {jax.local_devices()[0].device_kind}")
    if options.json:
        content = {"seconds": rows, "options": vars(options), "device": jax.local_devices()[0].device_kind}
        with open(options.json, "w") as file:
            json.dump(content, file, indent=1)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a training step, of its scans alone, and of the step without each trick."""
    step = lambda **changes: step_seconds(options, **changes)  # noqa: E731
    rows = {"a training step": step()}
    rows["forward scan and its gradient"] = scan_seconds(options, options.horizon + 1, options.batch)
    stretches = (options.horizon + 1 + options.tests - 2) // options.tests + 1
    rows["reverse scan and its gradient"] = scan_seconds(options, options.tests, options.batch * stretches)
    rows["a step, scans differentiated by JAX"] = step(plain_gradient=True)
    rows["a step, tests read in one scan of the whole stream"] = step(unfolded=True)
    rows["a step, scans not unrolled"] = step(unroll=1)
    rows["a step, scans unrolled 8 times"] = step(unroll=8)
    if options.plain_images:
        rows["a step, every frame encoded"] = step(plain_images=True)
    return rows


class UnfoldedTests(BoundedTests):
    """The same ends, read in one backward scan over the stream: the memory is emptied at each end."""

    def read(self, networks: Any, embedded: Any, beliefs: Any, left: Any, phase: Any) -> Any:
        steps = jnp.arange(left.shape[1])
        end = (left == 0) | ((steps - phase[:, None]) % self.longest == 0)
        keep = (~end).astype(jnp.float32).T[::-1]
        inputs = jnp.moveaxis(embedded.test, 1, 0)[::-1]
        out, _ = networks.reverse(inputs, keep, networks.reverse.initial(len(left)))
        return jax.vmap(jax.vmap(networks.g))(jnp.moveaxis(out[::-1], 0, 1))


def step_seconds(
    options: argparse.Namespace,
    plain_gradient: bool = False,
    unfolded: bool = False,
    plain_images: bool = False,
    unroll: int | None = None,
) -> float:
    """One update of the paper-sized problem."""
    env = HiddenAgent(GridWorld(FOUR_ROOMS), 0.3)
    streams = 2 * options.batch
    walk = env.rollout(jax.random.key(0), streams, options.horizon)
    X = env.trajectories(walk)
    if plain_images:
        X = X._replace(observation=np.asarray(env.images(walk)))
    X = check_trajectories(X)
    model = HistoryDeRex(64, width=options.width, tests=options.tests, batch_size=options.batch)
    objective = make_objective("derex", 64, "grow")
    future: Any = UnfoldedTests(options.tests) if unfolded else make_future(options.tests, tied=False)
    data = StreamData(X, np.arange(streams, dtype=np.int32), future, options.batch, 0)
    module: Any = recurrent  # its parts are exchanged for a while
    before = module.scan, module.unroll
    try:
        if unroll is not None:
            module.unroll = lambda: unroll
        if plain_gradient:
            module.scan = plain_scan
        jax.clear_caches()
        networks = build_history_networks(model, make_stream_spec(X, None), objective.tied, X, data, 0)
        state, items = init_fit_state(networks, 64), data.items(0, UPDATES)
        rates = jnp.asarray(cosine_rates(0, UPDATES, UPDATES, 1e-3))
        return (
            seconds_of(lambda: train_chunk(objective, data.source, state, items, rates), options.repeats)
            / UPDATES
        )
    finally:
        module.scan, module.unroll = before


def plain_scan(projected: Any, keep: Any, weight: Any, memory: Any) -> Any:
    """The recurrence without its hand-written gradient."""
    return recurrent._scan_forward(projected, keep, weight, memory)[0]


def scan_seconds(options: argparse.Namespace, steps: int, streams: int) -> float:
    """One LSTM's scan with its gradient, inputs already projected."""
    lstm = recurrent.LSTM(options.width, options.width, key=jax.random.key(0))
    projected = jax.random.normal(jax.random.key(1), (steps, streams, 4 * options.width))
    keep, memory = jnp.ones((steps, streams)), lstm.initial(streams)

    @eqx.filter_jit
    def gradient(projected: Any, weight: Any) -> Any:
        def loss(inputs: Any) -> Any:
            return jnp.sum(jnp.square(recurrent.scan(inputs[0], keep, inputs[1], memory)[0]))

        return jax.grad(loss)((projected, weight))

    return seconds_of(lambda: gradient(projected, lstm.state_weight), options.repeats)


def seconds_of(work: Callable[[], Any], repeats: int) -> float:
    """Best of some repeats, after one that compiles."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
