"""An exported agent: observations in, actions out, NumPy on both sides; and its two files.

agent.safetensors  the network of one seed, by the paths of its arrays
card.json          environment, actions, options, score, commit, versions; the sha256 of the other file

Both are data: loading them runs no code from them and imports nothing that they name.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from derex.agents.network import AgentNetwork
from derex.agents.policy import make_policy
from derex.agents.rollout import AgentMemory, Decision, act, init_memory
from derex.report.files import DamagedFileError, check_place, read_json, write_together
from derex.training.trained import TrainedAgents, agent_config, arrays_of, load_network, network_shape
from derex.types import ActionSpec, Amount, Box, Discrete, MultiDiscrete, Symbols, Words


class Agent:
    """Acts on observations, one at a time or many side by side.

    Attributes:
        card: what it is: environment, options, score, commit, versions.
        observation: what it sees, a pytree of jax.ShapeDtypeStruct.
        action: what it can do.
    """

    def __init__(self, network: AgentNetwork, observation: Any, action: ActionSpec, card: dict[str, Any]):
        self._network, self._policy = network, make_policy(action)
        self.observation, self.action, self.card = observation, action, card

    def __repr__(self) -> str:
        return f"Agent({self.card.get('environment')!r}, seed={self.card.get('seed')}, step={self.card.get('step')})"

    def initial(self, streams: int = 1) -> AgentMemory:
        """Before the first step of an episode, of one stream or of several side by side."""
        if streams < 1:
            raise ValueError(f"streams: expected at least 1, got {streams}.")
        return init_memory(self._network, self._policy, streams)

    def act(
        self, observation: Any, memory: AgentMemory, first: Any = False, key: PRNGKeyArray | None = None
    ) -> tuple[Any, AgentMemory]:
        """The action, within its bounds, and the memory for the next step.

        Args:
            observation: of one stream, or with their axis in front, of all streams of `memory`.
            memory: from `initial` or the step before.
            first: whether an episode begins here, one for all or one each: what came before is forgotten.
            key: draws the action from the policy; None takes the likeliest.
        """
        one, decision = self._decide(observation, memory, first, key)
        action = np.asarray(decision.action)
        if isinstance(self.action, Box):  # as environments do
            action = np.clip(action, self.action.low, self.action.high)
        return action[0] if one else action, decision.memory

    def parameters(self, observation: Any, memory: AgentMemory, first: Any = False) -> np.ndarray:
        """The numbers that parametrise the policy: logits, or means and raw scales."""
        one, decision = self._decide(observation, memory, first, None)
        numbers = np.asarray(decision.parameters)
        return numbers[0] if one else numbers

    def _decide(self, observation: Any, memory: AgentMemory, first: Any, key: Any) -> tuple[bool, Decision]:
        streams = len(memory.previous_action)
        one, batch = self._batched(observation, streams)
        begins = jnp.asarray(np.broadcast_to(np.asarray(first, bool), (streams,)))
        return one, _act(self._network, self._policy, batch, begins, memory, key)

    def _batched(self, observation: Any, streams: int) -> tuple[bool, Any]:
        """Whether it is of a single stream; and the observation with an axis of streams."""
        expected, structure = jax.tree.flatten(self.observation)
        given = jax.tree.map(np.asarray, observation, is_leaf=lambda node: isinstance(node, list))
        if jax.tree.structure(given) != structure:
            raise ValueError(f"observation: expected the parts {structure}, got {jax.tree.structure(given)}.")
        leaves = jax.tree.leaves(given)
        shapes, wanted = [leaf.shape for leaf in leaves], [spec.shape for spec in expected]
        single = shapes == wanted
        if not single and shapes != [(streams, *shape) for shape in wanted]:
            raise ValueError(
                f"observation: expected shape {_joined(wanted)} of one stream, or as many of them as the memory has "
                f"streams, {streams}, side by side; got {_joined(shapes)}."
            )
        if single and streams != 1:
            raise ValueError(
                f"observation: one came, of shape {_joined(shapes)}, and the memory is of {streams} streams. Use "
                "initial() for one stream."
            )
        leaves = [_cast(leaf, np.dtype(spec.dtype)) for leaf, spec in zip(leaves, expected, strict=True)]
        return single, jax.tree.unflatten(structure, [leaf[None] if single else leaf for leaf in leaves])


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To the type that was trained on; only between floats, since other types mean other scales."""
    floats = values.dtype.kind == dtype.kind == "f"
    if not floats and values.dtype != dtype:
        raise ValueError(
            f"observation: expected {dtype}, as the agent was trained on, got {values.dtype}. Convert it as the "
            "environment does, scale included."
        )
    if floats and not np.all(np.isfinite(values)):
        raise ValueError("observation: expected finite numbers, got NaN or infinity.")
    return values.astype(dtype)


def _joined(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


_act = jax.jit(act, static_argnums=1)

FORMAT = "derex-agent"
VERSION = 1
WEIGHTS, CARD = "agent.safetensors", "card.json"
_PARTS: dict[str, Any] = {"symbols": Symbols, "words": Words, "amount": Amount}
_ACTIONS: dict[str, Any] = {"discrete": Discrete, "multi-discrete": MultiDiscrete, "box": Box}


def export_agent(agents: TrainedAgents, folder: str | Path, seed: int | None = None) -> Path:
    """Writes one seed, by default that with the best final score, into a folder; returns the folder.

    The folder has to be new, empty, or hold an exported agent.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    check_folder(folder)
    seed = agents.best_seed() if seed is None else seed
    weights = save(arrays_of(agents.network_of(seed)), metadata={"format": FORMAT})
    entry = {"file": WEIGHTS, "sha256": hashlib.sha256(weights).hexdigest()}
    card = card_of(agents, seed) | {"weights": entry}
    text = json.dumps(card, indent=1, allow_nan=False) + "\n"
    write_together({folder / WEIGHTS: weights, folder / CARD: text.encode()})  # a folder with a card is whole
    return folder


def load_agent(path: str | Path) -> Agent:
    """The agent that `derex export` wrote into a folder.

        agent = derex.load_agent("model")
        memory = agent.initial()
        action, memory = agent.act(observation, memory, first=True)

    Raises:
        DamagedFileError: the card or the parameters are missing, changed, or do not fit each other.
    """
    from safetensors.numpy import load

    folder = Path(path)
    card = read_json(folder / CARD)
    if card is None or card.get("format") != FORMAT:
        raise DamagedFileError(
            f"path: {folder} holds no agent of `derex export`: its {CARD} is missing or not one."
        )
    if (found := card.get("version")) != VERSION:
        raise DamagedFileError(
            f"path: {folder / CARD} is of format version {found}, this derex reads {VERSION}."
        )
    try:
        weights = (folder / WEIGHTS).read_bytes()
        if hashlib.sha256(weights).hexdigest() != card["weights"]["sha256"]:
            raise ValueError(f"{WEIGHTS} is not the file that {CARD} was written with")
        observation, action = observation_from_plain(card["observation"]), action_from_plain(card["action"])
        shape = network_shape(observation, make_policy(action), agent_config(card["agent"]))
        network = load_network(shape, load(weights), WEIGHTS)
    except Exception as error:  # a damaged card can fail in any way
        raise DamagedFileError(f"path: {folder} is damaged: {error}. Export it again.") from error
    return Agent(network, observation, action, card)


def check_folder(folder: Path) -> None:
    """Refuses a folder that holds anything but an exported agent."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    check_place(folder, "--out")
    if folder.is_dir() and {path.name for path in folder.iterdir()} - {WEIGHTS, CARD}:
        raise FileExistsError(f"--out: {folder} is not empty and holds no exported agent; choose another.")


def card_of(agents: TrainedAgents, seed: int) -> dict[str, Any]:
    """What a user of the agent has to know, and what made it."""
    spec, content = agents.environment.spec, agents.content
    scores = {metric: agents.scores(metric)[seed] for metric in ("return", "success")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "environment": spec.name,
        "observation": observation_to_plain(spec.observation),
        "action": action_to_plain(spec.action),
        "horizon": spec.horizon,
        "success_return": spec.success_return,
        "score": {name: None if math.isnan(value) else value for name, value in scores.items()},
        "step": agents.step,
        "seed": seed,
        "agent": content["config"]["agent"],
        "config": content["config"],
        "versions": content.get("versions"),
        "commit": content.get("commit"),
    }


def observation_to_plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {"dict": {str(name): observation_to_plain(part) for name, part in tree.items()}}
    if isinstance(tree, tuple | list):
        return {"tuple": [observation_to_plain(part) for part in tree]}
    plain = {"shape": list(tree.shape), "dtype": str(np.dtype(tree.dtype))}
    kind = next((name for name, kind in _PARTS.items() if isinstance(tree, kind)), None)
    if kind is None:
        return plain
    return {"kind": kind} | {part.name: getattr(tree, part.name) for part in fields(tree)} | plain


def observation_from_plain(plain: dict[str, Any]) -> Any:
    if "dict" in plain:
        return {name: observation_from_plain(part) for name, part in plain["dict"].items()}
    if "tuple" in plain:
        return tuple(observation_from_plain(part) for part in plain["tuple"])
    shape, dtype = tuple(plain["shape"]), np.dtype(plain["dtype"])
    if "kind" not in plain:
        return jax.ShapeDtypeStruct(shape, dtype)
    kind = _PARTS[plain["kind"]]
    return kind(**_with_tuples({part.name: plain[part.name] for part in fields(kind)} | {"dtype": dtype}))


def action_to_plain(action: ActionSpec) -> dict[str, Any]:
    name = next(name for name, kind in _ACTIONS.items() if isinstance(action, kind))
    return {"kind": name, **action._asdict()}


def action_from_plain(plain: dict[str, Any]) -> ActionSpec:
    return _ACTIONS[plain["kind"]](
        **_with_tuples({name: value for name, value in plain.items() if name != "kind"})
    )


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
