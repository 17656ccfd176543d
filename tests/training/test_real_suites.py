"""`derex` on environments of real suites, from the command line: trained, continued, evaluated, filmed.

One of JAX, one of pictures in an engine of its own, and two tasks with words for one agent.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from derex.cli import main
from derex.training import read_metrics

CORRIDOR = "xminigrid:MiniGrid-Empty-5x5"
DOOM = "vizdoom:VizdoomMyWayHome-v1@16"  # an action for 16 frames: episodes of 132 steps
TOLD = "babyai:BabyAI-GoToObj-v0,babyai:BabyAI-PickupLoc-v0"
STREAMS, UNROLL = 4, 8
UPDATE = STREAMS * UNROLL
SMALL = ("--agent.width", "8", "--agent.epochs", "1", "--agent.minibatches", "2", "--agent.unroll", str(UNROLL),
         "--representation.width", "8", "--representation.decomposition.k", "3", "--representation.tests", "2",
         "--representation.training.steps", "2")  # fmt: skip


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("env", [CORRIDOR, DOOM, TOLD])
def test_from_the_first_update_to_the_film(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # ViZDoom leaves a file where it is started
    run, film = tmp_path / "run", tmp_path / "film.gif"
    asked = ["train", "--env", env, "--method", "derex", "--streams", str(STREAMS), "--out", str(run), *SMALL]
    lines = ["--log-every", str(2 * UPDATE)]
    assert main([*asked, *lines, "--steps", str(4 * UPDATE)]) == 0
    assert main([*asked, *lines, "--steps", str(8 * UPDATE)]) == 0
    assert [line["step"] // UPDATE for line in read_metrics(run)] == [2, 4, 6, 8]
    for line in read_metrics(run):
        numbers = [line[name] for name in ("value_loss", "entropy", "bonus", "sigma_mean", "off_diagonal")]
        assert np.isfinite(numbers).all()
        assert line["skipped_updates"] == 0
    assert "worker restarted" not in {event["event"] for event in events_of(run)}
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    entry = json.loads((run / "eval.json").read_text())[str(8 * UPDATE)][0]
    assert len(entry["seeds"]) == 1
    assert main(["video", str(run), "--out", str(film)]) == 0
    with Image.open(film) as pictures:
        assert getattr(pictures, "n_frames", 1) > 1
        shown = np.asarray(pictures.convert("RGB"))
    assert shown.std() > 0
    assert not [
        name for name in os.listdir(tmp_path) if name not in ("run", "film.gif") and "vizdoom" not in name
    ]
