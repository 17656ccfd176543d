"""De-Rex in an agent: its bonus from the numbers it tracks, and the decomposition it learns of a known world."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical
from derex.decomposition.exact import decompose, empirical_joint
from derex.envs.registry import make
from derex.envs.wrappers import make_streams
from derex.representations import RepresentationState, RolloutView, Sizes
from derex.representations.base import OptimisedTraining
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.states import StatesConfig
from derex.types import Trajectories

ENV = make("rooms-chain-2")
PARTS = describe_parts(ENV.spec.observation)
A, K = 4, 6


def random_walk(streams: int, length: int, seed: int) -> tuple[Trajectories, np.ndarray]:
    """Steps of the random policy, and the number of the state of each."""
    batch = make_streams(ENV, streams)
    start_key, walk_key = jax.random.split(jax.random.key(seed))
    state, step = batch.reset(start_key)

    def walk(carry: Any, key: Any) -> Any:
        state, step, previous = carry
        action_key, env_key = jax.random.split(key)
        action = jax.random.randint(action_key, (streams,), 0, A)
        after, next_step = batch.step(state, action, env_key)
        encoded = jnp.where(next_step.first[:, None], 0.0, jax.nn.one_hot(action, A))
        return (after, next_step, encoded), (step.observation, previous, step.first, batch.state_ids(state))

    carry = (state, step, jnp.zeros((streams, A)))
    _, seen = jax.jit(lambda carry, keys: jax.lax.scan(walk, carry, keys))(
        carry, jax.random.split(walk_key, length)
    )
    observation, previous, first, ids = (jnp.moveaxis(leaf, 0, 1) for leaf in seen)
    return Trajectories(observation, previous, first, jnp.ones_like(first)), np.asarray(ids)


def view_of(trajectories: Trajectories, width: int = 8) -> RolloutView:
    network = AgentNetwork(AgentConfig(width=width), PARTS, Categorical(A), key=jax.random.key(0))
    return network(trajectories, network.core.initial(len(trajectories.first))).view


# --------------------------------------------------------------------------------- the bonus


@pytest.mark.parametrize("weighted", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["states", "histories", "belief"])
def test_the_bonus_is_the_norm_of_standardised_features(kind: str, weighted: bool) -> None:
    """‖(f - mean)/deviation / max(σ, floor)‖ with the tracked moments and the diagonal of Σ̃, worked out with NumPy."""
    decomposition = DecompositionConfig(
        k=K, weighted=weighted, sigma_floor=0.1, limit=1.5, ritz=False, statistics_decay=0.8
    )
    own = OptimisedTraining(steps=2, streams=6, learning_rate=1e-2)
    forms: dict[str, Any] = {
        "states": StatesConfig(decomposition, training=own, width=8),
        "histories": HistoriesConfig(decomposition, training=own, width=8, tests=2),
        "belief": BeliefConfig(decomposition, tests=2),
    }
    representation = forms[kind].build()
    streams = 6
    walks = [random_walk(streams, 9, seed)[0] for seed in range(2)]
    views = [view_of(walk) for walk in walks]
    state = representation.init(jax.random.key(1), Sizes(PARTS, A, 8, 8, streams))
    observe = jax.jit(representation.observe)
    state, _ = observe(state, views[0], jax.random.key(2))
    after, bonus = observe(state, views[1], jax.random.key(4))
    f = features(kind, after, state.memory, views[1])
    total, weight = after.tracked.running.total, np.asarray(after.tracked.running.weight)
    assert weight == pytest.approx(1 - 0.8**2)  # two unrolls
    mean, variance, sigma = (
        np.asarray(x) / weight for x in (total.f.mean, total.f.variance, np.diag(total.sigma))
    )
    standard = (f - mean) / np.sqrt(variance + 1e-5)
    assert np.max(np.abs(standard)) > 1.5
    standard = np.clip(standard, -1.5, 1.5)
    scaled = standard / np.maximum(sigma, 0.1) if weighted else standard
    np.testing.assert_allclose(bonus, np.linalg.norm(scaled, axis=-1), rtol=2e-3)


def features(kind: str, state: RepresentationState, memory: Any, view: RolloutView) -> np.ndarray:
    """f of every step, one after the other."""
    if kind == "belief":
        return np.asarray(jax.vmap(jax.vmap(state.joint.f))(view.beliefs))
    networks = state.own.networks
    if kind == "states":
        return np.asarray(jax.vmap(jax.vmap(networks.f))(view.trajectories.observation))
    history, out, memory = networks.embed(view.trajectories).history, [], memory.history
    for t in range(history.shape[1]):
        beliefs, memory = networks.beliefs(
            history[:, t : t + 1], view.trajectories.first[:, t : t + 1], memory
        )
        out.append(jax.vmap(networks.f)(beliefs[:, 0]))
    return np.stack(out, axis=1)


# ------------------------------------------------------------------- the decomposition learnt

STREAMS, LENGTH = 256, 33


class Walks:
    """Unrolls of the random policy, one after the other, and what they are worth in the end."""

    def __init__(self, unrolls: int):
        walk, ids = random_walk(STREAMS, (LENGTH - 1) * unrolls + 1, seed=5)
        self.ids, self.first = ids, np.asarray(walk.first)
        self.pieces = [
            jax.tree.map(lambda leaf, i=i: leaf[:, i * (LENGTH - 1) : (i + 1) * (LENGTH - 1) + 1], walk)
            for i in range(unrolls)
        ]

    def joint(self) -> np.ndarray:
        """Of a state and the next, over all transitions within episodes."""
        inside = ~self.first[:, 1:]
        n = ENV.spec.n_states
        return np.asarray(empirical_joint(self.ids[:, :-1][inside], self.ids[:, 1:][inside], n, n))


@pytest.fixture(scope="module")
def walks() -> Walks:
    return Walks(40)


def captured(f: np.ndarray, g: np.ndarray, joint: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ between f and g, each standardised, and the singular values between what they span, whatever its basis."""
    d, d_next = joint.sum(axis=1), joint.sum(axis=0)
    f, g = f - d @ f, g - d_next @ g
    f_unit, g_unit = f / np.sqrt(d @ f**2), g / np.sqrt(d_next @ g**2)

    def white(z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return z @ np.linalg.inv(np.linalg.cholesky(z.T @ (weights[:, None] * z))).T

    between = white(f, d).T @ joint @ white(g, d_next)
    return f_unit.T @ joint @ g_unit, np.linalg.svd(between, compute_uv=False)


@pytest.mark.parametrize(
    ("objective", "rate", "share"),
    [("derex", 1e-3, 0.91), pytest.param("nested", 3e-3, 0.85, marks=pytest.mark.slow)],
)
def test_states_of_a_known_world_are_decomposed(
    objective: str, rate: float, share: float, walks: Walks
) -> None:
    """Under the random policy, 40 unrolls of 8 steps, against the exact decomposition of the walks.

    Both are still on their way (the paper's loss has 94 % of the spectrum after 80 unrolls).
    """
    training = OptimisedTraining(steps=8, streams=STREAMS, learning_rate=rate)
    representation = StatesConfig(
        DecompositionConfig(k=K, objective=objective), training=training, width=64
    ).build()
    joint = walks.joint()
    exact = decompose(joint, K).singular_values
    state = representation.init(jax.random.key(0), Sizes(PARTS, A, 8, 8, STREAMS))
    observations = jax.vmap(lambda s: ENV.observe(s, jax.random.key(0)))(jnp.arange(ENV.spec.n_states))  # type: ignore[attr-defined]

    def measured(state: RepresentationState) -> tuple[np.ndarray, np.ndarray]:
        networks = state.own.networks
        f, g = (np.asarray(jax.vmap(net)(observations), np.float64) for net in (networks.f, networks.g))
        return captured(f, g, joint)

    _, untrained = measured(state)
    observe = jax.jit(representation.observe)
    for number, piece in enumerate(walks.pieces):
        state, _ = observe(state, view_of_own(piece), jax.random.key(number))
    sigma, values = measured(state)
    assert np.sum(values) <= np.sum(exact) + 1e-6  # nothing correlates more than the exact functions
    assert np.sum(values) >= share * np.sum(exact), (values, exact)
    assert abs(np.trace(sigma) - np.sum(values)) <= 0.05 * np.sum(exact)  # little is lost by its basis
    off = np.max(np.abs(sigma - np.diag(np.diag(sigma))))
    assert off < (0.15 if objective == "derex" else 0.7)  # the nested one has not yet told its last two apart
    reported = np.asarray(representation.report(state)["spectrum"])
    assert abs(np.sum(reported) - np.trace(sigma)) <= 0.05 * np.sum(exact)  # as the last unrolls show it
    assert np.sum(untrained) < 0.8 * np.sum(exact), untrained


def view_of_own(trajectories: Trajectories) -> RolloutView:
    """Networks of their own do not look at the agent's."""
    shape = (*trajectories.first.shape, 1)
    return RolloutView(trajectories, None, jnp.zeros(shape))  # type: ignore[arg-type]


@pytest.mark.slow
def test_histories_of_a_known_world_are_decomposed(walks: Walks) -> None:
    """The walk is a Markov chain and is seen: a history is worth its last state, and a test of one step its next. So
    the spectrum to be found is that of states again; 160 steps find more than half of it, 60 % as measured."""
    training = OptimisedTraining(steps=4, streams=STREAMS, learning_rate=1e-3)
    decomposition = DecompositionConfig(k=K)
    representation = HistoriesConfig(decomposition, training=training, width=32, tests=1).build()
    exact = np.sum(decompose(walks.joint(), K).singular_values)
    state = representation.init(jax.random.key(0), Sizes(PARTS, A, 8, 8, STREAMS))
    observe = jax.jit(representation.observe)
    sums = []
    for number, piece in enumerate(walks.pieces):
        state, _ = observe(state, view_of_own(piece), jax.random.key(number))
        sums.append(float(np.sum(representation.report(state)["spectrum"])))
    assert 0.5 * exact < np.mean(sums[-5:]) <= exact, (sums[-5:], exact)
    assert sums[0] < 0.25 * exact, sums
