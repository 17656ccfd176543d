"""Read-outs of hidden quantities against scikit-learn and the truth; and fits of histories, side by side or none."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from derex import HistoryDeRex
from derex.estimators import data as sources
from derex.estimators import fit_together, fitting
from derex.estimators.decoder import belief_scores, fit_readout
from derex.estimators.histories import fit_untrained, init_fits
from derex.types import NO_ACTION, Trajectories

N, M = 600, 3  # rows and classes
TRUE_WEIGHT = np.array([[1.5, -1.0, 0.0], [0.0, 1.0, -2.0]])
TRUE_BIAS = np.array([0.5, 0.0, -0.5])


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def softmax_linear(n, seed=0):
    """Features, classes drawn from a softmax of one linear layer, and the true probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)).astype(np.float32)
    probability = softmax(x @ TRUE_WEIGHT + TRUE_BIAS)
    y = (rng.random(n)[:, None] > probability.cumsum(axis=1)).sum(axis=1)
    return x, np.minimum(y, M - 1), probability


def log_loss(probability, y):
    return -np.mean(np.log(np.asarray(probability)[np.arange(len(y)), y]))


@pytest.fixture(scope="module")
def problem():
    x, y, _ = softmax_linear(N)
    return x, y, np.asarray(fit_readout(x, y, M).probabilities(x))


# ------------------------------------------------------------------------------------------------- read-outs


def test_readout_is_the_maximum_of_the_likelihood(problem):
    x, y, ours = problem
    reference: Any = LogisticRegression(C=1e8, tol=1e-8, max_iter=5000).fit(x, y).predict_proba(x)
    assert log_loss(ours, y) == pytest.approx(log_loss(reference, y), abs=1e-4)
    np.testing.assert_allclose(ours, reference, atol=5e-3)
    assert np.mean(ours.argmax(axis=1) == y) == pytest.approx(
        np.mean(reference.argmax(axis=1) == y), abs=0.005
    )


def test_readout_finds_the_true_probabilities():
    x, y, _ = softmax_linear(20_000, seed=1)
    fresh, fresh_y, truth = softmax_linear(2000, seed=2)
    readout = fit_readout(x, y, M, iterations=60)
    found = np.asarray(readout.probabilities(fresh))
    # Six free parameters from 20 000 rows: the excess of the log-loss is about 3/20 000, a probability's error 1/√n.
    assert np.abs(found - truth).mean() < 0.01
    assert log_loss(found, fresh_y) == pytest.approx(log_loss(truth, fresh_y), abs=2e-3)
    weight = np.asarray(readout.weight) / np.asarray(readout.spread)[:, None]
    centred = weight - weight.mean(axis=1, keepdims=True)  # softmax does not see what all classes share
    np.testing.assert_allclose(centred, TRUE_WEIGHT - TRUE_WEIGHT.mean(axis=1, keepdims=True), atol=0.15)


def test_shift_and_scale_of_features_do_not_matter(problem):
    x, y, probability = problem
    moved = (x * [1e-3, 400.0] + [5.0, -3000.0]).astype(np.float32)
    again = fit_readout(moved, y, M).probabilities(moved)
    np.testing.assert_allclose(again, probability, atol=5e-3)


def test_a_feature_that_never_varies_does_no_harm(problem):
    x, y, probability = problem
    wider = np.c_[x, np.full(N, 0.3)].astype(np.float32)
    np.testing.assert_allclose(fit_readout(wider, y, M).probabilities(wider), probability, atol=5e-3)


def test_classes_that_never_occur_become_unlikely(problem):
    x, y, probability = problem
    wider = np.asarray(fit_readout(x, y, M + 4).probabilities(x))
    assert wider.shape == (N, M + 4)
    assert wider[:, M:].max() < 1e-2
    np.testing.assert_allclose(wider[:, :M], probability, atol=1e-2)


def test_classes_that_are_told_apart_perfectly_do_not_overflow():
    """There is no best layer then: the likelihood grows with the weights, for ever."""
    y = np.arange(40) % 4
    x = np.eye(4, dtype=np.float32)[y]
    found = np.asarray(fit_readout(x, y, 5).probabilities(x))
    assert np.all(np.isfinite(found))
    assert log_loss(found, y) < 1e-3


def test_without_iterations_all_rows_get_the_base_rates(problem):
    x, y, _ = problem
    counts = np.bincount(y, minlength=M + 1) + 1.0
    found = np.asarray(fit_readout(x, y, M + 1, iterations=0).probabilities(x))
    np.testing.assert_allclose(found, np.tile(counts / counts.sum(), (N, 1)), rtol=1e-5)


def test_probabilities_keep_leading_axes(problem):
    x, y, probability = problem
    found = fit_readout(x, y, M).probabilities(x.reshape(20, 30, 2))
    np.testing.assert_allclose(found, probability.reshape(20, 30, M), atol=1e-6)


@pytest.mark.parametrize(("classes", "came"), [([0, 1, 3], "0 to 3"), ([-1, 1, 2], "-1 to 2")])
def test_classes_out_of_range_are_refused(classes, came):
    with pytest.raises(ValueError, match=f"classes: expected numbers from 0 to 2, got {came}"):
        fit_readout(np.zeros((3, 2), np.float32), np.array(classes), 3)


# ---------------------------------------------------------------------------------------------------- scores


def test_scores_of_beliefs_by_hand():
    belief = np.array([[0.5, 0.25, 0.25], [0.125, 0.25, 0.625], [0.0, 0.0, 1.0]], np.float32)
    distance = np.array([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
    scores = belief_scores(belief, np.array([0, 1, 2]), distance)
    assert scores == pytest.approx(
        {
            "accuracy": 2 / 3,
            "log_loss": (np.log(2.0) + np.log(4.0) + 0.0) / 3,
            # 0.25·1 + 0.25·3; 0.125·1 + 0.625·2; 0
            "distance": (1.0 + 1.375 + 0.0) / 3,
            "distance_of_guess": (0.0 + 2.0 + 0.0) / 3,
        }
    )


def test_a_truth_held_impossible_costs_much_but_not_infinity():
    belief = np.array([[1.0, 0.0]], np.float32)
    scores = belief_scores(belief, np.array([1]), np.array([[0.0, 7.0], [7.0, 0.0]]))
    assert scores["log_loss"] == pytest.approx(-np.log(np.finfo(np.float32).tiny))  # 87.3
    assert scores["accuracy"] == 0.0
    assert scores["distance"] == scores["distance_of_guess"] == 7.0


def test_a_perfect_belief_scores_perfectly():
    states = np.array([2, 0, 1])
    scores = belief_scores(np.eye(3, dtype=np.float32)[states], states, 1.0 - np.eye(3))
    assert scores == {"accuracy": 1.0, "log_loss": 0.0, "distance": 0.0, "distance_of_guess": 0.0}


# ------------------------------------------------------------------------------------- fits side by side

STEPS, CHUNK = 6, 2
SEEDS = (0, 7)


def walks(seed):
    rng = np.random.default_rng(seed)
    first = np.zeros((6, 8), bool)
    first[:, 0] = True
    return Trajectories(
        rng.normal(size=(6, 8, 2)).cumsum(axis=1).astype(np.float32),
        np.where(first, NO_ACTION, rng.integers(0, 3, (6, 8))),
        first,
        np.ones((6, 8), bool),
    )


DATA = [walks(seed) for seed in SEEDS]


def models(**options: Any) -> list[HistoryDeRex]:
    few: dict[str, Any] = {"k": 2, "width": 8, "tests": 2, "batch_size": 4, "learning_rate": 0.03}
    few |= {"steps": STEPS, "n_actions": 3}
    return [HistoryDeRex(**few | {"random_state": seed} | options) for seed in SEEDS]


@pytest.fixture
def short_chunks(monkeypatch):
    """Looks at the progress every two updates, a checkpoint at each of them, and double precision.

    In single precision Adam makes whole steps of rounding errors where gradients vanish (biases in front of a
    normalisation), and two programs for the same updates part.
    """
    monkeypatch.setattr(sources, "STREAM_CHUNK_STEPS", CHUNK)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", -1.0)
    with jax.enable_x64(True):
        yield


def numbers(model, X):
    return {
        "history": np.array(model._history),
        "sigma": model.sigma_,
        "representation": model.transform(X),
        "bonus": model.bonus(X),
    }


def assert_same(model, other, X):
    """Up to rounding, some of it in single precision."""
    for name, value in numbers(model, X).items():
        np.testing.assert_allclose(value, numbers(other, X)[name], atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def side_by_side():
    """Both models in one program, and what was seen of them on the way."""
    both, seen = models(), []
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(sources, "STREAM_CHUNK_STEPS", CHUNK)
        fit_together(both, DATA, watch=lambda *news: seen.append(news))
    return both, seen


def test_side_by_side_is_one_by_one(side_by_side, short_chunks):
    for model, alone, X in zip(side_by_side[0], models(), DATA, strict=True):
        assert_same(model, alone.fit(X), X)
        assert model.n_iter_ == STEPS
    first, second = side_by_side[0]
    assert not np.allclose(first.sigma_, second.sigma_)


def test_watch_sees_the_mean_over_models(side_by_side):
    both, seen = side_by_side
    np.testing.assert_allclose(seen, np.mean([model._history for model in both], axis=0), rtol=1e-6)
    assert [news[0] for news in seen] == [2, 4, 6]


def interrupted(fitted, data, checkpoints, at):
    """A fit stopped while it reports update `at`: its checkpoint is that of the report before."""

    def stop(done, *_):
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_together(fitted, data, checkpoints=checkpoints, watch=stop)


def test_interrupted_fits_go_on_together(side_by_side, short_chunks, tmp_path):
    files = [tmp_path / f"{seed}.npz" for seed in SEEDS]
    interrupted(models(), DATA, files, at=6)
    assert [HistoryDeRex.load(file).n_iter_ for file in files] == [4, 4]
    seen, both = [], models()
    fit_together(both, DATA, checkpoints=files, watch=lambda *news: seen.append(news[0]))
    assert seen == [6]
    for model, reference, X in zip(both, side_by_side[0], DATA, strict=True):
        assert_same(model, reference, X)


def test_interrupted_fits_go_on_when_one_is_ahead(side_by_side, short_chunks, tmp_path):
    files = [tmp_path / f"{seed}.npz" for seed in SEEDS]
    for model, X, file, at in zip(models(), DATA, files, (6, 4), strict=True):
        interrupted([model], [X], [file], at)
    assert [HistoryDeRex.load(file).n_iter_ for file in files] == [4, 2]
    seen, both = [], models()
    fit_together(both, DATA, checkpoints=files, watch=lambda *news: seen.append(news[0]))
    assert sorted(seen) == [4, 6, 6]
    for model, reference, X, file in zip(both, side_by_side[0], DATA, files, strict=True):
        assert_same(model, reference, X)
        assert HistoryDeRex.load(file).n_iter_ == STEPS  # a finished fit is kept too


def test_models_that_differ_are_refused_by_name():
    one, other = models()[0], models(tests=3, width=16)[1]
    with pytest.raises(ValueError, match=r"models: .* differ in \['tests', 'width'\]"):
        fit_together([one, other], DATA)


def test_as_many_trajectories_as_models_are_needed():
    with pytest.raises(ValueError, match="models and trajectories: expected as many of each, got 2 and 1"):
        fit_together(models(), DATA[:1])
    with pytest.raises(ValueError, match="got 0 and 0"):
        fit_together([], [])


def test_untrained_is_the_model_before_its_first_update(side_by_side, short_chunks):
    model, X = models()[0], DATA[0]
    fit_untrained(model, X)
    drawn = init_fits(models()[:1], [X], [None], ["X"])[0].state.networks
    mine, initial = (jax.tree.leaves(eqx.filter(n, eqx.is_array)) for n in (model._state.networks, drawn))
    assert all(np.array_equal(a, b) for a, b in zip(mine, initial, strict=True))
    assert model.n_iter_ == 0
    assert model._history == []
    counted = model.transform(X)[:, :-2].reshape(-1, 2)  # the last two histories have no test of two steps
    np.testing.assert_allclose(counted.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(counted.var(axis=0), 1.0, atol=1e-2)
    assert not np.allclose(model.transform(X), side_by_side[0][0].transform(X), atol=1e-2)
