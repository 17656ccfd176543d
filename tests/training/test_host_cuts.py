"""Episodes that a fault has cut are learnt from as episodes that were truncated where they were last really seen."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import make_policy
from derex.agents.rollout import Rollout
from derex.agents.update import RewardStreams, agent_loss, compute_advantages, init_learner
from derex.envs.host import HostSteps, Pool
from derex.representations.base import NoRepresentation
from derex.training.host import HostActor, join_groups
from derex.types import Discrete, EnvironmentSpec

SPEC = EnvironmentSpec("told", jax.ShapeDtypeStruct((2,), np.float32), Discrete(3), 50)
POLICY = make_policy(SPEC.action)
CONFIG = AgentConfig(width=4, core="lstm", gamma=0.5, gae_lambda=1.0, normalise_advantages=False)
# Steps of two unrolls of 4 transitions: First, C shown again after a fault, T truncated by the environment itself.
TOLD = {
    "cut within an unroll": "F..CF....",
    "cut between two": "F....CF..",
    "cut at the end of one": "F...CF...",
    "truncated": "F.TF.....",
}
N = len(TOLD)


class ToldPool(Pool):
    """Stands for a pool whose streams go as `TOLD` says; what is seen is the number of the stream and of the step."""

    begun = np.ones(N, np.int64)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.spec, self.shortened, self.time = SPEC, np.zeros(N, bool), -1
        self.groups: tuple[int, ...] = (N,)

    def send(self, group: int, actions: Any = None) -> None:
        self.time += 1

    def receive(self, group: int, into: HostSteps, before: Any = None) -> np.ndarray:
        said = np.array([told[self.time] for told in TOLD.values()])
        cut, into.first[...] = said == "C", said == "F"
        into.observation[0][...] = np.stack([np.arange(N), np.full(N, self.time)], axis=1)
        into.reward[...] = np.where(into.first | cut, 0.0, 1.0 + self.time)
        into.discount[...], into.truncated[...] = 1.0, cut | (said == "T")
        if cut.any():
            into.observation[0][cut] = before[0][cut]
        return cut


@pytest.fixture(scope="module")
def network() -> AgentNetwork:
    """One that prefers some actions, which a fresh one does not."""
    fresh = AgentNetwork(CONFIG, describe_parts(SPEC.observation), POLICY, key=jax.random.key(0))
    return jax.tree.map(
        lambda leaf: (
            leaf + 0.3 * jnp.sin(1.0 + jnp.arange(leaf.size)).reshape(leaf.shape)
            if eqx.is_inexact_array(leaf)
            else leaf
        ),
        fresh,
    )


@pytest.fixture(scope="module")
def unrolls(network: AgentNetwork) -> list[Rollout]:
    """The two, of one seed: arrays (B, …)."""
    networks = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, network)
    actor = HostActor(ToldPool(), POLICY, 1)
    keys = jax.random.split(jax.random.key(1), 2)
    gathered = [actor.collect(networks, keys[i : i + 1], 4) for i in range(2)]
    assert (
        sum(each.counts.sums.episodes.sum() for each in gathered) == 1
    )  # those that were cut are not counted
    return [jax.tree.map(lambda leaf: leaf[0], join_groups(SPEC, each.groups)) for each in gathered]


def test_what_never_happened_is_not_valid(unrolls: list[Rollout]) -> None:
    """Neither the action that nobody executed, nor the reset after it; every pair that counts is of two real steps."""
    valid = np.concatenate([rollout.valid for rollout in unrolls], axis=1).astype(int)
    assert [row.tolist() for row in valid] == [
        [1, 1, 0, 0, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 1, 1],
        [1, 1, 1, 0, 0, 1, 1, 1],
        [1, 1, 0, 1, 1, 1, 1, 1],
    ]
    for rollout in unrolls:
        first, seen = rollout.trajectories.first, rollout.trajectories.observation[..., 1]
        np.testing.assert_array_equal(rollout.valid, ~first[:, 1:])  # representations go by `first`
        assert np.all((seen[:, 1:] == seen[:, :-1] + 1) | first[:, 1:])
        np.testing.assert_array_equal(rollout.last[:, :-1], first[:, 2:])


def test_returns_before_a_fault_are_those_of_an_episode_truncated_there(unrolls: list[Rollout]) -> None:
    """By hand, with γ = 1/2: the rewards 2, 3, 4, 5 up to the last real step, and its value."""
    V = jnp.asarray([10.0, 20.0, 40.0, 80.0, 160.0])
    rollout = unrolls[0]._replace(value=jnp.tile(V[:, None], (N, 1, 1)))
    streams = RewardStreams(rollout.reward[..., None], jnp.ones(1), jnp.asarray([CONFIG.gamma]))
    advantages_batch = compute_advantages(CONFIG, rollout, streams)
    within = [2 + (3 + 40 / 2) / 2, 3 + 40 / 2]
    expected = {
        "cut within an unroll": within,
        "cut between two": [
            2 + 3 / 2 + 4 / 4 + 5 / 8 + 160 / 16,
            3 + 4 / 2 + 5 / 4 + 160 / 8,
            4 + 85 / 2,
            85,
        ],
        "cut at the end of one": [2 + 3 / 2 + 4 / 4 + 80 / 8, 3 + 4 / 2 + 80 / 4, 4 + 80 / 2],
        "truncated": within,
    }
    for row, name in enumerate(TOLD):
        returns, steps = expected[name], len(expected[name])
        np.testing.assert_allclose(advantages_batch.targets[row, :steps, 0], returns)
        np.testing.assert_allclose(advantages_batch.advantages[row, :steps], np.array(returns) - V[:steps])


def test_an_action_that_nobody_executed_teaches_nothing(
    unrolls: list[Rollout], network: AgentNetwork
) -> None:
    """Nor does the one that is followed by a reset: with others the loss is the same."""
    rollout, representation = unrolls[0], NoRepresentation().build()
    trained = init_learner(CONFIG, POLICY, network, None).trained
    streams = RewardStreams(rollout.reward[..., None], jnp.ones(1), jnp.asarray([CONFIG.gamma]))

    def loss(rollout: Rollout) -> float:
        advantages_batch = compute_advantages(CONFIG, rollout, streams)
        return float(
            agent_loss(CONFIG, POLICY, representation, trained, advantages_batch, jax.random.key(0))[0]
        )

    others = (rollout.action + 1) % 3
    assert loss(rollout._replace(action=jnp.where(rollout.valid, rollout.action, others))) == loss(rollout)
    assert loss(rollout._replace(action=others)) != loss(rollout)


def test_the_learner_remembers_what_the_actor_did(unrolls: list[Rollout], network: AgentNetwork) -> None:
    """Also after a fault, and from unroll to unroll."""
    for rollout in unrolls:
        seen = network(rollout.trajectories, rollout.memory)
        np.testing.assert_allclose(seen.policy[:, :-1], rollout.policy, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(seen.value, rollout.value, rtol=1e-4, atol=1e-5)
