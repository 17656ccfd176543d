"""Bad input is refused with the argument's name and a way out, before any training starts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from derex import DeRex

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), RNG.normal(size=(40, 2))
IDS = np.arange(40) % 5
IMAGES = RNG.integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)


def replaced(array, value, row=7):
    """The array with one value changed."""
    array = array.copy()
    array.reshape(len(array), -1)[row, -1] = value
    return array


def model(**options):
    few: dict[str, Any] = {"k": 2, "steps": 5, "batch_size": 16, "random_state": 0}
    return DeRex(**few | options)


class NoParameters(eqx.Module):
    def __call__(self, x):
        return x[:2]


def module(out=2, size=3):
    return eqx.nn.Linear(size, out, key=jax.random.key(0))


# name: (options, X, Y, error, what its message must say: the argument and the fix)
BAD_DATA = {
    "lengths": ({}, X, Y[:-1], "inconsistent numbers of samples"),
    "lengths of ids": ({"encoder": "tabular"}, IDS, IDS[:-1], "X and Y: .* equal lengths; got 40 and 39"),
    "no y": ({}, X, None, "requires y to be passed"),
    "nan": ({}, replaced(X, np.nan), Y, r"X: .*NaN \(1 of 120 values\), first in row 7, column 2.*impute"),
    "infinity in y": ({}, X, replaced(Y, np.inf), "Y: .*infinity.*row 7, column 1.*Remove"),
    "nan in images": ({"encoder": "conv"}, replaced(IMAGES / 255, np.nan), IMAGES, "X: .*NaN.* row 7.*impute"),
    "too large for single precision": ({}, replaced(X, 1e300), Y, "X: .*too large.* row 7.*rescale"),
    "nan ids": ({"encoder": "tabular"}, replaced(IDS * 1.0, np.nan), IDS, "X: .*NaN.* row 7"),
    "negative ids": ({"encoder": "tabular"}, IDS, replaced(IDS, -1), "Y: ids must be >= 0, got -1.*from 0"),
    "fractional ids": ({"encoder": "tabular"}, IDS + 0.5 * (IDS == 3), IDS, "X: .*got 3.5 in row 3.*'mlp'"),
    "ids out of range": (
        {"encoder": "tabular", "n_states": 4}, IDS, IDS, "X: ids run from 0 to .* = 3, got 4. Fit with n_states > 4",
    ),
    "ids of y out of range": ({"encoder": "tabular", "n_states": (9, 3)}, IDS, IDS, "Y: ids run .*Fit with n_states"),
    "huge ids": ({"encoder": "tabular"}, IDS + 2**40, IDS, r"X: ids up to .*np.unique\(X"),
    "huge ids as floats": ({"encoder": "tabular"}, IDS * 1e30, IDS, "X: .*integer ids, got 1e.30 in row 1"),
    "sparse ids": ({"encoder": "tabular"}, IDS, IDS * 10**8, r"Y: .*table.*np.unique\(Y.*n_states=400000001"),
    "ids of rank 2": ({"encoder": "tabular"}, X, IDS, r"X: .*integer ids of shape \(n,\).*'mlp'"),
    "huge integers for own modules": ({"encoder": module()}, (X * 1e12).astype(np.int64), X, "X: .*32 bits.*astype"),
    "text": ({"encoder": "tabular"}, np.array(["a"] * 40), IDS, "X: strings .*np.unique.X, return_inverse=True"),
    "text for vectors": ({}, np.array(["a"] * 40), Y, "X: strings .*integer ids: np.unique"),
    "a list of text": ({}, X, ["a", "b"] * 20, "Y: strings .*integer ids: np.unique.Y"),
    "complex": ({"encoder": "conv"}, IMAGES * 1j, IMAGES, "X: expected numbers"),
    "too few rows": ({"encoder": "tabular", "k": 1}, IDS[:3], IDS[:3], "X: got n_samples=3; two disjoint halves"),
    "too few rows for k": ({"k": 5}, X[:11], Y[:11], "n_samples=11; .*k = 5 rows each need at least 12.*smaller k"),
    "k not below the states of X": ({"encoder": "tabular", "k": 5}, IDS, np.arange(40), "k: .*rows of X, 5.*<= 4"),
    "k not below the states of Y": ({"encoder": "tabular", "k": 3}, IDS, IDS % 3, "k: .*distinct rows of Y, 3.*<= 2"),
    "k not below half the batch": ({"k": 8}, X, Y, "k: expected less than half the batch, 8; got 8.*batch_size >= 18"),
    "constant X": ({}, np.ones((40, 3)), Y, "X: every row is the same"),
    "constant Y": ({"encoder": "tabular"}, IDS, np.full(40, 3), "Y: every row is the same"),
    "empty": ({"encoder": "tabular"}, np.zeros(0, int), np.zeros(0, int), r"X: expected at least one row.*\(0,\)"),
    "empty rows": ({"encoder": "conv"}, np.zeros((40, 0, 4, 1)), IMAGES, "X: expected at least one row"),
    "a number": ({"encoder": "conv"}, np.float32(3), IMAGES, r"X: expected at least one row.*\(\)"),
    "grey images": ({"encoder": "conv"}, IMAGES[..., 0], IMAGES, r"X: .*height, width, channels.*\[\.\.\., None\]"),
    "images for vectors": ({"encoder": ("mlp", "tabular")}, IMAGES, IDS, r"X: .*vectors.*'conv', or flatten"),
    "laplacian on different shapes": ({"objective": "laplacian"}, X, Y, "objective: .*rows of the same shape"),
}  # fmt: skip

BAD_OPTIONS = {
    "objective": ({"objective": "deRex"}, ValueError, "objective: expected one of 'derex'.*Did you mean 'derex'"),
    "encoder": ({"encoder": "cov"}, ValueError, "encoder: expected one of .*Did you mean 'conv'"),
    "encoder of no kind": ({"encoder": 3}, TypeError, "encoder: .*Equinox module.*got 3"),
    "three encoders": ({"encoder": ("mlp",) * 3}, ValueError, "encoder: a pair .*got 3"),
    "fractional k": ({"k": 2.0}, TypeError, "k: expected an integer, got 2.0"),
    "k of true": ({"k": True}, TypeError, "k: expected an integer"),
    "no k": ({"k": 0}, ValueError, "k: expected at least 1, got 0"),
    "batch_size": ({"batch_size": 2}, ValueError, "batch_size: expected at least 4"),
    "steps": ({"steps": 0}, ValueError, "steps: expected at least 1"),
    "learning_rate": ({"learning_rate": 0.0}, ValueError, "learning_rate: expected a number > 0"),
    "endless learning_rate": ({"learning_rate": np.inf}, ValueError, "learning_rate: expected a number > 0"),
    "learning_rate of text": ({"learning_rate": "fast"}, TypeError, "learning_rate: expected a number"),
    "lambda_r": ({"lambda_r": -1.0}, ValueError, "lambda_r: expected a number >= 0"),
    "lambda_r of text": ({"lambda_r": "growing"}, ValueError, "lambda_r: .*'grow'"),
    "lambda_r of none": ({"lambda_r": None}, TypeError, "lambda_r: expected a number"),
    "sigma_floor": ({"sigma_floor": np.nan}, ValueError, "sigma_floor: expected a number >= 0"),
    "weighted_bonus": ({"weighted_bonus": "yes"}, TypeError, "weighted_bonus: expected True or False"),
    "novelty": ({"novelty": 1}, TypeError, "novelty: expected True or False"),
    "n_states without a table": ({"n_states": 5}, ValueError, "n_states: only encoder='tabular'"),
    "n_states of three": ({"encoder": "tabular", "n_states": (5, 5, 5)}, ValueError, "n_states: .*pair"),
    "n_states of text": ({"encoder": "tabular", "n_states": "5"}, TypeError, "n_states: expected an integer"),
    "seed": ({"random_state": "a"}, ValueError, "cannot be used to seed"),
    "module of the wrong input": ({"encoder": module(size=4)}, ValueError, r"encoder \(for X\): .*\(3,\).*single rows"),
    "module of the wrong output": ({"encoder": (module(3), "mlp")}, ValueError, r"encoder \(for X\): .*k = 2 floats"),
    "module for Y": ({"encoder": (module(), module())}, ValueError, r"encoder \(for Y\)"),
    "nothing to train": ({"encoder": NoParameters()}, ValueError, "no floating-point arrays"),
    "a function that makes no module": ({"encoder": lambda key, shape, k: 3}, TypeError, "encoder: .*module, got 3"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    def trained(*_):
        raise AssertionError("training started")

    monkeypatch.setattr("derex.estimators.fitting.train_chunk", trained)


@pytest.mark.parametrize("name", BAD_DATA)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_data(name, method):
    options, x, y, message = BAD_DATA[name]
    if method == "partial_fit" and name.startswith("k not below"):
        pytest.skip("a batch of a stream need not hold all states, and its size is its own")
    with pytest.raises(ValueError, match=f"(?s){message}"):
        getattr(model(**options), method)(x, y)


@pytest.mark.parametrize("name", BAD_OPTIONS)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_options(name, method):
    options, error, message = BAD_OPTIONS[name]
    data = (IDS, IDS) if options.get("encoder") == "tabular" else (X, Y)
    with pytest.raises(error, match=f"(?s){message}"):
        getattr(model(**options), method)(*data)


def test_good_data_does_start_training():
    with pytest.raises(AssertionError, match="training started"):
        model(encoder="linear").fit(X, Y)


def test_too_few_rows_in_a_batch_of_a_stream():
    with pytest.raises(
        ValueError, match=r"X: got n_samples=5; two disjoint halves with more than k = 2 .* at least 6"
    ):
        model(encoder="linear").partial_fit(X[:5], Y[:5])


@pytest.fixture(scope="module")
def fitted():
    """Models whose training was cut to one step."""
    return {
        "linear": model(encoder="linear", steps=1).fit(X, Y),
        "tabular": model(encoder="tabular", steps=1, n_states=6).fit(IDS, IDS[::-1]),
        "conv": model(encoder="conv", steps=1).fit(IMAGES, IMAGES[::-1]),
    }


READING = {
    "features": ("linear", X[:, :2], "X has 2 features, but DeRex is expecting 3 features as input"),
    "nan": ("linear", replaced(X, np.nan), "NaN"),
    "id": ("tabular", np.array([6]), "X: ids run from 0 to .* = 5, got 6. Fit with n_states > 6"),
    "negative": ("tabular", np.array([-1]), "X: ids must be >= 0"),
    "image": ("conv", IMAGES[:, :3], r"X: expected .* shape \(4, 4, 1\), as in fit; got \(3, 4, 1\)"),
    "type": ("conv", IMAGES / 255, "X: expected values of type uint8, as in fit; got float32.*Convert"),
}


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("method", ["transform", "bonus"])
def test_bad_data_for_a_fitted_model(fitted, name, method):
    which, rows, message = READING[name]
    with pytest.raises(ValueError, match=message):
        getattr(fitted[which], method)(rows)


def test_bad_data_for_the_other_side_and_the_score(fitted):
    with pytest.raises(ValueError, match="Y has 3 features, but DeRex is expecting 2"):
        fitted["linear"].transform_y(X)
    with pytest.raises(ValueError, match=r"X and Y: .*equal lengths; got 40 and 39"):
        fitted["linear"].score(X, Y[:-1])
    with pytest.raises(ValueError, match="requires y"):
        fitted["linear"].score(X)


def test_bad_batches_after_the_first(fitted):
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted["linear"].partial_fit(X[:, :2], Y)
    with pytest.raises(ValueError, match="Y has 3 features"):
        fitted["linear"].partial_fit(X, X)
    with pytest.raises(ValueError, match=r"X: ids run from 0 .* got 7"):
        fitted["tabular"].partial_fit(replaced(IDS, 7), IDS)


@pytest.mark.parametrize(("name", "value"), [("k", 3), ("objective", "laplacian")])
def test_a_stream_keeps_its_shape(fitted, name, value):
    linear = fitted["linear"]
    before = getattr(linear, name)
    linear.set_params(**{name: value})
    with pytest.raises(ValueError, match=f"{name}: .*Set it back.*clone"):
        linear.partial_fit(X, Y)
    linear.set_params(**{name: before})


def test_a_bad_option_of_the_bonus_set_after_fit(fitted):
    fitted["linear"].set_params(sigma_floor="low")
    with pytest.raises(TypeError, match="sigma_floor: expected a number"):
        fitted["linear"].bonus(X)
    fitted["linear"].set_params(sigma_floor=0.05)


def test_a_failed_fit_leaves_the_fitted_model_alone(fitted):
    before = fitted["tabular"].bonus(np.arange(6))
    with pytest.raises(ValueError, match="every row is the same"):
        fitted["tabular"].fit(IDS, np.zeros(40, int))
    np.testing.assert_array_equal(fitted["tabular"].bonus(jnp.arange(6)), before)


@pytest.mark.parametrize("spoil", [lambda x: x + 1e9, lambda x: x * 1e-300])
def test_variation_that_single_precision_loses_is_refused(spoil):
    with pytest.raises(ValueError, match=r"X: column 0 varies by .* Centre and scale"):
        model(encoder="linear").fit(spoil(X), Y)


def test_sparse_matrices_are_refused():
    with pytest.raises(TypeError, match=r"toarray|[Ss]parse"):
        model().fit(scipy.sparse.csr_matrix(X), Y)


def test_a_stream_cannot_have_more_features_than_states():
    ids = np.arange(60) % 5
    with pytest.raises(ValueError, match="k: expected less than the 5 states"):
        model(k=5, encoder="tabular", n_states=5).partial_fit(ids, (ids + 1) % 5)


def test_a_function_with_the_wrong_arguments_is_named():
    with pytest.raises(TypeError, match=r"encoder: a function is called as encoder\(key, shape, k\)"):
        model(encoder=lambda x: x).fit(X, Y)
