"""Runs with trained agents in them, without training: checkpoints of random networks."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex._text import to_plain
from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork
from derex.agents.policy import make_policy
from derex.training.checkpoints import Snapshot, write_checkpoint
from derex.training.learner import make_environment
from derex.training.trained import NETWORK, arrays_of, network_shape

SEEDS = (3, 4)
STEPS = (512, 1024)
OWN = "nowhere_to_be_found:Method"  # a method of somebody's own, which must not be imported
RUNS = {"feed-forward": "catch", "lstm": "rooms-chain-2-hidden", "gaussian": "point-mass"}


def fresh_networks(env: str, agent: AgentConfig, seeds: tuple[int, ...], step: int) -> AgentNetwork:
    """One for each seed, side by side, other ones at each step; random numbers throughout."""
    spec = make_environment(env, agent).spec
    leaves, tree = jax.tree.flatten(network_shape(spec.observation, make_policy(spec.action), agent))
    rng = np.random.default_rng(step)
    return jax.tree.unflatten(
        tree, [jnp.asarray(0.3 * rng.normal(size=(len(seeds), *leaf.shape)), leaf.dtype) for leaf in leaves]
    )


def new_run(folder: Path, env: str, core: str) -> Path:
    """A run of two seeds and two checkpoints, as `derex train` leaves it, as far as agents need it."""
    folder.mkdir()
    agent = AgentConfig(core=core, width=8, unroll=4)
    config = {"env": env, "method": OWN, "form": "", "seed": SEEDS[0], "seeds": len(SEEDS)}
    config["agent"] = to_plain(agent, "text")
    content = {"command": "train", "config": config, "versions": {"derex": "0"}, "commit": {"id": "c" * 40}}
    (folder / "config.json").write_text(json.dumps(content))
    lines = [
        {"step": step, "seed": seed, "return": seed + step / 1024, "success": 0.5}
        for step in STEPS
        for seed in SEEDS
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in STEPS:
        arrays = arrays_of(fresh_networks(env, agent, SEEDS, step))
        state = {f"{NETWORK}/{name}": array for name, array in arrays.items()}
        write_checkpoint(
            folder / "checkpoints" / str(step), Snapshot(step, state, {}, {}, {}, -float(step), config)
        )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind of agent; tests leave them as they are."""
    root = tmp_path_factory.mktemp("runs")
    return {
        kind: new_run(root / kind, env, "lstm" if kind == "lstm" else "feed-forward")
        for kind, env in RUNS.items()
    }


@pytest.fixture
def write_run() -> Callable[[Path, str, str], Path]:
    """Writes a run: folder, environment, core."""
    return new_run


@pytest.fixture(scope="module")
def networks() -> Callable[..., AgentNetwork]:
    """The networks that such a run has: environment, agent, seeds, step."""
    return fresh_networks
