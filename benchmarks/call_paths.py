"""How far code is spread: files on the way of an environment step, and switches between files in a fit.

    python benchmarks/call_paths.py [--verbose]

- *Files of a step*: modules of derex with a function that runs (a) while Python traces one iteration of
  `derex train --method derex --form histories`, which is the program that is compiled, or (b) in the main thread from
  the end of compilation to the first line of metrics.jsonl. *Files of a run* counts (b) until `train()` returns:
  checkpoints, the map of visits and the final scores too.
- *Switches of a fit*: how often the file of the innermost running function of derex changes during one
  `DeRex(encoder="mlp").fit(X, Y)` whose programs are compiled already.

Code that runs because a module is imported does not count. Both are counts of calls, the same on every machine.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import derex
from derex import DeRex, cli

ROOT = Path(derex.__file__).parent
TRAIN = (
    "train --env rooms-chain-2 --method derex --form histories --steps 512 --log-every 256 --streams 16 "
    "--agent.width 8 --agent.unroll 8 --agent.epochs 1 --agent.minibatches 1 --out"
)
Frame = tuple[str, str]  # file and function
Event = tuple[bool, Frame, list[Frame]]  # is it a call, of what, and the frames that run then


def trace(function: Callable[[], Any]) -> list[Event]:
    """Calls and returns of derex's functions while `function` runs, in the main thread, imports left out."""
    events: list[Event] = []
    frames: list[Frame] = []

    def record(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(f"{ROOT}/"):
            return
        this = code.co_filename.removeprefix(f"{ROOT}/"), code.co_name
        if event == "call":
            frames.append(this)
        elif frames:
            frames.pop()
        if not any(name == "<module>" for _, name in (*frames, this)):
            events.append((event == "call", this, frames.copy()))

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return events


def files_of_step(events: list[Event], last: str) -> set[str]:
    """Files below `iterate`, and those called from `compiled` until the function `last` returns."""
    below = {this[0] for _, this, frames in events if any(name == "iterate" for _, name in (*frames, this))}
    calls = [(called, this[1]) for called, this, _ in events]
    start = calls.index((True, "compiled"))
    end = calls.index((False, last), start)
    return below | {this[0] for called, this, _ in events[start:end] if called}


def count_switches(events: list[Event]) -> int:
    """How often the file of the innermost frame changes."""
    files = [frames[-1][0] for _, _, frames in events if frames]
    return 1 + sum(before != after for before, after in pairwise(files))


def show(title: str, files: Iterable[str], verbose: bool) -> None:
    files = sorted(files)
    print(f"{title:<62}{len(files):4d}")
    if verbose:
        print("  " + "\n  ".join(files))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="also list the files")
    verbose = parser.parse_args().verbose

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = trace(lambda: cli.main([*TRAIN.split(), f"{folder}/run"]))
    show("files of an environment step, to a line of metrics.jsonl", files_of_step(run, "logged"), verbose)
    show("files of a run, to the end of train()", files_of_step(run, "train"), verbose)

    x, y = np.random.default_rng(0).normal(size=(2, 500, 4)).astype(np.float32)

    def fit() -> None:
        DeRex(k=2, encoder="mlp", steps=3, batch_size=32, random_state=0, verbose=False).fit(x, y)

    fit()  # compiles
    print(f"{'switches between files of DeRex.fit, compiled':<62}{count_switches(trace(fit)):4d}")


if __name__ == "__main__":
    main()
