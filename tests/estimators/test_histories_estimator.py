"""What the estimator of histories promises: one answer however streams are cut, padded, stored or read."""

import copy
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import HistoryDeRex, exact
from derex.decomposition import scores
from derex.estimators import histories, trajectories
from derex.estimators.data import StreamData
from derex.estimators.trajectories import check_trajectories, find_useful_streams
from derex.networks.histories import count_steps_left, make_future
from derex.types import NO_ACTION, Indexed, Trajectories

B, T, TESTS = 12, 10, 3
RNG = np.random.default_rng(0)
FRAMES = RNG.integers(0, 256, (5, 6, 6, 1), dtype=np.uint8)
INDEX = RNG.integers(0, 5, (B, T))
LENGTHS = np.r_[np.full(6, T), 8, 7, 9, 6, 8, 5]
VALID = np.arange(T) < LENGTHS[:, None]
EPISODES = np.zeros((B, T), bool)
EPISODES[:, 0] = True
EPISODES[np.arange(6), [4, 5, 5, 4, 6, 5]] = True  # the first rows hold two episodes each
ACTIONS = np.where(EPISODES, NO_ACTION, RNG.integers(0, 3, (B, T)))
WALK = RNG.normal(size=(B, T, 3)).cumsum(axis=1).astype(np.float32)

DATA = {
    "numbers": Trajectories(WALK, ACTIONS, EPISODES, VALID),
    "pictures": Trajectories(FRAMES[INDEX], ACTIONS, EPISODES, VALID),
    "parts": Trajectories(
        {"picture": FRAMES[INDEX], "numbers": WALK[..., :2], "place": INDEX},
        np.where(EPISODES[..., None], 0.0, RNG.normal(size=(B, T, 2))).astype(np.float32),
        EPISODES,
        VALID,
    ),
    "lists": Trajectories([WALK, (INDEX, WALK[..., 0])], ACTIONS, EPISODES, VALID),
}


def small(**options: Any) -> HistoryDeRex:
    """A model that is trained in a moment."""
    few: dict[str, Any] = {
        "k": 2,
        "width": 16,
        "tests": TESTS,
        "batch_size": B,
        "steps": 6,
        "learning_rate": 0.03,
    }
    return HistoryDeRex(**few | {"random_state": 0} | options)


@pytest.fixture(scope="module")
def fitted():
    return {name: small().fit(X) for name, X in DATA.items()}


def left_of(X):
    return np.asarray(count_steps_left(jnp.asarray(X.first), jnp.asarray(X.valid)))


def in_padding(X, observation, action, first=True):
    """The same streams with other contents of the padding."""

    def put(leaf, value):
        leaf = np.array(leaf)
        leaf[~X.valid] = value
        return leaf

    changed = jax.tree.map(lambda leaf: put(leaf, observation), X.observation)
    return Trajectories(changed, put(X.previous_action, action), put(X.first, first), X.valid)


# ------------------------------------------------------------------------------------- one step at a time


def read_by_steps(model, X, memory=None):
    """f and bonuses of whole streams, a step at a time."""
    memory, f, bonus = model.initial_memory(len(X.first)) if memory is None else memory, [], []
    for t in range(X.shape[1]):
        observation = jax.tree.map(lambda leaf: leaf[:, t], X.observation)  # noqa: B023
        memory, f_t, bonus_t = model.step(memory, observation, X.previous_action[:, t], X.first[:, t])
        f.append(f_t)
        bonus.append(bonus_t)
    return np.stack(f, axis=1), np.stack(bonus, axis=1)


@pytest.mark.parametrize("name", DATA)
def test_steps_say_what_whole_streams_say(fitted, name):
    model, X = fitted[name], DATA[name]
    f, bonus = read_by_steps(model, X)
    np.testing.assert_allclose(f[X.valid], model.transform(X)[X.valid], atol=1e-5)
    np.testing.assert_allclose(bonus[X.valid], model.bonus(X)[X.valid], rtol=1e-4, atol=1e-5)


def test_a_memory_can_be_carried_between_calls_and_streams(fitted):
    model, X = fitted["numbers"], DATA["numbers"]
    wanted = model.transform(X)
    memory = model.initial_memory(3)
    for t in range(4):
        memory, f, _ = model.step(memory, WALK[:3, t], X.previous_action[:3, t])
    second = jax.tree.map(
        lambda leaf: leaf[1:2], memory
    )  # one of the three goes on alone, from a list of numbers
    reading = model.step(second, WALK[1:2, 4].tolist(), [int(X.previous_action[1, 4])], [X.first[1, 4]])
    np.testing.assert_allclose(f, wanted[:3, 3], atol=1e-5)
    np.testing.assert_allclose(reading.representation, wanted[1:2, 4], atol=1e-5)


def test_a_new_episode_forgets_the_past_of_its_stream_alone(fitted):
    model = fitted["numbers"]
    used = model.step(model.initial_memory(2), WALK[:2, 0], [NO_ACTION] * 2).memory
    forgot = model.step(used, WALK[:2, 1], [1, 1], [True, False]).representation
    kept = model.step(used, WALK[:2, 1], [1, 1]).representation
    fresh = model.step(model.initial_memory(2), WALK[:2, 1], [NO_ACTION] * 2).representation
    np.testing.assert_allclose(forgot[0], fresh[0], atol=1e-6)
    np.testing.assert_allclose(forgot[1], kept[1], atol=1e-6)
    assert np.abs(forgot[0] - kept[0]).max() > 1e-3


# ------------------------------------------------------------------------------------- storage, padding, blocks


def test_repeated_observations_may_be_stored_once(fitted, monkeypatch):
    model, X = fitted["pictures"], DATA["pictures"]
    indexed = X._replace(observation=Indexed(FRAMES, INDEX))
    np.testing.assert_allclose(model.transform(indexed), model.transform(X), atol=1e-5)
    np.testing.assert_allclose(model.bonus(indexed), model.bonus(X), rtol=1e-4)
    assert model.score(indexed) == pytest.approx(model.score(X), abs=1e-4)
    monkeypatch.setattr(trajectories, "deduplicate_together", lambda sets, most: sets)
    # Slowly: Adam turns the rounding of gradients that should be zero into whole updates.
    plain, stored = (small(learning_rate=1e-4).fit(each) for each in (X, indexed))
    np.testing.assert_allclose(stored.sigma_, plain.sigma_, atol=2e-4)
    np.testing.assert_allclose(stored.transform(X), plain.transform(X), atol=5e-3)


def test_distinct_pictures_are_found_without_being_asked(fitted, monkeypatch):
    seen = []
    monkeypatch.setattr(histories, "StreamData", lambda X, *rest: seen.append(X) or StreamData(X, *rest))
    model = small().fit(DATA["pictures"])
    assert isinstance(seen[0].observation, Indexed)
    assert len(seen[0].observation.values) == 6  # five frames, and the black one of the padding
    np.testing.assert_array_equal(model.sigma_, fitted["pictures"].sigma_)


GARBAGE = {"numbers": np.nan, "pictures": 77, "parts": 200, "lists": -9}  # ids past the table, and below 0


@pytest.mark.parametrize("name", GARBAGE)
def test_what_the_padding_holds_does_not_matter(fitted, name):
    model, X = fitted[name], DATA[name]
    garbage = in_padding(X, GARBAGE[name], -99)
    again = small().fit(garbage)
    np.testing.assert_array_equal(again.sigma_, model.sigma_)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(model.transform(garbage), model.transform(X))
    np.testing.assert_array_equal(model.bonus(garbage), model.bonus(X))
    assert model.score(garbage) == model.score(X)
    kept = np.asarray(jax.tree.leaves(garbage.observation)[0])[~X.valid]
    np.testing.assert_array_equal(kept, GARBAGE[name])  # the user's own array is not written to


def test_infinite_actions_in_the_padding_do_not_matter(fitted):
    model, X = fitted["parts"], DATA["parts"]
    np.testing.assert_array_equal(model.transform(in_padding(X, 0, np.inf)), model.transform(X))


@pytest.mark.parametrize("name", DATA)
def test_the_padding_is_zero_and_a_stream_alone_says_the_same(fitted, name):
    model, X = fitted[name], DATA[name]
    f, bonus = model.transform(X), model.bonus(X)
    assert f.shape == (B, T, 2)
    assert f.dtype == bonus.dtype == np.float32
    assert not f[~X.valid].any()
    assert not bonus[~X.valid].any()
    for row in (7, 11):
        alone = jax.tree.map(lambda leaf: leaf[row : row + 1, : LENGTHS[row]], X)  # noqa: B023
        np.testing.assert_allclose(model.transform(alone)[0], f[row, : LENGTHS[row]], atol=1e-5)


def test_streams_are_read_in_blocks(fitted, monkeypatch):
    model, X = fitted["numbers"], DATA["numbers"]
    whole = model.transform(X)
    monkeypatch.setattr(histories, "BLOCK_STEPS", 5 * T)  # five, five and two streams
    np.testing.assert_allclose(model.transform(X), whole, atol=5e-6)  # shapes differ, and so does rounding
    monkeypatch.setattr(histories, "BLOCK_STEPS", 1)
    np.testing.assert_allclose(model.transform(X), whole, atol=5e-6)


def test_two_episodes_of_a_row_are_two_rows(fitted):
    """Nothing is remembered across the start of an episode."""
    model, X = fitted["numbers"], DATA["numbers"]
    second = jax.tree.map(lambda leaf: leaf[1:2, 5:], X)
    np.testing.assert_allclose(model.transform(second)[0], model.transform(X)[1, 5:], atol=1e-5)


# ------------------------------------------------------------------------------------- statistics


def counted_pairs(model, X, tests=TESTS):
    """f and g of the pairs that a fit with seed 0 measures, before they are standardised."""
    X = check_trajectories(X)
    tied = model._state.networks.reverse is None
    future = make_future(tests, tied)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    data = StreamData(X, find_useful_streams(X, future.needs, 2), future, B, seed)
    return data.encode_sample(model._state.networks, len(X.first))


@pytest.mark.parametrize("name", DATA)
def test_standardised_over_the_histories_that_count(fitted, name):
    model, X = fitted[name], DATA[name]
    f = model.transform(X)[left_of(X) >= TESTS].astype(np.float64)
    np.testing.assert_allclose(f.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(f.var(axis=0), 1.0, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"tests": "to-end"}], ids=str)
def test_singular_values_are_the_canonical_correlations_of_histories_and_futures(options, fitted):
    X = DATA["numbers"]
    model = small(**options).fit(X) if options else fitted["numbers"]
    f, g, _ = counted_pairs(model, X, model.tests)
    bases = [
        np.linalg.qr(side - side.mean(axis=0))[0] for side in (f.astype(np.float64), g.astype(np.float64))
    ]
    wanted = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    np.testing.assert_allclose(model.singular_values_, wanted, atol=1e-3)
    np.testing.assert_array_equal(model.sigma_, np.diag(model.singular_values_))
    read = model.transform(X)[left_of(X) >= (1 if options else TESTS)].astype(np.float64)
    np.testing.assert_allclose(read.T @ read / len(read), np.eye(2), atol=0.03)  # up to the ridge
    normal = (f - f.mean(axis=0)) / f.std(axis=0)  # the same pairs in another order: the same span
    assert len(read) == len(normal)


def test_bonus_is_the_weighted_norm(fitted):
    model, X = copy.deepcopy(fitted["numbers"]), DATA["numbers"]
    f, learnt = model.transform(X), model.report_.learnt
    if not learnt.any():
        np.testing.assert_allclose(model.bonus(X), np.linalg.norm(f, axis=-1), rtol=1e-5)
        return
    for floor in (0.05, 0.9):
        model.set_params(sigma_floor=floor)
        weights = learnt / np.maximum(model.singular_values_, floor)
        np.testing.assert_allclose(model.bonus(X), np.linalg.norm(f * weights, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(model.bonus_of(f), model.bonus(X))
    model.set_params(weighted_bonus=False)
    np.testing.assert_allclose(model.bonus(X), np.linalg.norm(f * learnt, axis=-1), rtol=1e-5)


# ------------------------------------------------------------------------------------- reproducibility


def test_the_same_seed_gives_the_same_result(fitted):
    X = DATA["numbers"]
    again, other = small().fit(X), small(random_state=1).fit(X)
    np.testing.assert_array_equal(again.transform(X), fitted["numbers"].transform(X))
    np.testing.assert_array_equal(again.sigma_, fitted["numbers"].sigma_)
    assert not np.allclose(other.transform(X), again.transform(X), atol=1e-2)
    np.testing.assert_array_equal(again.fit(X).sigma_, fitted["numbers"].sigma_)  # reset_metrics
    assert again.n_iter_ == 6


def test_how_training_is_cut_into_chunks_does_not_matter(fitted, monkeypatch):
    monkeypatch.setattr("derex.estimators.data.STREAM_CHUNK_STEPS", 2)
    X, seen = DATA["numbers"], []
    parts = small().fit(X, watch=lambda *entry: seen.append(entry))
    assert parts.history_["step"].tolist() == [2.0, 4.0, 6.0]
    np.testing.assert_array_equal(np.asarray(seen).T, list(parts.history_.values()))
    np.testing.assert_allclose(parts.transform(X), fitted["numbers"].transform(X), atol=1e-4)


def test_fit_transform_is_both(fitted):
    X = DATA["numbers"]
    np.testing.assert_array_equal(small().fit_transform(X), fitted["numbers"].transform(X))


def test_arrays_of_jax_are_read(fitted):
    X = DATA["numbers"]
    np.testing.assert_array_equal(
        fitted["numbers"].transform(jax.tree.map(jnp.asarray, X)), fitted["numbers"].transform(X)
    )


# ------------------------------------------------------------------------------------- objectives and scores


def test_laplacian_reads_no_tests():
    X = DATA["numbers"]
    few, many = (small(objective="laplacian", tests=tests).fit(X) for tests in (1, 100))
    assert few._state.networks.reverse is None
    assert few._state.networks.g is None
    np.testing.assert_array_equal(few.transform(X), many.transform(X))
    f = few.transform(X).astype(np.float64)
    both = (left_of(X) >= 1)[:, :-1]
    now, later = f[:, :-1][both], f[:, 1:][both]
    pairs = (later - later.mean(axis=0)) / later.std(axis=0)
    np.testing.assert_allclose(few.sigma_, now.T @ pairs / len(now), atol=1e-3)


@pytest.mark.parametrize(("before", "after"), [("laplacian", "derex"), ("derex", "laplacian")])
def test_a_model_can_be_fitted_again_with_another_objective(before, after):
    """What counts as a history is the new objective's affair, not that of the fit before."""
    valid = VALID.copy()
    valid[6, 2:] = False  # no test of three steps fits in this stream
    X = DATA["numbers"]._replace(valid=valid)
    again = small(objective=before).fit(X)
    again.set_params(objective=after, tests=TESTS if after == "derex" else 100).fit(X)
    fresh = small(objective=after, tests=again.tests).fit(X)
    np.testing.assert_array_equal(again.transform(X), fresh.transform(X))
    assert again.score(X) == fresh.score(X)


def test_the_score_is_that_of_the_span(fitted):
    model, X = fitted["numbers"], DATA["numbers"]
    mixed = small().fit(X)
    mixing = jnp.asarray([[2.0, 1.0], [-0.5, 0.3]])
    for side in ("f", "g"):
        layer = getattr(mixed._state.networks, side).network.out
        networks = eqx.tree_at(
            lambda n, side=side: getattr(n, side).network.out.weight,
            mixed._state.networks,
            mixing @ layer.weight,
        )
        mixed._state = mixed._state._replace(networks=networks)
    assert mixed.score(X) == pytest.approx(model.score(X), rel=1e-3)
    assert np.abs(mixed.transform(X) - model.transform(X)).max() > 0.1
    assert 0.0 <= model.score(X) <= 2.0


# ------------------------------------------------------------------------------------- learning

N, STEPS = 6, 12
P = np.random.default_rng(12).dirichlet(np.full(N, 0.3), N)


def chain(streams, seed=0):
    """States of a fully observed Markov chain: by the Markov property histories say what their last states say."""
    rng = np.random.default_rng(seed)
    state = np.zeros((streams, STEPS), np.int32)
    state[:, 0] = rng.integers(0, N, streams)
    for t in range(1, STEPS):
        state[:, t] = (rng.random(streams)[:, None] > P.cumsum(axis=1)[state[:, t - 1]]).sum(axis=1)
    return np.minimum(state, N - 1)


def as_streams(state):
    first = np.zeros(state.shape, bool)
    first[:, 0] = True
    return Trajectories(state, np.full(state.shape, NO_ACTION), first, np.ones(state.shape, bool))


STATE = chain(256)
NOW, NEXT = STATE[:, :-TESTS].ravel(), STATE[:, 1 : 1 - TESTS].ravel()  # of the histories that count
JOINT = exact.empirical_joint(NOW, NEXT, N, N)
EXACT = exact.decompose(JOINT, 2)
TRAINING = {"derex": {"steps": 400, "learning_rate": 5e-3}, "nested": {"steps": 150, "learning_rate": 1e-2}}


def learnt(state, **options):
    model = HistoryDeRex(2, width=16, tests=TESTS, test_actions=False, batch_size=64, random_state=0)
    return model.set_params(**options).fit(as_streams(state))


def averaged(model):
    """f as a function of the last state."""
    f = model.transform(as_streams(STATE))[:, :-TESTS].reshape(-1, 2)
    return np.stack([f[state == NOW].mean(axis=0) for state in range(N)])


@pytest.mark.parametrize("objective", TRAINING)
def test_histories_of_a_chain_have_the_singular_values_of_its_states(objective):
    model = learnt(STATE, objective=objective, **TRAINING[objective])
    np.testing.assert_allclose(model.singular_values_, EXACT.singular_values, atol=0.03)
    assert np.abs(model.sigma_ - np.diag(np.diag(model.sigma_))).max() < 0.05
    assert scores.captured_energy(JOINT, averaged(model)) > 0.99
    fresh = chain(256, seed=1)
    bound = np.sum(EXACT.singular_values**2)
    assert model.score(as_streams(fresh)) == pytest.approx(bound, abs=0.08)


def test_control_without_training():
    model = learnt(STATE, objective="nested", steps=150, learning_rate=1e-30)
    assert model.singular_values_.sum() < 0.3
    assert scores.captured_energy(JOINT, averaged(model)) < 0.6


def test_control_with_shuffled_steps():
    """Without any order in time there is nothing to predict."""
    shuffled = np.random.default_rng(0).permutation(STATE.ravel()).reshape(STATE.shape)
    model = learnt(shuffled, objective="nested", **TRAINING["nested"])
    assert model.singular_values_.max() < 0.35
    assert model.score(as_streams(chain(256, seed=1))) < 0.3 * np.sum(EXACT.singular_values**2)
