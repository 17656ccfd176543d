"""`transform` gives singular functions whatever the objective; the report and the warnings say what to trust."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest

from derex import DeRex, HistoryDeRex, Trajectories, exact
from derex.decomposition.scores import bonus_rank_correlation
from derex.envs import FOUR_ROOMS, GridWorld
from derex.estimators.diagnosis import FitWarning, measure_rarity

STATES = 30


@pytest.fixture(scope="module")
def graph():
    """50 000 transitions on a random graph with well separated σ, visited very unevenly."""
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.full(STATES, 0.08), STATES)
    d = np.geomspace(1.0, 0.02, STATES)
    x = rng.choice(STATES, 50_000, p=d / d.sum())
    y = np.minimum((rng.random(len(x))[:, None] > P.cumsum(axis=1)[x]).sum(axis=1), STATES - 1)
    return x, y, exact.empirical_joint(x, y, STATES, STATES)


def fitted(x, y, **options):
    defaults: dict[str, Any] = {
        "k": 6,
        "encoder": "tabular",
        "steps": 1500,
        "batch_size": 512,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return DeRex(**defaults | options).fit(x, y)


@pytest.mark.parametrize("objective", ["derex", "nested"])
@pytest.mark.parametrize("encoder", ["tabular", "linear"])
def test_columns_are_the_singular_functions_of_lapack(graph, objective, encoder):
    x, y, joint = graph
    states = np.arange(STATES) if encoder == "tabular" else np.eye(STATES, dtype=np.float32)
    model = fitted(states[x], states[y], encoder=encoder, objective=objective)
    truth = exact.decompose(joint, 6)
    f, g = model.transform(states), model.transform_y(states)
    np.testing.assert_allclose(model.singular_values_, truth.singular_values, atol=1e-3)
    assert np.all(np.abs(truth.d @ (f * truth.left)) >= 0.98)
    assert np.all(np.abs(truth.d_next @ (g * truth.right)) >= 0.98)
    np.testing.assert_allclose(f[x].T @ f[x] / len(x), np.eye(6), atol=1e-3)
    np.testing.assert_allclose(f[x].T @ g[y] / len(x), model.sigma_, atol=1e-3)


def test_two_fits_agree_in_signs_too(graph):
    x, y, _ = graph
    one, other = (fitted(x, y, random_state=seed).transform(np.arange(STATES)) for seed in (0, 1))
    assert np.all(np.sum(one * other, axis=0) > 0.95 * np.sum(one**2, axis=0))


def test_a_stream_gives_singular_functions(graph):
    x, y, joint = graph
    model = DeRex(3, encoder="tabular", n_states=STATES, objective="nested", random_state=0)
    rng = np.random.default_rng(2)
    for _ in range(600):
        rows = rng.integers(0, len(x), 512)
        model.partial_fit(x[rows], y[rows])
    truth, f = exact.decompose(joint, 3), model.transform(np.arange(STATES))
    assert np.all(np.abs(truth.d @ (f * truth.left)) >= 0.95)
    np.testing.assert_allclose(model.singular_values_, truth.singular_values, atol=0.03)


def test_histories_are_read_as_uncorrelated_functions():
    rng = np.random.default_rng(3)
    actions = rng.integers(0, 2, size=(64, 19))
    position = np.cumsum(np.pad(2 * actions - 1, ((0, 0), (1, 0))), axis=1) % 7
    X = Trajectories.from_episodes(list(np.eye(7, dtype=np.float32)[position]), list(actions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = HistoryDeRex(4, width=16, tests=2, steps=60, batch_size=16, random_state=0).fit(X)
    f = model.transform(X)[:, :18].reshape(-1, 4)  # the last histories are not in Σ̂
    np.testing.assert_allclose(f.T @ f / len(f), np.eye(4), atol=0.02)
    assert np.all(np.diff(model.singular_values_) <= 0.0)
    assert model.report_ is not None
    assert model.report_.rarity is None


@pytest.mark.parametrize("k", [4, 10, 20])
def test_the_bonus_ranks_states_as_the_exact_one(graph, k):
    x, y, joint = graph
    model, truth = fitted(x, y, k=k, objective="nested"), exact.decompose(joint, k)
    learnt, known = model.bonus(np.arange(STATES)), truth.bonus(sigma_floor=0.05)
    correlation = bonus_rank_correlation(known, truth.d)
    assert bonus_rank_correlation(learnt, truth.d) >= correlation - 0.03
    report = model.report_
    assert report is not None
    assert report.is_count == (report.count_correlation >= 0.8)


# --- the report ----------------------------------------------------------------------------------------------------


def test_the_report_of_a_good_fit():
    world = GridWorld(FOUR_ROOMS)
    x, _, y = map(np.asarray, world.sample_transitions(jax.random.key(0), 50_000))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        model = DeRex(8, encoder="tabular", objective="nested", steps=1500, random_state=0).fit(x, y)
    report, truth = model.report_, exact.decompose(exact.empirical_joint(x, y, 104, 104), 8)
    assert report is not None
    assert report.messages == ()
    assert report.learnt.all()
    assert report.is_count
    assert report.rarity == "visits"
    np.testing.assert_allclose(report.energy, np.sum(truth.singular_values**2), rtol=0.03)
    assert report.energy <= report.training_energy
    assert 0.0 < report.effective_features <= 8.0
    assert "the norm is a count here" in str(report)


def test_functions_that_are_noise_are_named_and_weigh_nothing():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4000, 4)).astype(np.float32)
    y = np.c_[x[:, 0] + 0.2 * rng.normal(size=4000), rng.normal(size=(4000, 3))].astype(np.float32)
    with pytest.warns(
        FitWarning, match=r"3 of 4 functions are not learnt \(1, 2, 3\).* Raise steps \(now 100\)"
    ):
        model = DeRex(4, encoder="linear", steps=100, batch_size=256, random_state=0, novelty=False).fit(x, y)
    assert model.report_ is not None
    np.testing.assert_array_equal(model.report_.learnt, [True, False, False, False])
    wanted = np.abs(model.transform(x)[:, 0]) / model.singular_values_[0]
    np.testing.assert_allclose(model.bonus(x), wanted, rtol=1e-5)


def test_transitions_that_hardly_move_are_told():
    x = np.repeat(np.arange(8), 500)
    with pytest.warns(FitWarning, match="singular values are near 1.* Raise k"):
        DeRex(3, encoder="tabular", steps=400, batch_size=256, random_state=0).fit(x, x)


def test_a_norm_that_is_no_count_is_told():
    """Two clusters far apart: few functions follow the clusters, whatever the density inside."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4000, 2)) * [1.0, 0.02] + rng.choice([-5.0, 5.0], (4000, 1))
    y = x + rng.normal(size=x.shape)
    with pytest.warns(FitWarning, match="no visit count here.*neighbours.* Raise k"):
        model = DeRex(1, encoder="linear", steps=200, batch_size=256, random_state=0).fit(x, y)
    assert model.report_ is not None
    assert not model.report_.is_count


def test_rarity_is_counted_where_rows_recur_and_estimated_elsewhere():
    rng = np.random.default_rng(6)
    ids = rng.choice(5, 1000, p=[0.5, 0.3, 0.1, 0.05, 0.05])
    vectors = np.eye(5, dtype=np.float32)[ids]
    for rows in (ids, vectors):
        found = measure_rarity(rows, rng)
        assert found is not None
        np.testing.assert_allclose(1.0 / found.rarity, [np.sum(ids == ids[i]) for i in found.indices])
        assert found.kind == "visits"
    points = rng.normal(size=(3000, 2))
    found = measure_rarity(points, rng)
    assert found is not None
    assert found.kind == "neighbours"
    radius = np.linalg.norm(points[found.indices], axis=1)
    assert np.corrcoef(radius, found.rarity)[0, 1] > 0.7
    assert measure_rarity(np.zeros((1000, 2)), rng) is None
    even = measure_rarity(rng.permutation(np.repeat(np.arange(5), 200)), rng)
    assert even is not None
    assert even.flat


@pytest.mark.parametrize("encoder", ["tabular", "linear"])
def test_a_file_holds_the_functions_and_the_report(graph, encoder, tmp_path):
    x, y, _ = graph
    states = np.arange(STATES) if encoder == "tabular" else np.eye(STATES, dtype=np.float32)
    model = fitted(states[x], states[y], encoder=encoder, steps=20)
    model.save(tmp_path / "model.derex")
    loaded = DeRex.load(tmp_path / "model.derex")
    np.testing.assert_array_equal(loaded.transform(states), model.transform(states))
    np.testing.assert_array_equal(loaded.bonus(states), model.bonus(states))
    assert str(loaded.report_) == str(model.report_)
    more = [each.partial_fit(states[x[:64]], states[y[:64]]).transform(states) for each in (model, loaded)]
    np.testing.assert_array_equal(more[0], more[1])


def test_a_checkpoint_of_a_finished_fit_holds_its_report(tmp_path):
    rng = np.random.default_rng(7)
    actions = rng.integers(0, 2, size=(32, 9))
    position = np.cumsum(np.pad(2 * actions - 1, ((0, 0), (1, 0))), axis=1) % 5
    X = Trajectories.from_episodes(list(np.eye(5, dtype=np.float32)[position]), list(actions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model = HistoryDeRex(2, width=8, tests=2, steps=5, batch_size=8, random_state=0)
        model.fit(X, checkpoint=tmp_path / "model.npz")
    loaded = HistoryDeRex.load(tmp_path / "model.npz")
    assert str(loaded.report_) == str(model.report_)
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
