"""The Bayes filter against enumeration of all paths, and as what it claims to be: calibrated."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import FOUR_ROOMS, HIDDEN, GridWorld, HiddenAgent, Map, bayes_filter
from derex.types import NO_ACTION

SMALL = Map.from_text("..#\n.>.\n#..", name="seven cells and a one-way door")
STEPS = 4  # the enumeration takes 7^(STEPS + 1) paths


def random_policy(world, seed, concentration=1.0):
    return np.random.default_rng(seed).dirichlet(np.full(4, concentration), size=world.n_states)


def enumerated(transitions, prior, seen, previous_action, policy=None):
    """b_t of one row: the weights of all paths s_0, …, s_t that agree with what was seen, added up by s_t."""
    n = len(prior)
    beliefs = np.zeros((len(seen), n))
    for t in range(len(seen)):
        for path in itertools.product(*(range(n) if s == HIDDEN else [s] for s in seen[: t + 1])):
            weight = prior[path[0]]
            for before, after, action in zip(path, path[1:], previous_action[1 : t + 1], strict=False):
                chosen = 1.0 if policy is None else policy[before, action]
                weight *= chosen * transitions[before, action, after]
            beliefs[t, path[-1]] += weight
    return beliefs / beliefs.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("p", [0.5, 1.0])
@pytest.mark.parametrize(
    ("world", "random_start"),
    [
        (GridWorld(SMALL, slip=0.3), True),
        (GridWorld(SMALL, slip=0.3), False),
        (GridWorld(SMALL), True),
        (GridWorld(SMALL, slip=0.2, start=0).close(np.array([5])), True),
    ],
    ids=["slip, unknown start", "slip, known start", "unknown start", "closed"],
)
def test_beliefs_are_those_of_all_paths(world, random_start, p):
    env = HiddenAgent(world, p, random_start=random_start)
    walk = env.rollout(jax.random.key(1), 6, STEPS)
    seen = np.where(walk.hidden, HIDDEN, walk.state)
    rows = zip(seen, np.asarray(walk.previous_action), strict=True)
    expected = [enumerated(world.transition_tensor(), env.prior, *row) for row in rows]
    np.testing.assert_allclose(env.filter(walk), expected, atol=1e-6)


@pytest.mark.parametrize("concentration", [1.0, 0.05], ids=["spread", "nearly deterministic"])
def test_actions_chosen_by_the_true_state_tell_about_it(concentration):
    """With a policy that reads the state, π(a|s) belongs in the recursion; leaving it out gives other beliefs."""
    world = GridWorld(SMALL, slip=0.3)
    policy = random_policy(world, 0, concentration)
    env = HiddenAgent(world, 0.9, random_start=True)
    walk = env.rollout(jax.random.key(2), 6, STEPS, policy)
    seen = np.where(walk.hidden, HIDDEN, walk.state)
    rows = zip(seen, np.asarray(walk.previous_action), strict=True)
    expected = [enumerated(world.transition_tensor(), env.prior, *row, policy) for row in rows]
    np.testing.assert_allclose(env.filter(walk, policy), expected, atol=1e-5)
    assert np.abs(env.filter(walk) - np.asarray(expected)).max() > 0.1


def test_any_tensor_and_prior():
    """Three states, two actions, nothing of a grid."""
    rng = np.random.default_rng(0)
    transitions, prior = rng.dirichlet(np.ones(3), size=(3, 2)), rng.dirichlet(np.ones(3))
    seen = np.array([[HIDDEN, HIDDEN, 1, HIDDEN, HIDDEN, HIDDEN], [2, HIDDEN, HIDDEN, HIDDEN, 0, HIDDEN]])
    previous = np.array([[NO_ACTION, 1, 0, 1, 1, 0], [NO_ACTION, 0, 0, 1, 0, 1]])
    expected = [enumerated(transitions, prior, *row) for row in zip(seen, previous, strict=True)]
    np.testing.assert_allclose(bayes_filter(transitions, prior, seen, previous), expected, atol=1e-6)


def test_two_steps_by_hand():
    """A corridor of three cells, 'right' with slip 0.4 from an unknown start: up, down and right of a slip are 0.3."""
    world = GridWorld(Map.from_text("..."), slip=0.4)
    seen, previous = np.array([[HIDDEN, HIDDEN]]), np.array([[NO_ACTION, 1]])
    beliefs = bayes_filter(world.transition_tensor(), np.full(3, 1 / 3), seen, previous)
    np.testing.assert_allclose(beliefs[0, 0], [1 / 3] * 3, atol=1e-7)
    # into the left cell: 0.3 by staying, 0.1 from the middle; middle: 0.7 + 0.2 + 0.1; right: 0.7 + 0.9
    np.testing.assert_allclose(beliefs[0, 1], np.array([0.4, 1.0, 1.6]) / 3, atol=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.9])
def test_known_start_without_slip_is_known_for_ever(p):
    """The history determines the state at any p: dead reckoning over the paper's 250 steps."""
    env = HiddenAgent(GridWorld(FOUR_ROOMS), p)
    walk = env.rollout(jax.random.key(0), 16, 250)
    np.testing.assert_array_equal(env.filter(walk), jax.nn.one_hot(walk.state, 104))


def test_what_is_seen_is_known_and_nothing_else_is():
    env = HiddenAgent(GridWorld(FOUR_ROOMS, slip=0.2), 0.6, random_start=True)
    walk = env.rollout(jax.random.key(0), 64, 50)
    beliefs, hidden = np.asarray(env.filter(walk)), np.asarray(walk.hidden)
    assert beliefs.dtype == np.float32
    np.testing.assert_array_equal(beliefs[~hidden], np.eye(104)[np.asarray(walk.state)[~hidden]])
    # no cell has more than two walls, so P(s'|s, a) is at most 0.8 + 0.2 · 2/4, and so is any average of it
    assert beliefs[hidden].max() <= 0.9 + 1e-6
    np.testing.assert_allclose(beliefs.sum(axis=2), 1.0, atol=1e-6)


def test_one_way_doors_keep_the_belief_on_their_far_side():
    world = GridWorld(Map.from_text("..>.."), slip=1.0)
    seen = np.full((1, 40), HIDDEN)
    seen[0, 0] = 3
    beliefs = bayes_filter(world.transition_tensor(), np.full(5, 0.2), seen, np.zeros((1, 40), int))
    assert np.all(beliefs[0, :, :3] == 0)
    np.testing.assert_allclose(beliefs[0, -1, 3:], 0.5, atol=1e-5)


def z_score(errors):
    """Mean error over its standard error; episodes (rows) are independent, steps within one are not."""
    per_episode = np.asarray(errors).mean(axis=1)
    return per_episode.mean() / (per_episode.std(ddof=1) / np.sqrt(len(per_episode)))


def calibration(beliefs, state):
    """z-scores of two differences whose expectations are exactly 0 if s_t is a draw from b_t.

    E[b(s)] = E[Σ b²]: the mass on the true state is what the belief itself expects (equivalently, the Brier score
    E[Σ (b - 1_s)²] is the one it promises, 1 - E[Σ b²]);
    E[1{s = argmax b}] = E[max b]: the best guess is right as often as it says.
    """
    beliefs, state = np.asarray(beliefs, np.float64), np.asarray(state)
    on_truth = np.take_along_axis(beliefs, state[..., None], axis=2)[..., 0]
    right = beliefs.argmax(axis=2) == state
    return [z_score(on_truth - (beliefs**2).sum(axis=2)), z_score(right - beliefs.max(axis=2))]


def brier(beliefs, state):
    """Σ_s (b(s) - 1{s = s_t})² at every step."""
    return ((np.asarray(beliefs, np.float64) - np.eye(beliefs.shape[2])[np.asarray(state)]) ** 2).sum(axis=2)


NOISY = HiddenAgent(GridWorld(FOUR_ROOMS, slip=0.2), 0.8, random_start=True)
POLICY = random_policy(NOISY.world, 3)


@pytest.mark.parametrize("policy", [None, POLICY], ids=["uniform policy", "policy of the true state"])
def test_beliefs_are_calibrated(policy):
    """|z| < 4 fails a correct filter for one seed in 16 000; this seed is fixed."""
    walk = NOISY.rollout(jax.random.key(5), 2000, 20, policy)
    assert np.abs(calibration(NOISY.filter(walk, policy), walk.state)).max() < 4


def slip_underrated(walk):
    return HiddenAgent(GridWorld(FOUR_ROOMS, slip=0.05), 0.8, random_start=True).filter(walk)


def actions_late(walk):
    late = jnp.roll(walk.previous_action, 1, axis=1).at[:, 1].set(0)
    return NOISY.filter(walk._replace(previous_action=late))


@pytest.mark.parametrize("wrong", [slip_underrated, actions_late])
def test_a_wrong_filter_is_not_calibrated(wrong):
    """The control: what the test above allows is less than these mistakes make."""
    walk = NOISY.rollout(jax.random.key(5), 2000, 20)
    assert np.abs(calibration(wrong(walk), walk.state)).min() > 10


@pytest.mark.parametrize(
    ("policy", "wrong"), [(None, slip_underrated), (None, actions_late), (POLICY, NOISY.filter)]
)
def test_no_other_belief_does_better(policy, wrong):
    """The conditional distribution b is a projection: E‖w - 1_s‖² - E‖b - 1_s‖² = E‖w - b‖² for any other belief w.

    `NOISY.filter` without the policy is the w that ignores what actions say about the state that chose them.
    """
    walk = NOISY.rollout(jax.random.key(6), 2000, 20, policy)
    exact, other = NOISY.filter(walk, policy), wrong(walk)
    excess = brier(other, walk.state) - brier(exact, walk.state)
    distance = ((np.asarray(other, np.float64) - exact) ** 2).sum(axis=2)
    assert z_score(excess) > 10
    assert abs(z_score(excess - distance)) < 4


def test_first_starts_again_from_the_prior():
    """Two episodes in one row are two rows of one episode; what stands at their seam is not read."""
    env = HiddenAgent(GridWorld(SMALL, slip=0.3), 0.7, random_start=True)
    walk = env.rollout(jax.random.key(3), 8, STEPS)
    apart = np.asarray(env.filter(walk)).reshape(4, 2 * (STEPS + 1), -1)
    joined = jax.tree.map(lambda x: x.reshape(4, 2 * (STEPS + 1)), walk)
    first = np.zeros((4, 2 * (STEPS + 1)), bool)
    first[:, STEPS + 1] = True
    seen = np.where(joined.hidden, HIDDEN, joined.state)
    args = (env.world.transition_tensor(), env.prior, seen)
    np.testing.assert_allclose(bayes_filter(*args, joined.previous_action, first), apart, atol=1e-6)
    other = np.where(first, 2, joined.previous_action)
    np.testing.assert_allclose(bayes_filter(*args, other, first), apart, atol=1e-6)


def test_the_impossible_is_believed_when_seen():
    """A jump to a state out of reach, from there on as usual; and an action that the policy never takes."""
    corridor = GridWorld(Map.from_text("...."))
    seen, previous = np.array([[0, 3, HIDDEN]]), np.array([[NO_ACTION, 1, 3]])
    prior = np.eye(4)[1]
    beliefs = bayes_filter(corridor.transition_tensor(), prior, seen, previous)
    np.testing.assert_array_equal(beliefs[0], np.eye(4)[[0, 3, 2]])
    never_left = np.tile([0.5, 0.5, 0.0, 0.0], (4, 1))
    again = bayes_filter(corridor.transition_tensor(), prior, seen, previous, policy=never_left)
    np.testing.assert_array_equal(again, beliefs)


def test_same_inside_jit():
    env = HiddenAgent(GridWorld(SMALL, slip=0.3), 0.7, random_start=True)
    policy = random_policy(env.world, 0)
    walk = env.rollout(jax.random.key(3), 4, STEPS)
    for given in (None, policy):
        inside = jax.jit(lambda walk, given=given: env.filter(walk, given))(walk)
        np.testing.assert_allclose(inside, env.filter(walk, given), atol=1e-6)


GOOD = {
    "transitions": np.full((3, 2, 3), 1 / 3),
    "prior": np.full(3, 1 / 3),
    "seen": np.zeros((4, 5), int),
    "previous_action": np.zeros((4, 5), int),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"transitions": np.full((3, 2, 4), 0.25)},
            r"transitions: expected shape \(states, actions, states\)",
        ),
        ({"transitions": np.full((3, 2, 3), 0.3)}, r"transitions: expected probabilities .* 0\.9 and 0\.9"),
        ({"prior": np.full(4, 0.25)}, r"prior: expected shape \(3,\), got \(4,\)"),
        ({"prior": np.array([1.5, -0.5, 0.0])}, "prior: expected probabilities .* least entry of -0.5"),
        ({"prior": np.array([np.nan, 1.0, 0.0])}, "prior: expected probabilities"),
        ({"policy": np.full((2, 3), 1 / 3)}, r"policy: expected shape \(3, 2\), got \(2, 3\)"),
        ({"policy": np.ones((3, 2))}, "policy: expected probabilities .* sums between 2 and 2"),
        ({"seen": np.zeros(5, int)}, r"seen: expected shape \(trajectories, steps\), got \(5,\)"),
        ({"seen": np.full((4, 5), 3)}, r"seen: expected state ids in \[0, 2\], or -1 .* between 3 and 3"),
        ({"seen": np.full((4, 5), -2)}, "seen: expected state ids .* between -2 and -2"),
        (
            {"previous_action": np.zeros((4, 6), int)},
            r"previous_action: expected shape \(4, 5\), got \(4, 6\)",
        ),
        ({"previous_action": np.full((4, 5), 2)}, r"previous_action: expected actions in \[0, 1\] except"),
        (
            {"previous_action": np.full((4, 5), NO_ACTION)},
            "Mark every step without a previous action in `first`",
        ),
        ({"first": np.zeros((4, 4), bool)}, r"first: expected shape \(4, 5\), got \(4, 4\)"),
        (
            {"seen": np.zeros((4, 0), int), "previous_action": np.zeros((4, 0), int)},
            r"seen: expected at least one step, got shape \(4, 0\)",
        ),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        bayes_filter(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seen": np.zeros((4, 5))},
            r"seen: expected integers, got float64. .*np.asarray\(seen\).astype\(int\)",
        ),
        ({"previous_action": np.full((4, 5), 0.5)}, "previous_action: expected integers, got float64"),
        ({"previous_action": np.zeros((4, 5), bool)}, "previous_action: expected integers, got bool"),
        ({"first": np.zeros((4, 5), int)}, r"first: expected booleans, got int64. .*astype\(bool\)"),
        ({"prior": ["a", "b", "c"]}, "prior: expected numbers, got <U1"),
    ],
)
def test_other_types_are_refused(change, message):
    with pytest.raises(TypeError, match=message):
        bayes_filter(**{**GOOD, **change})


def test_lists_are_read():
    rng = np.random.default_rng(0)
    transitions, prior = rng.dirichlet(np.ones(3), size=(3, 2)), rng.dirichlet(np.ones(3))
    given: list[Any] = [transitions, prior, np.array([[0, HIDDEN, 2]]), np.array([[NO_ACTION, 1, 0]])]
    first, policy = np.array([[True, False, True]]), np.full((3, 2), 0.5)
    wanted = bayes_filter(*given, first=first, policy=policy)
    lists = bayes_filter(*(each.tolist() for each in given), first=first.tolist(), policy=policy.tolist())
    np.testing.assert_array_equal(lists, wanted)
