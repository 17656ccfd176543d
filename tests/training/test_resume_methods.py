"""Every method and form, with memory and without: 20 + 20 updates, the second half in a fresh process, against 40.

Some processes train all for 40 and for 20 updates, others go on with the latter; each compiles for itself.
`DEREX_TEST_PLATFORM=cuda` does the same on a GPU, with `deterministic` and networks that keep it busy.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derex.report.runs import load_visits
from derex.representations.methods import METHODS
from derex.training.checkpoints import find_checkpoint, load_arrays
from derex.training.folder import read_metrics

TRAIN = """
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from derex.agents.config import AgentConfig
from derex.representations.methods import find_representation
from derex.representations.base import OptimisedTraining
from derex.training import TrainConfig, train

folder, halves, on_gpu, *cases = Path(sys.argv[1]), sys.argv[2] == "halves", sys.argv[3] == "cuda", *sys.argv[4:]
width, k, streams = (64, 16, 256) if on_gpu else (8, 3, 8)
update = 4 * streams

def small(form):
    sizes = {"width": width, "k": k, "tests": 2, "training": OptimisedTraining(steps=2)}
    if hasattr(form, "decomposition"):
        form = replace(form, decomposition=replace(form.decomposition, k=k))
    return replace(form, **{name: size for name, size in sizes.items() if hasattr(form, name)})

def run(case):
    method, form, core = case.split("/")
    agent = AgentConfig(core=core, width=width, unroll=4, epochs=1, minibatches=2)
    config = TrainConfig("rooms-chain-2", folder, method, form, streams=streams, seeds=2, log_every=7 * update,
                         agent=agent, deterministic=True, representation=small(find_representation(method, form)))
    name = case.replace("/", "-")
    if halves:
        return train(replace(config, steps=40 * update, out=folder / "half" / name))
    train(replace(config, steps=40 * update, out=folder / "whole" / name))
    train(replace(config, steps=20 * update, out=folder / "half" / name))

with ThreadPoolExecutor(2) as pool:
    list(pool.map(run, cases))
"""
FORMS = [f"{method}/{form}" for method, forms in METHODS.items() for form in forms]
CASES = [f"{form}/{core}" for form in FORMS for core in ("lstm", "feed-forward")]
PLATFORM = os.environ.get("DEREX_TEST_PLATFORM", "cpu")
PROCESSES = len(CASES) if PLATFORM == "cuda" else 1
UPDATE = 4 * (256 if PLATFORM == "cuda" else 8)
TIMES = ("steps_per_second", "seconds")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, whole and in halves."""
    folder = tmp_path_factory.mktemp("methods")
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} if PLATFORM == "cpu" else {}
    environment = os.environ | {"JAX_PLATFORMS": PLATFORM} | quick
    for part in ("whole", "halves"):
        command = [sys.executable, "-c", TRAIN, str(folder), part, PLATFORM]
        shares = [CASES[number::PROCESSES] for number in range(PROCESSES)]
        processes = [
            subprocess.Popen([*command, *share], env=environment, stderr=subprocess.PIPE, text=True)
            for share in shares
        ]
        for process in processes:
            _, said = process.communicate()
            assert process.returncode == 0, said
    return folder


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_fresh_process_goes_on_to_the_last_bit(case: str, trained: Path) -> None:
    half, whole = (trained / part / case.replace("/", "-") for part in ("half", "whole"))
    lines = without_times(read_metrics(whole))
    assert [line["step"] // UPDATE for line in lines[::2]] == [7, 14, 21, 28, 35, 40]
    assert without_times(read_metrics(half)) == lines
    ours, theirs = (find_checkpoint(folder) for folder in (half, whole))
    assert ours.manifest["progress"]["iterations"] == theirs.manifest["progress"]["iterations"] == 40
    for part, arrays in load_arrays(theirs).items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(load_arrays(ours)[part][name], array, err_msg=name)
    counts, expected = (load_visits(folder / "visitation.npz").counts for folder in (half, whole))
    np.testing.assert_array_equal(counts, expected)
