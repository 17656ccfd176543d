"""scikit-learn's own checks, and its tools around the estimator."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from derex import DeRex

# Checks that cannot apply to an estimator fitted on pairs would be named here, with the reason. There are none: all
# that scikit-learn runs for a transformer that requires y pass. One is skipped, by scikit-learn itself, unless
# SCIPY_ARRAY_API is set in the environment.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}
SKIPPED = {"check_array_api_input"}


def small(**options):
    few: dict[str, Any] = {"k": 2, "encoder": "linear", "steps": 20, "batch_size": 32, "random_state": 0}
    return DeRex(**few | options)


@pytest.mark.parametrize("encoder", ["linear", pytest.param("mlp", marks=pytest.mark.slow)])
def test_check_estimator(encoder):
    checks: Any = check_estimator  # its type stubs are those of an older release
    results = checks(small(encoder=encoder), expected_failed_checks=EXPECTED_FAILED_CHECKS, on_skip=None)
    by_status = {}
    for result in results:
        by_status.setdefault(result["status"], set()).add(result["check_name"])
    assert len(by_status["passed"]) > 40
    assert by_status.keys() <= {"passed", "skipped"}
    assert by_status.get("skipped", set()) <= SKIPPED


def test_parameters_go_in_and_out():
    model = DeRex(4, objective="nested", encoder=("tabular", "mlp"), n_states=(5, None), lambda_r="grow")
    parameters = model.get_params()
    assert (parameters["k"], parameters["encoder"], parameters["n_states"]) == (
        4,
        ("tabular", "mlp"),
        (5, None),
    )
    assert clone(model).get_params() == parameters
    assert model.set_params(k=3).k == 3
    with pytest.raises(ValueError, match="Invalid parameter 'kk'"):
        model.set_params(kk=3)


def test_a_pipeline_scales_first(vectors):
    x, y = vectors
    offset = 1e4 + 100.0 * x.astype(np.float64)
    pipeline = make_pipeline(StandardScaler(), small()).fit(offset, y)
    scaled = StandardScaler().fit_transform(offset)
    wanted = small().fit(scaled, y).transform(scaled)
    np.testing.assert_allclose(np.asarray(pipeline.transform(offset)), wanted, atol=1e-5)
    assert pipeline.score(offset, y) == pytest.approx(small().fit(scaled, y).score(scaled, y), rel=1e-4)
    np.testing.assert_array_equal(pipeline.get_feature_names_out(), ["derex0", "derex1"])


def test_cross_validation_prefers_what_generalises(vectors):
    x, y = vectors
    folds = KFold(3)
    true = cross_val_score(small(), x, y, cv=folds)
    shuffled = cross_val_score(small(), x, y[np.random.default_rng(0).permutation(60)], cv=folds)
    assert true.min() > shuffled.max()
    search = GridSearchCV(small(), {"learning_rate": [1e-9, 1e-2]}, cv=folds).fit(x, y)
    assert search.best_params_ == {"learning_rate": 1e-2}


def test_copies_and_pickles_are_the_same_model(vectors):
    x, y = vectors
    model = small().fit(x, y)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.bonus(x), model.bonus(x))
        np.testing.assert_array_equal(
            other.partial_fit(x, y).transform(x), copy.deepcopy(model).partial_fit(x, y).transform(x)
        )


def test_data_frames_keep_their_names(vectors):
    pandas = pytest.importorskip("pandas")
    x, y = vectors
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    model = small().fit(frame, pandas.DataFrame(y))
    np.testing.assert_array_equal(model.transform(frame), small().fit(x, y).transform(x))
    assert vars(model)["feature_names_in_"].tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[["c", "a", "b"]])


def test_parameters_set_after_fit_do_not_break_reading(vectors):
    x, y = vectors
    model = small().fit(x, y)
    before = model.transform(x)
    model.set_params(k=5, encoder="tabular", objective="laplacian", steps=1)
    np.testing.assert_array_equal(model.transform(x), before)
    assert model.get_feature_names_out().tolist() == ["derex0", "derex1"]


@pytest.mark.parametrize("method", ["transform", "transform_y", "bonus", "save"])
def test_not_fitted_yet(method, tmp_path):
    argument = tmp_path / "model" if method == "save" else np.zeros((3, 2))
    with pytest.raises(NotFittedError):
        getattr(small(), method)(argument)
