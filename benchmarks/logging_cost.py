"""What logging and saving cost: the share of a run's time that is not spent in the compiled loop, and its step rate.

    python benchmarks/logging_cost.py                  # rooms-chain-8, De-Rex, about three minutes on two cores
    python benchmarks/logging_cost.py --seconds 300

The same run three times in one process: quiet (one line, no checkpoint but the first and the last), as `derex train`
does it (a hundred lines, a checkpoint every 300 s), and with ten checkpoints. The share is exact up to the last line of
metrics (the picture at the end is drawn once, however long the run); rates are as noisy as the machine.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import jax
import tyro

from derex.training import TrainConfig, train
from derex.training.run import TrainResult


@dataclass(frozen=True)
class Cost:
    """What is run."""

    env: str = "rooms-chain-8"
    method: str = "derex"
    form: str = "states"
    streams: int = 64
    seconds: float = 60.0
    """about, of each run"""
    rounds: int = 1


def rate(config: TrainConfig, result: TrainResult) -> float:
    """Steps a second over the whole run, logging and saving included."""
    return config.iterations * config.iteration_steps / result.final[0]["seconds"]


def steps_of(config: TrainConfig, seconds: float) -> int:
    """How many steps take about so long."""
    trial = replace(config, steps=20 * config.iteration_steps, out=config.out / "trial", log_every=1e9)
    result = train(trial)
    return max(round(seconds * 20 / result.advancing_seconds), 100) * config.iteration_steps


def main() -> None:
    asked = tyro.cli(Cost)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/programs")  # the same program four times
        base = TrainConfig(asked.env, Path(folder), asked.method, asked.form, streams=asked.streams)
        base = replace(base, steps=steps_of(base, asked.seconds))
        kinds = {
            "quiet": replace(base, log_every=1e12, save_every=1e9),
            "as derex train": base,
            "ten checkpoints": replace(base, save_every=asked.seconds / 10),
        }
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        shares: dict[str, list[float]] = {name: [] for name in kinds}
        for turn in range(asked.rounds):
            for name, config in kinds.items():
                config = replace(config, out=Path(folder) / f"{name}-{turn}")
                result = train(config)
                rates[name].append(rate(config, result))
                shares[name].append(1 - result.advancing_seconds / result.final[0]["seconds"])
    print(
        f"{asked.env}, {asked.method} {asked.form}: {base.iterations} iterations, {asked.rounds} rounds, medians"
    )
    quiet = median(rates["quiet"])
    for name in kinds:
        outside, speed = median(shares[name]), median(rates[name])
        print(
            f"{name:16} {outside:7.2%} outside of the loop   {speed:10,.0f} steps/s   {speed / quiet:.3f} of quiet"
        )


if __name__ == "__main__":
    main()
