"""The examples run as they are printed, in small, and their numbers are right."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np

from derex import exact
from derex.decomposition.scores import captured_energy

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_state_action(capsys):
    """σ and the bonus are near those of the exact dynamics; as few as 20 000 transitions would not do."""
    found = load_example("state_action")["main"](n=100_000, steps=500)
    assert found["largest_error"] < 0.02
    assert found["agreement"] > 0.9
    assert "learnt σ   exact σ" in capsys.readouterr().out


def test_own_encoder(capsys):
    """The loaded model gives the same numbers, and they hold most of what four components can."""
    found = load_example("own_encoder")["main"](n=5_000, steps=200)
    assert found["same"] == 1.0
    assert 2.5 < found["score"] <= 4.0
    assert "the loaded model gives the same numbers: True" in capsys.readouterr().out


def test_own_algorithm(capsys):
    """Against the walk's exact joint: the energy of the functions, σ, and a bonus that rises where walks are rare."""
    example = load_example("own_algorithm")
    found = example["main"](updates=600)
    cells = np.arange(example["CELLS"])
    P = sum(np.eye(len(cells))[np.clip(cells + move, 0, len(cells) - 1)] / 2 for move in (-1, 1))
    joint = exact.joint_matrix(exact.visitation(P, 0, example["LENGTH"]), P)
    truth = exact.decompose(joint, example["K"])
    assert captured_energy(joint, found["f"]) > 0.95
    assert abs(found["sigma"].sum() / truth.singular_values.sum() - 1.0) < 0.05
    assert np.all(np.diff(truth.d) < 0.0)  # the further right, the rarer
    assert found["bonus"][-4:].min() > 2.0 * found["bonus"][:4].max()
    assert "bonus, left to right" in capsys.readouterr().out


def test_own_environment(capsys, monkeypatch):
    """A random walk of 48 steps reaches the end in 20 of 100 episodes; the trained agent nearly always does."""
    monkeypatch.syspath_prepend(EXAMPLES)
    assert load_example("own_environment")["main"](steps=200_000) > 0.9
    assert "episodes that reach the end" in capsys.readouterr().out


def test_the_documented_environment_is_the_example():
    """docs/environments.md prints the class as it stands in the file."""
    text = (EXAMPLES / "own_environment.py").read_text(encoding="utf-8")
    printed = (EXAMPLES.parent / "docs" / "environments.md").read_text(encoding="utf-8")
    body = text[text.index("LENGTH = 12") : text.index("def main")].strip()
    assert body in printed
