"""Learning from an unroll, against numbers worked out by hand and by brute force."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork
from derex.agents.policy import Categorical
from derex.agents.rollout import Rollout
from derex.agents.update import (
    SMALLEST_DEVIATION,
    AdvantageBatch,
    Learner,
    RewardStreams,
    agent_loss,
    combine_rewards,
    compute_advantages,
    init_learner,
    update_agent,
)
from derex.networks.encoders import InputSpec
from derex.networks.layers import Fixed, trainable_mask
from derex.representations.base import (
    BonusUse,
    Representation,
    RepresentationState,
    no_auxiliary,
    track_nothing,
)
from derex.types import Trajectories

B, T, A, W = 6, 7, 3, 8
POLICY = Categorical(A)
CONFIG = AgentConfig(width=W, unroll=T, epochs=3, minibatches=3, learning_rate=1e-2)
NOTHING = Representation(
    lambda key, sizes: RepresentationState(None, None, None, None),
    no_auxiliary,
    track_nothing,
    lambda state, view, key: (state, jnp.zeros(view.trajectories.shape)),
    lambda state: {},
)


def random_rollout(seed: int = 0, values: int = 1, observation: Any = None) -> Rollout:
    """Episodes that end in the middle, by termination or truncation, each followed by its reset."""
    rng = np.random.default_rng(seed)
    last = np.zeros((B, T), bool)
    last[rng.random((B, T)) < 0.3] = True
    last[:, 1:] &= ~last[:, :-1]  # what follows a last step is a reset, which ends nothing
    valid = np.concatenate([np.ones((B, 1), bool), ~last[:, :-1]], axis=1)
    terminated = last & (rng.random((B, T)) < 0.5)
    first = np.concatenate([np.zeros((B, 1), bool), ~valid], axis=1)
    action = rng.integers(0, A, (B, T)).astype(np.int32)
    previous = np.concatenate([np.zeros((B, 1, A)), np.eye(A)[action] * valid[..., None]], axis=1)
    observation = rng.normal(size=(B, T + 1, 4)) if observation is None else observation
    arrays = {
        "action": action,
        "policy": rng.normal(size=(B, T, A)),
        "value": rng.normal(size=(B, T + 1, values)),
        "reward": rng.normal(size=(B, T)) * valid,
        "discount": 1.0 - terminated,
    }
    floats = {
        name: jnp.asarray(a, None if a.dtype == np.int32 else jnp.float32) for name, a in arrays.items()
    }
    trajectories = Trajectories(
        jnp.asarray(observation, jnp.float32),
        jnp.asarray(previous, jnp.float32),
        jnp.asarray(first),
        jnp.ones((B, T + 1), bool),
    )
    assert (last & ~terminated).any()
    assert terminated.any()
    memory = network().core.initial(B)
    return Rollout(
        trajectories, memory, last=jnp.asarray(last), valid=jnp.asarray(valid), state_id=None, **floats
    )


def network(values: int = 1) -> AgentNetwork:
    config = AgentConfig(width=W, two_values=values == 2)
    return AgentNetwork(config, (InputSpec((4,)),), POLICY, key=jax.random.key(0))


def learner(config: AgentConfig = CONFIG, joint: Any = None) -> Learner:
    return init_learner(config, POLICY, network(2 if config.two_values else 1), joint)


# ------------------------------------------------------------------------------- the reward


def small_rollout() -> tuple[Rollout, Array]:
    """Two streams of four transitions; the first ends after its second, the second never."""
    rollout = random_rollout()
    reward = jnp.array([[1.0, 3.0, 0.0, 2.0], [0.0, 4.0, 0.0, 2.0]])
    last = jnp.array([[False, True, False, False], [False] * 4])
    valid = jnp.array([[True, True, False, True], [True] * 4])
    cut = rollout._replace(reward=reward, last=last, valid=valid, discount=1.0 - last)
    bonus = jnp.array([[9.0, 1.0, 70.0, 50.0, 3.0], [8.0, 2.0, 4.0, 2.0, 6.0]])
    return cut, bonus


COUNTED = np.array([[True, False, False, True], [True] * 4])
SPREAD_R = np.std([1.0, 3.0, 2.0, 0.0, 4.0, 0.0, 2.0])  # over the valid
SPREAD_B = np.std([1.0, 3.0, 2.0, 4.0, 2.0, 6.0])  # over what counts: of step t + 1, within episodes
BONUS = np.array([[1.0, 70.0, 50.0, 3.0], [2.0, 4.0, 2.0, 6.0]])


@pytest.mark.parametrize("lambda_b", [0.0, 1.0, 0.25])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("two_values", [False, True])
def test_reward_and_bonus_each_in_their_own_units(lambda_b: float, centred: bool, two_values: bool) -> None:
    """Bonus_t is that of step t + 1, 0 at the end of an episode and at its reset; both are divided by deviations."""
    rollout, bonus = small_rollout()
    config = AgentConfig(two_values=two_values, gamma=0.9, bonus_gamma=0.5)
    after, streams = combine_rewards(config, learner(), rollout, bonus, BonusUse(lambda_b, centred))
    extra = BONUS / SPREAD_B
    extra = np.where(COUNTED, extra - (extra[COUNTED].mean() if centred else 0.0), 0.0)
    R = np.asarray(rollout.reward) / SPREAD_R
    if two_values:
        np.testing.assert_allclose(streams.rewards[..., 0], R, rtol=1e-4)
        np.testing.assert_allclose(streams.rewards[..., 1], extra, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(streams.weights, [1.0, lambda_b])
        np.testing.assert_allclose(streams.gammas, [0.9, 0.5])
    else:
        assert streams.rewards.shape == (2, 4, 1)
        np.testing.assert_allclose(streams.rewards[..., 0], R + lambda_b * extra, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(streams.weights, [1.0])
        np.testing.assert_allclose(streams.gammas, [0.9])
    assert after.reward_scale.weight == after.bonus_scale.weight == pytest.approx(0.01)
    assert after.trained is not None


def test_bonuses_that_do_not_count_do_not_count() -> None:
    """Those of step 0, of last steps and of resets may be anything."""
    rollout, bonus = small_rollout()
    other = bonus.at[:, 0].set(-1e6).at[0, 2].set(1e6).at[0, 3].set(np.nan)
    use = BonusUse(1.0, True)
    wanted, found = (combine_rewards(CONFIG, learner(), rollout, each, use) for each in (bonus, other))
    np.testing.assert_array_equal(found[1].rewards, wanted[1].rewards)
    np.testing.assert_array_equal(found[0].bonus_scale, wanted[0].bonus_scale)


def test_rewards_and_bonuses_are_clipped() -> None:
    rollout, bonus = small_rollout()
    config = AgentConfig(reward_clip=0.5, two_values=True)
    _, streams = combine_rewards(config, learner(), rollout, bonus, BonusUse(1.0, True))
    assert np.max(np.abs(streams.rewards)) == 0.5


def test_an_unroll_of_which_nothing_counts_gives_no_bonus() -> None:
    rollout, bonus = small_rollout()
    ended = rollout._replace(last=jnp.ones((2, 4), bool))
    after, streams = combine_rewards(CONFIG, learner(), ended, bonus, BonusUse(1.0, True))
    assert np.all(np.isfinite(streams.rewards))
    assert after.bonus_scale == learner().bonus_scale


# ------------------------------------------------------------------------------- advantages


def brute_force(rollout: Rollout, reward: Any, value: Any, gamma: float, lambda_: float) -> np.ndarray:
    """A_t = Σ_i (γλ)^i δ_{t+i}, to the end of the episode or of the unroll."""
    advantages = np.zeros((B, T))
    for b in range(B):
        for t in range(T):
            weight = 1.0
            for i in range(t, T):
                bootstrap = gamma * float(rollout.discount[b, i]) * float(value[b, i + 1])
                advantages[b, t] += weight * (float(reward[b, i]) + bootstrap - float(value[b, i]))
                if rollout.last[b, i]:
                    break
                weight *= gamma * lambda_
    return advantages


def two_streams(rollout: Rollout) -> RewardStreams:
    rewards = jnp.asarray(np.random.default_rng(5).normal(size=(B, T, 2)), jnp.float32)
    return RewardStreams(rewards, jnp.asarray([1.0, 0.3]), jnp.asarray([0.9, 0.6]))


@pytest.mark.parametrize("normalised", [False, True])
def test_advantages_of_two_streams_of_reward_by_brute_force(normalised: bool) -> None:
    """Bootstrapped where an episode was cut, not where it terminated; each stream with its own γ, values and units."""
    rollout = random_rollout(1, values=2)
    streams = two_streams(rollout)
    config = AgentConfig(gae_lambda=0.8, normalise_advantages=normalised)
    advantages_batch = compute_advantages(config, rollout, streams)
    valid, total = np.asarray(rollout.valid), np.zeros((B, T))
    for v, (gamma, weight) in enumerate(((0.9, 1.0), (0.6, 0.3))):
        advantages = brute_force(rollout, streams.rewards[..., v], rollout.value[..., v], gamma, 0.8)
        np.testing.assert_allclose(
            np.asarray(advantages_batch.targets)[..., v][valid],
            (advantages + rollout.value[:, :-1, v])[valid],
            rtol=1e-4,
            atol=1e-5,
        )
        if normalised:
            advantages = (advantages - advantages[valid].mean()) / max(
                advantages[valid].std(), SMALLEST_DEVIATION
            )
        total = total + weight * advantages
    np.testing.assert_allclose(
        np.asarray(advantages_batch.advantages)[valid], total[valid], rtol=1e-3, atol=1e-4
    )


def test_advantages_that_hardly_vary_stay_small() -> None:
    rollout = random_rollout(1)._replace(value=jnp.zeros((B, T + 1, 1)))
    rewards = jnp.full((B, T, 1), 0.1 * SMALLEST_DEVIATION) * jnp.arange(T)[None, :, None] / T
    advantages_batch = compute_advantages(
        AgentConfig(), rollout, RewardStreams(rewards, jnp.ones(1), jnp.asarray([0.9]))
    )
    advantages = np.asarray(advantages_batch.advantages)[np.asarray(rollout.valid)]
    assert abs(advantages.mean()) < 1e-5
    assert np.max(np.abs(advantages)) < 0.5


def perturbed(tree: Any, where: Array, seed: int = 9) -> Any:
    """Other numbers wherever `where` says; indices stay indices."""
    rng = np.random.default_rng(seed)

    def change(leaf: Array) -> Array:
        mask = where.reshape(*where.shape, *[1] * (leaf.ndim - 2))
        if leaf.dtype == jnp.int32:
            return jnp.where(mask, (leaf + 1) % A, leaf)
        return jnp.where(mask, jnp.asarray(rng.normal(0.0, 100.0, leaf.shape), leaf.dtype), leaf)

    return jax.tree.map(change, tree)


def test_what_a_reset_gives_flows_into_no_advantage() -> None:
    rollout = random_rollout(2, values=2)
    streams = two_streams(rollout)
    invalid = ~rollout.valid
    other = rollout._replace(discount=perturbed(rollout.discount, invalid), last=rollout.last | invalid)
    changed = streams._replace(rewards=perturbed(streams.rewards, invalid))
    valid = np.asarray(rollout.valid)
    wanted, found = compute_advantages(CONFIG, rollout, streams), compute_advantages(CONFIG, other, changed)
    np.testing.assert_allclose(found.advantages[valid], wanted.advantages[valid], rtol=1e-5)
    np.testing.assert_allclose(found.targets[valid], wanted.targets[valid], rtol=1e-5)


# ------------------------------------------------------------------------------- the loss


def random_judged(rollout: Rollout, values: int = 1) -> AdvantageBatch:
    rng = np.random.default_rng(3)
    advantages, targets = rng.normal(size=(B, T)), rng.normal(size=(B, T, values))
    return AdvantageBatch(rollout, jnp.asarray(advantages, jnp.float32), jnp.asarray(targets, jnp.float32))


def test_transitions_out_of_last_steps_influence_nothing() -> None:
    """Neither the loss nor a gradient nor a number to watch."""
    rollout = random_rollout(4)
    advantages_batch, invalid = random_judged(rollout), ~rollout.valid
    assert np.any(invalid)
    changed = {name: perturbed(getattr(rollout, name), invalid) for name in ("action", "policy", "reward")}
    other = AdvantageBatch(
        rollout._replace(**changed),
        perturbed(advantages_batch.advantages, invalid),
        perturbed(advantages_batch.targets, invalid),
    )

    @jax.jit
    def differentiate(trained: Any, advantages_batch: AdvantageBatch) -> Any:
        def loss(trained: Any) -> Any:
            return agent_loss(CONFIG, POLICY, NOTHING, trained, advantages_batch, jax.random.key(0))

        return jax.value_and_grad(loss, has_aux=True)(trained)

    trained = learner().trained
    wanted, found = differentiate(trained, advantages_batch), differentiate(trained, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, wanted)
    within = other._replace(advantages=perturbed(advantages_batch.advantages, rollout.valid))
    assert differentiate(trained, within)[0][0] != wanted[0][0]


def test_a_part_of_an_unroll_in_which_nothing_counts_teaches_nothing() -> None:
    """One transition, and it is a reset: no loss, and no gradient that is not a number."""
    rollout = random_rollout(4)._replace(valid=jnp.zeros((B, T), bool))
    advantages_batch = random_judged(rollout)

    @jax.jit
    def gradient(trained: Any) -> Any:
        return jax.grad(
            lambda t: agent_loss(CONFIG, POLICY, NOTHING, t, advantages_batch, jax.random.key(0))[0]
        )(trained)

    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(gradient(learner().trained)))


def test_the_entropy_of_what_counts_is_rewarded_by_its_weight() -> None:
    """The loss is that of V-MPO less w_H times the mean entropy, worked out from the policy's logits."""
    rollout = random_rollout(4)
    advantages_batch, trained = random_judged(rollout), learner().trained

    def loss(entropy_weight: float) -> float:
        config = replace(CONFIG, entropy_weight=entropy_weight)
        return float(agent_loss(config, POLICY, NOTHING, trained, advantages_batch, jax.random.key(0))[0])

    logits = trained.network(rollout.trajectories, rollout.memory).policy[:, :-1]
    p = np.asarray(jax.nn.softmax(logits, axis=-1), np.float64)
    entropy = np.mean(-np.sum(p * np.log(p), axis=-1)[np.asarray(rollout.valid)])
    assert loss(0.0) - loss(0.5) == pytest.approx(0.5 * entropy, rel=1e-4)


# ------------------------------------------------------------------------------- the updates


def with_numbers() -> Rollout:
    """The first number of every observation is that of its stream."""
    observation = np.random.default_rng(0).normal(size=(B, T + 1, 4))
    observation[..., 0] = np.arange(B)[:, None]
    return random_rollout(6, observation=observation)


def watching() -> Representation:
    """A representation with a part that is trained and a part that is fixed, which counts the streams it is shown."""

    def auxiliary(joint: Any, view: Any, key: Array) -> tuple[Array, Array]:
        numbers = view.trajectories.observation[:, 0, 0].astype(jnp.int32)
        return jnp.sum(joint["moves"] * joint["stays"].value), numbers

    def track(state: RepresentationState, seen: Array) -> RepresentationState:
        return state._replace(tracked=state.tracked.at[seen].add(1))

    return NOTHING._replace(auxiliary=auxiliary, track=track)


@pytest.fixture(scope="module")
def learnt() -> tuple[Learner, Learner, RepresentationState, dict[str, Array]]:
    config = AgentConfig(width=W, epochs=3, minibatches=3, learning_rate=1e-2, dual_rate=50.0)
    joint = {"moves": jnp.ones(2), "stays": Fixed(jnp.full(2, 3.0))}
    before = learner(config, joint)
    state = RepresentationState(joint, None, jnp.zeros(B, jnp.int32), None)
    advantages_batch = random_judged(with_numbers())
    step = jax.jit(
        lambda before, state: update_agent(
            config, POLICY, watching(), before, state, advantages_batch, jax.random.key(1)
        )
    )
    after, state, numbers = step(before, state)
    return before, after, state, numbers


def test_every_stream_is_learnt_from_in_every_epoch(learnt: Any) -> None:
    _, _, state, _ = learnt
    np.testing.assert_array_equal(state.tracked, np.full(B, 3))


def test_updates_move_networks_and_leave_what_is_fixed(learnt: Any) -> None:
    before, after, state, _ = learnt
    mask = jax.tree.leaves(trainable_mask(before.trained.network))
    networks = zip(*(jax.tree.leaves(each.trained.network) for each in (before, after)), strict=True)
    assert [bool(np.any(a != b)) for a, b in networks] == mask
    assert not all(mask)  # encoders hold what is set from data once
    np.testing.assert_array_equal(state.joint["stays"].value, [3.0, 3.0])
    assert np.all(state.joint["moves"] < 1.0)
    np.testing.assert_array_equal(state.joint["moves"], after.trained.joint["moves"])
    assert jax.tree.structure(before) == jax.tree.structure(after)


def test_duals_stay_positive_whatever_their_step(learnt: Any) -> None:
    before, after, _, numbers = learnt
    for dual, old in zip(after.trained.duals, before.trained.duals, strict=True):
        assert np.all(dual > 0.0)
        assert np.all(dual != old)
    assert all(np.all(np.isfinite(value)) for value in numbers.values())


@pytest.mark.slow
def test_learning_makes_good_actions_likelier_within_the_bound() -> None:
    """Forty updates on one unroll where action 2 is good: its probability rises, and KL respects ε_α."""
    rollout = random_rollout(7)
    seen = network()(rollout.trajectories, rollout.memory)
    rollout = rollout._replace(policy=seen.policy[:, :-1])
    advantages = jnp.where(rollout.action == 2, 1.0, -1.0)
    advantages_batch = AdvantageBatch(rollout, advantages, jnp.zeros((B, T, 1)))
    shares, nothing = {}, RepresentationState(None, None, None, None)
    for bound in (1e-3, 1e-1):
        config = AgentConfig(
            width=W, epochs=40, minibatches=1, learning_rate=3e-3, epsilon_kl=bound, dual_rate=0.3
        )
        after, _, _ = jax.jit(
            lambda key, c=config: update_agent(c, POLICY, NOTHING, learner(c), nothing, advantages_batch, key)
        )(jax.random.key(0))
        policy = after.trained.network(rollout.trajectories, rollout.memory).policy[:, :-1]
        shares[bound] = float(jnp.mean(jax.nn.softmax(policy)[..., 2], where=rollout.valid))
        divergence = float(jnp.mean(POLICY.kl(rollout.policy, policy)[..., 0], where=rollout.valid))
        assert divergence < 5 * bound
    before = float(jnp.mean(jax.nn.softmax(rollout.policy)[..., 2], where=rollout.valid))
    assert before + 0.005 < shares[1e-3] < shares[1e-1]
