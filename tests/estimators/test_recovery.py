"""The estimator against LAPACK."""

import equinox as eqx
import numpy as np
import pytest

from derex import DeRex, exact
from derex.decomposition import scores
from derex.estimators.fitting import squared_correlation

N = 8


def one_hot(ids, n=N):
    return np.eye(n, dtype=np.float32)[np.asarray(ids)]


def inputs(encoder, ids):
    return ids if encoder == "tabular" else one_hot(ids)


@pytest.fixture(scope="module")
def tabular(chain):
    model = DeRex(3, objective="nested", encoder="tabular", steps=2000, batch_size=256, random_state=0)
    return model.fit(chain.x, chain.y)


ACCURACY = {  # largest error of σ, of f and g up to sign, and of the bonus relative to the exact one
    ("derex", "tabular"): (0.001, 0.02, 0.02),
    ("nested", "tabular"): (0.001, 0.02, 0.02),
    ("derex", "linear"): (0.001, 0.02, 0.02),
    ("nested", "linear"): (0.001, 0.02, 0.02),
    ("derex", "mlp"): (0.001, 0.02, 0.02),
    ("nested", "mlp"): (0.001, 0.02, 0.02),
}


@pytest.mark.parametrize(("objective", "encoder"), ACCURACY)
def test_fit_recovers_the_exact_decomposition(chain, objective, encoder):
    steps, rate = (400, 3e-3) if encoder == "mlp" else (4000, 1e-2)
    model = DeRex(
        3,
        objective=objective,
        encoder=encoder,
        steps=steps,
        learning_rate=rate,
        batch_size=256,
        random_state=0,
    )
    model.fit(inputs(encoder, chain.x), inputs(encoder, chain.y))
    states = inputs(encoder, np.arange(N))
    f, g = model.transform(states), model.transform_y(states)
    signs = np.sign(chain.exact.d @ (f * chain.exact.left))
    sigma, functions, bonus = ACCURACY[objective, encoder]
    np.testing.assert_allclose(model.singular_values_, chain.exact.singular_values, atol=sigma)
    np.testing.assert_allclose(f * signs, chain.exact.left, atol=functions)
    np.testing.assert_allclose(g * signs, chain.exact.right, atol=functions)
    np.testing.assert_allclose(model.bonus(states), chain.exact.bonus(sigma_floor=0.05), rtol=bonus)
    assert scores.captured_energy(chain.joint, f) > 0.999


def test_laplacian_recovers_the_eigenfunctions_of_a_reversible_chain():
    ring = np.arange(N)
    x, y = np.concatenate([ring, ring]), np.concatenate([np.roll(ring, 1), np.roll(ring, -1)])
    x, y = np.tile(x, 10), np.tile(y, 10)
    model = DeRex(3, objective="laplacian", encoder="tabular", steps=2000, batch_size=64, random_state=0).fit(
        x, y
    )
    f = model.transform(ring)
    # The smoothest functions on a ring: a constant, which standardising takes out, a sine and a cosine.
    waves = np.stack([np.cos(2 * np.pi * ring / N), np.sin(2 * np.pi * ring / N)], axis=1) / np.sqrt(N / 2)
    np.testing.assert_allclose(waves @ (waves.T @ f), f, atol=0.05)
    np.testing.assert_allclose(model.singular_values_, np.cos(2 * np.pi / N), atol=0.01)
    np.testing.assert_array_equal(model.transform_y(ring), f)


def test_representations_are_standardised_on_the_training_data(tabular, chain):
    for values in (tabular.transform(chain.x), tabular.transform_y(chain.y)):
        np.testing.assert_allclose(values.mean(axis=0, dtype=np.float64), 0.0, atol=1e-6)
        np.testing.assert_allclose(values.std(axis=0, dtype=np.float64), 1.0, atol=1e-4)


def test_sigma_is_the_correlation_of_the_representations(tabular, chain):
    f, g = tabular.transform(chain.x), tabular.transform_y(chain.y)
    np.testing.assert_allclose(tabular.sigma_, f.T @ g / len(f), atol=1e-4)
    np.testing.assert_allclose(tabular.singular_values_, np.diag(tabular.sigma_), atol=1e-6)
    assert np.all(np.diff(tabular.singular_values_) <= 0.0)


def test_shapes_and_types(tabular, chain):
    assert tabular.transform(chain.x).shape == (4000, 3)
    assert tabular.bonus(chain.x).shape == (4000,)
    assert tabular.singular_values_.shape == (3,)
    assert {tabular.transform(chain.x).dtype, tabular.bonus(chain.x).dtype} == {np.dtype(np.float32)}
    assert tabular.n_iter_ == 2000
    assert tabular.history_["step"].tolist() == [200.0 * i for i in range(1, 11)]
    assert tabular.history_["trace"][-1] == pytest.approx(tabular.singular_values_.sum(), abs=0.01)


def test_one_component(chain):
    model = DeRex(1, objective="nested", encoder="tabular", steps=400, batch_size=256, random_state=0)
    model.fit(chain.x, chain.y)
    assert model.singular_values_ == pytest.approx(chain.exact.singular_values[:1], abs=0.01)
    assert model.history_["off_diagonal"][-1] == 0.0


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.float64, np.float32])
def test_ids_of_any_type(chain, tabular, dtype):
    np.testing.assert_array_equal(
        tabular.transform(chain.x[:, None].astype(dtype)), tabular.transform(chain.x)
    )


def test_sides_may_differ_in_shape_and_encoder(chain):
    """Numbers to coordinates: f of a table, g of a network, recover the same decomposition."""
    model = DeRex(
        2, objective="nested", encoder=("tabular", "linear"), steps=1500, batch_size=256, random_state=0
    )
    model.fit(chain.x, one_hot(chain.y))
    np.testing.assert_allclose(model.singular_values_, chain.exact.singular_values[:2], atol=0.005)
    assert model.transform_y(one_hot(np.arange(N))).shape == (N, 2)


def test_state_action_pairs_to_next_states():
    """P over (state, action) rows (Section 5) needs nothing extra: ids s A + a, twice as many as next states."""
    rng = np.random.default_rng(0)
    tensor = rng.dirichlet(np.full(5, 0.3), (5, 2))
    state, action = rng.integers(0, 5, 3000), rng.integers(0, 2, 3000)
    following = (rng.random(3000)[:, None] > tensor.cumsum(axis=2)[state, action]).sum(axis=1)
    pairs = 2 * state + action
    truth = exact.decompose(exact.empirical_joint(pairs, following, 10, 5), 2)
    model = DeRex(2, objective="nested", encoder="tabular", steps=1500, batch_size=128, random_state=0)
    model.fit(pairs, following)
    np.testing.assert_allclose(model.singular_values_, truth.singular_values, atol=0.005)
    np.testing.assert_allclose(model.bonus(np.arange(10)), truth.bonus(), rtol=0.05)


def test_own_modules_that_read_integers(chain):
    def embedding(key, shape, k):
        return eqx.nn.Embedding(N, k, key=key)

    model = DeRex(2, objective="nested", encoder=embedding, steps=1000, learning_rate=0.02, batch_size=256)
    model.set_params(random_state=0).fit(chain.x, chain.y)
    np.testing.assert_allclose(model.singular_values_, chain.exact.singular_values[:2], atol=0.02)


def test_a_stream_converges(chain):
    model = DeRex(
        2, objective="nested", encoder="tabular", learning_rate=0.02, n_states=N + 1, random_state=0
    )
    rng = np.random.default_rng(0)
    for _ in range(600):
        rows = rng.integers(0, len(chain.x), 256)
        model.partial_fit(chain.x[rows], chain.y[rows])
    assert model.n_iter_ == 600
    np.testing.assert_allclose(model.singular_values_, chain.exact.singular_values[:2], atol=0.03)
    bonus = model.bonus(np.arange(N + 1))
    assert np.argmax(bonus) == N
    assert bonus[N] == pytest.approx(np.sqrt(2) * bonus[:N].max(), rel=1e-5)
    assert scores.captured_energy(chain.joint, model.transform(np.arange(N))) > 0.99


def test_score_on_held_out_pairs(tabular, chain, sample_chain):
    x, y = sample_chain(4000, seed=1)
    best = np.sum(chain.exact.singular_values**2)
    assert tabular.score(chain.x, chain.y) == pytest.approx(best, rel=0.01)
    assert tabular.score(x, y) == pytest.approx(best, rel=0.05)
    assert tabular.score(x, np.random.default_rng(0).permutation(y)) < 0.05
    mixed = tabular.transform(x) @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [3.0, 0.0, -1.0]])
    assert squared_correlation(mixed, tabular.transform_y(y)) == pytest.approx(tabular.score(x, y), rel=1e-4)
