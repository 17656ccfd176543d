"""The examples run as they are printed, in small, and their numbers are right."""

import ast
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derex import exact
from derex.agents.config import AgentConfig
from derex.decomposition.scores import captured_energy
from derex.training import TrainConfig, read_metrics, train

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


class Untyped(ast.NodeTransformer):
    """Code without annotations."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> Any:
        node.annotation = None
        return node


def hallway_of(text: str) -> tuple[list[str], str]:
    """The statements of the class, without annotations, and how it is registered."""
    tree = Untyped().visit(ast.parse(text))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (registered,) = (call for call in calls if call.startswith("gymnasium.register("))
    return [ast.unparse(node) for node in found.body], registered


def test_the_documented_gymnasium_environment_is_the_example():
    """docs/environments.md prints the class as it stands in the file, but for its types and for how it is drawn."""
    whole, registered = hallway_of((EXAMPLES / "own_gymnasium.py").read_text(encoding="utf-8"))
    docs = (EXAMPLES.parent / "docs" / "environments.md").read_text(encoding="utf-8")
    start = docs.index("class Hallway(gymnasium.Env)")
    printed, also_registered = hallway_of(docs[start : docs.index("```", start)])
    assert registered == also_registered
    assert printed == [part for part in whole if part in printed]
    drawing = ("metadata = ", "def __init__(self, render_mode=None)", "def render(self)")
    rest = [part for part in whole if part not in printed]
    assert len(rest) == len(drawing)
    assert all(part.startswith(start) for part, start in zip(rest, drawing, strict=True))


@pytest.mark.slow
def test_own_gymnasium_trains(monkeypatch, tmp_path):
    """A few updates, by workers that import the example."""
    pytest.importorskip("gymnasium")
    monkeypatch.syspath_prepend(EXAMPLES)
    agent = AgentConfig(core="feed-forward", width=8, unroll=8, epochs=1, minibatches=1)
    env = "gymnasium:own_gymnasium:Hallway-v0"
    train(TrainConfig(env, tmp_path, "vmpo", steps=4 * 4 * 8, streams=4, workers=1, agent=agent))
    lines = read_metrics(tmp_path)
    assert lines[-1]["step"] == 4 * 4 * 8
    assert np.isfinite([line["value_loss"] for line in lines]).all()
    assert {line["worker_restarts"] for line in lines} == {0}
