"""What the estimator promises about its inputs, outputs and seeds."""

import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import DeRex

N = 8


def one_hot(ids, n=N):
    return np.eye(n, dtype=np.float32)[np.asarray(ids)]


def small(**options):
    """A model that is trained in a moment; all of the same shape, so that they share what is compiled."""
    few: dict[str, Any] = {"k": 2, "encoder": "linear", "steps": 20, "batch_size": 32, "random_state": 0}
    return DeRex(**few | options)


# ------------------------------------------------------------------------------------- outputs


def test_standardised_even_while_the_networks_still_move(vectors):
    x, y = vectors
    model = small(encoder="mlp", learning_rate=0.03, objective="nested").fit(x, y)
    np.testing.assert_allclose(model.transform(x).mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(model.transform(x).std(axis=0), 1.0, atol=1e-3)


def test_an_order_of_singular_values_holds_for_both_sides(vectors):
    x, y = vectors
    model = small(k=3, learning_rate=1e-9).fit(x, y)  # hardly trained: in no order, and some may be negative
    f, g = model.transform(x), model.transform_y(y)
    np.testing.assert_allclose(np.diag(model.sigma_), np.sum(f * g, axis=0) / len(f), atol=1e-4)
    assert np.all(np.diff(np.diag(model.sigma_)) <= 0.0)
    np.testing.assert_array_equal(model.singular_values_, np.maximum(np.diag(model.sigma_), 0.0))


# ------------------------------------------------------------------------------------- the bonus


@pytest.fixture(scope="module")
def mlp(vectors):
    return small(encoder="mlp").fit(*vectors)


def test_bonus_is_the_weighted_norm(mlp, vectors):
    x, _ = vectors
    wanted = np.linalg.norm(mlp.transform(x) / np.maximum(mlp.singular_values_, 0.05), axis=1)
    typical = mlp.bonus(x)
    exactly = np.isclose(typical, wanted, rtol=1e-5)
    assert exactly.mean() >= 0.98  # novelty leaves all but the most unusual per cent as they are
    assert np.all(typical >= wanted * (1 - 1e-5))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.9])
def test_bonus_options_can_be_changed_after_fit(vectors, weighted, floor, mlp):
    x, _ = vectors
    before = mlp.get_params()
    mlp.set_params(weighted_bonus=weighted, sigma_floor=floor, novelty=False)
    weights = np.maximum(mlp.singular_values_, floor) if weighted else 1.0
    np.testing.assert_allclose(mlp.bonus(x), np.linalg.norm(mlp.transform(x) / weights, axis=1), rtol=1e-5)
    mlp.set_params(novelty=True)
    far = mlp.bonus(np.full((1, 3), 1e4, np.float32))
    mlp.set_params(**before)
    assert far > np.linalg.norm(mlp.transform(x) / weights, axis=1).max()


def test_without_a_floor_components_of_singular_value_zero_do_not_count(mlp, vectors):
    x, _ = vectors
    kept = mlp.singular_values_
    mlp.set_params(sigma_floor=0.0, novelty=False)
    mlp.singular_values_ = np.array([kept[0], 0.0], np.float32)
    bonus = mlp.bonus(x)
    mlp.singular_values_ = kept
    mlp.set_params(sigma_floor=0.05, novelty=True)
    np.testing.assert_allclose(bonus, np.abs(mlp.transform(x)[:, 0]) / kept[0], rtol=1e-5)


@pytest.mark.parametrize("encoder", ["tabular", "linear", "mlp"])
def test_unseen_inputs_get_the_largest_bonus(chain, encoder):
    seen = (chain.x != 6) & (chain.y != 6)
    model = small(
        encoder=encoder, steps=200, batch_size=256, n_states=N + 2 if encoder == "tabular" else None
    )
    states = np.arange(N + 2) if encoder == "tabular" else one_hot(np.arange(N + 2), N + 2)
    model.fit(states[chain.x[seen]], states[chain.y[seen]])
    bonus = model.bonus(states)
    unseen = [6, N, N + 1]
    assert bonus[unseen].min() > np.delete(bonus, unseen).max()
    wanted = np.linalg.norm(model.transform(states) / np.maximum(model.singular_values_, 0.05), axis=1)
    np.testing.assert_allclose(np.delete(bonus, unseen), np.delete(wanted, unseen), rtol=1e-5)
    if encoder == "tabular":
        np.testing.assert_allclose(bonus[unseen], np.sqrt(2) * np.delete(bonus, unseen).max(), rtol=1e-6)
        np.testing.assert_array_equal(model.transform(states)[unseen], 0.0)
        np.testing.assert_array_equal(model.transform_y(states)[unseen], 0.0)
    model.set_params(novelty=False)
    np.testing.assert_allclose(model.bonus(states), wanted, rtol=1e-5)


def test_fresh_rows_like_the_training_data_are_left_alone():
    rng = np.random.default_rng(0)
    x, fresh = rng.normal(size=(80, 5)), rng.normal(size=(400, 5))  # fewer rows than the network has features
    model = small(encoder="mlp").fit(x, x + 0.1 * rng.normal(size=x.shape))
    plain = np.linalg.norm(model.transform(fresh) / np.maximum(model.singular_values_, 0.05), axis=1)
    assert np.mean(model.bonus(fresh) > plain * 1.0001) < 0.06
    assert np.all(model.bonus(100.0 * np.eye(5)) > model.bonus(x).max())


# ------------------------------------------------------------------------------------- reproducibility


def test_the_same_seed_gives_the_same_result(vectors):
    first, again, other = (small(random_state=seed).fit(*vectors) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.transform(vectors[0]), again.transform(vectors[0]))
    np.testing.assert_array_equal(first.sigma_, again.sigma_)
    assert not np.allclose(first.transform(vectors[0]), other.transform(vectors[0]))


def test_draws_do_not_depend_on_how_training_is_cut_into_chunks(vectors, monkeypatch):
    whole = small().fit(*vectors)
    monkeypatch.setattr("derex.estimators.data.CHUNK_STEPS", 10)
    parts = small().fit(*vectors)
    assert parts.history_["step"].tolist() == [10.0, 20.0]
    np.testing.assert_allclose(whole.transform(vectors[0]), parts.transform(vectors[0]), atol=1e-5)


def test_refitting_starts_afresh(vectors):
    x, y = vectors
    model = small().fit(x, y)
    first = model.transform(x)
    np.testing.assert_array_equal(model.fit(x, y).transform(x), first)
    assert model.n_iter_ == 20


# ------------------------------------------------------------------------------------- inputs


CONVERSIONS = {
    "jax": jnp.asarray,
    "float64": lambda a: a.astype(np.float64),
    "fortran": np.asfortranarray,
    "list": lambda a: a.tolist(),
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
}


@pytest.fixture(scope="module")
def small_fit(vectors):
    return small().fit(*vectors).transform(vectors[0])


@pytest.mark.parametrize("name", CONVERSIONS)
def test_containers_do_not_matter(vectors, small_fit, name):
    x, y = (CONVERSIONS[name](side) for side in vectors)
    np.testing.assert_allclose(small().fit(x, y).transform(x), small_fit, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float16, bool, jnp.bfloat16])
def test_numbers_of_any_type_are_vectors(dtype):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtype is bool else 200, size=(60, 3))
    y = np.roll(x, 1, axis=1)
    wanted = small().fit(x.astype(dtype).astype(np.float32), y.astype(dtype).astype(np.float32))
    model = small().fit(x.astype(dtype), y.astype(dtype))
    np.testing.assert_allclose(
        model.transform(x.astype(dtype)), wanted.transform(x.astype(dtype).astype(np.float32)), atol=1e-4
    )


def test_options_may_be_numpy_scalars(vectors, small_fit):
    model = small(k=np.int64(2), steps=np.int32(20), batch_size=np.uint8(32), random_state=np.int64(0))
    model.set_params(lambda_r=np.float32(10.0), sigma_floor=np.float64(0.05), novelty=np.True_)
    np.testing.assert_array_equal(model.fit(*vectors).transform(vectors[0]), small_fit)
    assert model.bonus(vectors[0]).shape == (60,)


def test_double_precision_mode_works(vectors):
    x, y = vectors
    with jax.enable_x64(True):
        model = small().fit(x.astype(np.float64), y)
        double, bonus = model.transform(x), model.bonus(x)
        model.partial_fit(x, y)
        assert np.isfinite(model.bonus(x)).all()
    assert {double.dtype, bonus.dtype, model.sigma_.dtype} == {np.dtype(np.float32)}
    np.testing.assert_allclose(np.mean(double, axis=0), 0.0, atol=1e-5)


# ------------------------------------------------------------------------------------- own modules


class Own(eqx.Module):
    layer: eqx.nn.Linear

    def __init__(self, size, k, *, key):
        self.layer = eqx.nn.Linear(size, k, key=key)

    def __call__(self, x):
        return self.layer(jnp.tanh(x))


def factory(key, shape, k):
    return Own(shape[0], k, key=key)


def test_a_function_that_makes_modules(vectors):
    x, y = vectors
    model = small(encoder=factory).fit(x, y)
    assert model.transform(x).shape == (60, 2)
    assert model.score(x, y) > 0.0


def test_a_pair_of_modules_is_trained_from_where_it_stands(vectors):
    x, y = vectors
    f, g = Own(3, 2, key=jax.random.key(0)), Own(2, 2, key=jax.random.key(1))
    model = small(encoder=(f, g), learning_rate=1e-30, steps=1).fit(x, y)
    trained = model._state.networks
    np.testing.assert_array_equal(trained.f.network.layer.weight, f.layer.weight)
    np.testing.assert_array_equal(trained.g_or_f.network.layer.weight, g.layer.weight)
    outputs = np.asarray(jax.vmap(f)(x))
    wanted = (outputs - outputs.mean(axis=0)) / outputs.std(axis=0)
    read = model.transform(x)
    np.testing.assert_allclose(wanted @ np.linalg.lstsq(wanted, read)[0], read, atol=1e-3)  # the same span


def test_a_single_module_serves_both_sides(vectors):
    x, _ = vectors
    f = Own(3, 2, key=jax.random.key(0))
    model = small(encoder=f).fit(x, np.roll(x, 1, axis=0))
    assert not np.allclose(model.transform(x), model.transform_y(x))  # trained apart
    np.testing.assert_array_equal(f.layer.weight, Own(3, 2, key=jax.random.key(0)).layer.weight)  # untouched


# ------------------------------------------------------------------------------------- streams


def test_a_stream_remembers_which_ids_it_saw():
    rng = np.random.default_rng(0)
    model = DeRex(1, encoder="tabular", n_states=6, random_state=0)
    for ids in ([0, 1, 2], [1, 2, 3]):
        model.partial_fit(rng.choice(ids, 20), rng.choice(ids, 20))
    bonus = model.bonus(np.arange(6))
    np.testing.assert_array_equal(bonus[4:], bonus.max())
    assert bonus[:4].max() < bonus.max()


def test_partial_fit_takes_one_step_on_the_halves_of_its_batch(vectors):
    """Both halves are used, in the order of the rows, and an odd last row is left out."""
    x, y = vectors
    model, odd, swapped = (small(random_state=0).partial_fit(x[:40], y[:40]) for _ in range(3))
    model.partial_fit(x[:40], y[:40])
    odd.partial_fit(x[:41], y[:41])
    order = np.r_[20:40, :20]
    swapped.partial_fit(x[:40][order], y[:40][order])
    f, f_odd, f_swapped = (m.transform(x) - m.transform(x).mean(axis=0) for m in (model, odd, swapped))
    np.testing.assert_allclose(f_odd, f, atol=1e-4)
    np.testing.assert_allclose(f_swapped, f, atol=1e-4)
    other = small().partial_fit(x[:40], y[:40]).partial_fit(x[20:], y[20:]).transform(x)
    assert np.abs(other - other.mean(axis=0) - f).max() > 1e-3


def test_partial_fit_goes_on_from_fit(vectors):
    x, y = vectors
    model = small().fit(x, y)
    before = model.transform(x)
    model.partial_fit(x, y)
    assert model.n_iter_ == 21
    assert 0.0 < np.abs(model.transform(x) - before).max() < 0.5


def test_what_a_fit_saw_stays_known_while_features_move(vectors):
    """A stream changes the network: typical rows must not look new for that."""
    x, y = vectors
    model = small(encoder="mlp").fit(x, y)
    for _ in range(30):
        model.partial_fit(x[:40], y[:40])
    norms = np.linalg.norm(model.transform(x) / np.maximum(model.singular_values_, 0.05), axis=1)
    assert np.isclose(model.bonus(x), norms, rtol=1e-5).mean() >= 0.98
    assert model.bonus(np.full((1, 3), 1e4, np.float32)) > norms.max()


# ------------------------------------------------------------------------------------- trouble


def test_divergence_is_an_error_and_leaves_the_old_model(vectors):
    x, y = vectors
    model = small(objective="nested").fit(x, y)
    before = model.transform(x)
    model.set_params(learning_rate=1e30)
    with pytest.raises(FloatingPointError, match="Lower learning_rate"):
        model.fit(x, y)
    np.testing.assert_array_equal(model.transform(x), before)
    with pytest.raises(FloatingPointError, match="diverged at update 2"):
        model.partial_fit(x, y).partial_fit(x, y)


def test_a_progress_bar_on_demand(vectors, capsys):
    small(verbose=True).fit(*vectors)
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("20 steps", "loss", "off-diagonal"))
    small().fit(*vectors)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("verbose", "terminal", "shown"), [(None, True, True), (None, False, False), (False, True, False)]
)
def test_the_progress_bar_is_shown_by_default_on_a_terminal(
    vectors, capsys, monkeypatch, verbose, terminal, shown
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    small(verbose=verbose).fit(*vectors)
    assert ("20 steps" in capsys.readouterr().err) == shown
    assert DeRex().get_params()["verbose"] is None


class Tensor:
    """Behaves like a torch tensor: no conversion to NumPy while it requires gradients."""

    def __init__(self, values, requires_grad=True):
        self.values, self.requires_grad = values, requires_grad

    def detach(self):
        return Tensor(self.values, requires_grad=False)

    def __array__(self, dtype=None, copy=None):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return np.asarray(self.values, dtype)


def test_tensors_that_require_gradients_are_detached(vectors, small_fit):
    x, y = map(Tensor, vectors)
    model = small().fit(x, y)
    np.testing.assert_array_equal(model.transform(x), small_fit)
    assert model.score(x, y) == model.score(*vectors)


def test_streaming_after_a_fit_keeps_what_the_fit_saw(vectors):
    x, y = vectors
    model = small().fit(x, y)
    far = 100.0 * np.ones((1, x.shape[1]), np.float32)
    guard = type(model._guards.x)
    model.partial_fit(x, y)
    assert type(model._guards.x) is guard
    assert np.isfinite(model.bonus(far)).all()
