"""How fast is a fit? Updates per second against a plain JAX loop of the same mathematics, in one run.

    python benchmarks/fit_speed.py                 # ratios (any machine) and rates
    python benchmarks/fit_speed.py --memory        # peak memory of a memory-mapped fit against the size of its data

The plain loop is what a careful person writes first: data on the device, one jitted update that draws two halves
and takes an Adam step on the paper's loss, called from Python. Two kinds of data: four rooms, whose 104 states recur
(derex encodes each distinct observation once, and takes all distinct pairs in every update), and data in which nothing
recurs, where both do the same arithmetic.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from derex import DeRex
from derex.decomposition import DeRexObjective, Half
from derex.decomposition.statistics import init_statistics, update_statistics
from derex.envs import FOUR_ROOMS, GridWorld, frames
from derex.networks import ENCODERS, InputSpec

K, BATCH = 16, 2048
UPDATES = {"tabular": 4000, "mlp": 800, "conv": 200}  # timed; more on an accelerator with --scale


def recurring(encoder: str, n: int = 50_000) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of four rooms."""
    world = GridWorld(FOUR_ROOMS)
    pairs = world.sample_transitions(jax.random.key(0), n)
    states = np.arange(world.n_states, dtype=np.int32)
    seen = {
        "tabular": states,
        "mlp": np.asarray(world.one_hot(states)),
        "conv": np.asarray(frames(world)),
    }[encoder]
    return seen[np.asarray(pairs.state)], seen[np.asarray(pairs.next_state)]


def unrepeated(encoder: str, n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """The same, with noise on every observation; for ids, a walk over as many states as there are rows."""
    if encoder == "tabular":
        x = np.random.default_rng(0).permutation(n).astype(np.int32)
        return x, ((x + 1) % n).astype(np.int32)
    rng = np.random.default_rng(0)
    x, y = recurring(encoder, n)
    if encoder == "conv":
        return tuple((side // 2 + rng.integers(0, 120, side.shape, np.uint8)) for side in (x, y))  # pyrefly: ignore
    return tuple((side + rng.normal(0, 0.1, side.shape)).astype(np.float32) for side in (x, y))  # pyrefly: ignore


def ours(encoder: str, x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Updates per second of DeRex.fit: the time that twice as many updates take longer, compiled."""

    def seconds(updates: int) -> float:
        start = time.perf_counter()
        DeRex(K, encoder=encoder, batch_size=BATCH, steps=updates, random_state=0, novelty=False).fit(x, y)
        return time.perf_counter() - start

    seconds(steps), seconds(2 * steps)  # compile
    return steps / max(seconds(2 * steps) - seconds(steps), 1e-9)


def plain(encoder: str, x: np.ndarray, y: np.ndarray, steps: int) -> float:
    """Updates per second of the plain loop, compiled."""
    kind = ENCODERS[encoder]
    spec = InputSpec(x.shape[1:], int(max(x.max(), y.max())) + 1 if encoder == "tabular" else 0)
    keys = jax.random.split(jax.random.key(0), 3)
    networks = (kind.build(keys[0], spec, K), kind.build(keys[1], spec, K))
    params, static = eqx.partition(networks, eqx.is_inexact_array)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(kind.learning_rate))
    state, objective, half = optimiser.init(params), DeRexObjective(), BATCH // 2
    x_device, y_device = jnp.asarray(x), jnp.asarray(y)

    def loss(params, rows):
        f, g = eqx.combine(params, static)
        f_rows, g_rows = jax.vmap(f)(x_device[rows]), jax.vmap(g)(y_device[rows])
        halves = Half(f_rows[:half], g_rows[:half]), Half(f_rows[half:], g_rows[half:])
        return objective(*halves)

    @jax.jit
    def update(params, state, running, key):
        key, draw = jax.random.split(key)
        rows = jax.random.randint(draw, (BATCH,), 0, len(x))
        (_, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(params, rows)
        change, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, change), state, update_statistics(running, statistics), key

    carry = (params, state, init_statistics(K), keys[2])
    carry = jax.block_until_ready(update(*carry))
    start = time.perf_counter()
    for _ in range(steps):
        carry = update(*carry)
    jax.block_until_ready(carry)
    return steps / (time.perf_counter() - start)


def speed(steps: dict[str, int], repeats: int) -> list[dict[str, float | str]]:
    """Both loops, alternating, best of `repeats`."""
    rows: list[dict[str, float | str]] = []
    for data in (recurring, unrepeated):
        for encoder in ("tabular", "mlp", "conv"):
            x, y = data(encoder)
            rates = [
                (ours(encoder, x, y, steps[encoder]), plain(encoder, x, y, steps[encoder]))
                for _ in range(repeats)
            ]
            fast, slow = max(a for a, _ in rates), max(b for _, b in rates)
            row = {
                "data": data.__name__,
                "encoder": encoder,
                "derex": fast,
                "plain": slow,
                "ratio": fast / slow,
            }
            rows.append(row)
            print(
                f"{data.__name__:11s} {encoder:8s} derex {fast:9.1f}/s  plain {slow:9.1f}/s  ratio {fast / slow:6.2f}"
            )
    return rows


def memory(sizes_mb: list[int]) -> list[dict[str, float]]:
    """Peak private memory of a fit on a memory-mapped array, each size in a process of its own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes_mb:
            command = [sys.executable, __file__, "--child", str(size), folder]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(result.stdout.splitlines()[-1]))
            print(f"data {2 * size:6d} MB on disk: peak private memory {rows[-1]['private_mb']:.0f} MB")
    return rows


def memory_child(size_mb: int, folder: str) -> None:
    """Fit on two memory maps of `size_mb` each, then say how much private memory the process ever had."""
    features = 256
    n = size_mb * (1 << 20) // (4 * features)
    maps = []
    rng = np.random.default_rng(0)
    for name in "xy":
        array = np.lib.format.open_memmap(Path(folder) / f"{name}.npy", "w+", np.float32, (n, features))
        for i in range(0, n, 8192):
            array[i : i + 8192] = rng.standard_normal(array[i : i + 8192].shape, np.float32)
        array.flush()
        maps.append(np.load(Path(folder) / f"{name}.npy", mmap_mode="r"))
        del array
    seen: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.append(private_megabytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    DeRex(8, batch_size=512, steps=100, random_state=0).fit(maps[0], maps[1])
    over.set()
    watcher.join()
    print(json.dumps({"data_mb": 2 * size_mb, "private_mb": max(seen)}))
    for name in "xy":
        os.unlink(Path(folder) / f"{name}.npy")


def private_megabytes() -> float:
    """Anonymous memory of this process now; mapped file pages are the kernel's to drop and do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no RssAnon in /proc/self/status: this benchmark needs Linux")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", action="store_true", help="measure memory instead of speed")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of updates timed")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        memory_child(int(arguments.child[0]), arguments.child[1])
        return
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, k = {K}, batch {BATCH}")
    if arguments.memory:
        rows: list = memory([64, 256, 1024])
    else:
        steps = {name: max(20, int(n * arguments.scale)) for name, n in UPDATES.items()}
        rows = speed(steps, arguments.repeats)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
