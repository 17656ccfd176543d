"""The decomposition losses: hand-computed numbers, analytic gradients, stopped gradients, and their minima."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from derex.decomposition import exact, scores
from derex.decomposition.objectives import (
    DeRexObjective,
    GraphDrawingObjective,
    NestedObjective,
    combined_loss,
    diag_loss,
    double_sampled_off_loss,
    make_objective,
    off_loss,
    off_value,
    penalty_weight,
)
from derex.decomposition.statistics import READING_EPSILON, Half, compute_batch_statistics, sigma_hat

VARIANTS = [  # beside those of `make_objective`, which the contract suite holds to the same
    DeRexObjective(3.0, normalise=False),
    DeRexObjective(3.0, double_sampling=False),
    GraphDrawingObjective(3.0, paired=True),
    GraphDrawingObjective(3.0, normalise=True),
]
every_variant = pytest.mark.parametrize("objective", VARIANTS, ids=repr)

FIRST = np.array([[1.0, 2.0], [3.0, 5.0]])
SECOND = np.array([[7.0, -1.0], [0.5, 2.0]])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def half_of(f, g, weights=None):
    """A half from NumPy arrays; under jit they are JAX's own."""
    return Half(f, g, weights)


def random_halves(seed, k=3, weights=(None, None)):
    """Two halves of five rows, as NumPy arrays."""
    outputs = np.random.default_rng(seed).normal(size=(2, 2, 5, k)) + 0.3
    return [half_of(f, g, w) for (f, g), w in zip(outputs, weights, strict=True)]


@partial(jax.jit, static_argnums=0)
def differentiate(objective, first, second):
    """The estimate, and the gradients of its loss with respect to f and g of both halves."""

    def loss(outputs):
        f_1, g_1, f_2, g_2 = outputs
        estimate = objective(Half(f_1, g_1, first.weights), Half(f_2, g_2, second.weights))
        return estimate.loss, estimate

    gradients, estimate = jax.grad(loss, has_aux=True)((first.f, first.g, second.f, second.g))
    return estimate, gradients


def covariance(a, b):
    """Unbiased covariances of columns of a with columns of b."""
    return (a - a.mean(0)).T @ (b - b.mean(0)) / (len(a) - 1)


def whitened(z, epsilon=1e-5):
    return (z - z.mean(0)) / np.sqrt(z.var(0) + epsilon)


def off_diagonal(matrix):
    return matrix - np.diag(np.diag(matrix))


# ---------------------------------------------------------------------------------- the pieces


@jax.jit
def pieces(first, second):
    """Values of the losses of Σ̂ (and Σ̂'), and their gradients with respect to each."""
    return {
        "diag": jax.value_and_grad(diag_loss)(first),
        "off": jax.value_and_grad(off_loss)(first),
        "combined": jax.value_and_grad(combined_loss)(first, 10.0),
        "off_value": jax.value_and_grad(off_value, argnums=(0, 1))(first, second),
        "double": jax.value_and_grad(double_sampled_off_loss, argnums=(0, 1))(first, second),
    }


def test_pieces_by_hand():
    found = pieces(FIRST, SECOND)
    assert float(found["diag"][0]) == 3.0  # (1 + 5) / 2
    assert float(found["off"][0]) == 6.5  # (4 + 9) / 2
    assert float(found["combined"][0]) == 62.0
    assert float(found["off_value"][0]) == -0.25  # (2·(-1) + 3·0.5) / 2
    assert float(found["double"][0]) == -0.5


def test_gradients_of_the_pieces_by_hand():
    found = pieces(FIRST, SECOND)
    np.testing.assert_array_equal(found["diag"][1], [[0.5, 0.0], [0.0, 0.5]])
    np.testing.assert_array_equal(found["off"][1], [[0.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(found["combined"][1], [[-0.5, 20.0], [30.0, -0.5]])
    np.testing.assert_array_equal(found["off_value"][1][0], [[0.0, -0.5], [0.25, 0.0]])


def test_double_sampling_takes_each_factor_as_a_constant():
    """∂/∂Σ̂ sees the other half only, and the other way round: half the off-diagonal of the other."""
    _, (of_first, of_second) = pieces(FIRST, SECOND)["double"]
    np.testing.assert_array_equal(of_first, off_diagonal(SECOND) / 2)
    np.testing.assert_array_equal(of_second, off_diagonal(FIRST) / 2)


def test_double_sampled_loss_has_the_gradient_of_the_plain_one_and_twice_its_value():
    """When both halves are the same, and hence in expectation when they are independent."""
    found = pieces(FIRST, FIRST)
    assert float(found["double"][0]) == 2 * float(found["off"][0])
    assert float(found["off_value"][0]) == float(found["off"][0])
    np.testing.assert_array_equal(np.sum(found["double"][1], 0), found["off"][1])


def test_averages_are_over_k_and_over_k_squared_minus_k():
    found = pieces(np.ones((5, 5)), np.ones((5, 5)))
    values = [float(found[name][0]) for name in ("diag", "off", "off_value", "combined", "double")]
    assert values == [1.0, 1.0, 1.0, 9.0, 2.0]


def test_one_feature_has_no_off_diagonal():
    found = pieces(np.array([[0.75]]), np.array([[3.0]]))
    assert [float(found[name][0]) for name in ("diag", "combined")] == [0.75, -0.75]
    for name in ("off", "off_value", "double"):
        value, gradient = found[name]
        assert float(value) == 0.0
        np.testing.assert_array_equal(np.ravel(gradient), 0.0)


def test_sigma_hat_by_hand():
    f = np.array([[1.0, 2.0], [3.0, -1.0]])
    g = np.array([[0.5, 1.0], [2.0, 4.0]])
    weighted = jax.jit(sigma_hat)
    np.testing.assert_array_equal(weighted(f, g), [[3.25, 6.5], [-0.5, -1.0]])
    np.testing.assert_array_equal(weighted(f, g, np.array([3.0, 1.0])), [[1.875, 3.75], [0.25, 0.5]])
    np.testing.assert_array_equal(weighted(f, g, np.zeros(2)), np.zeros((2, 2)))


# ------------------------------------------------------------------------------ penalty weight


@pytest.mark.parametrize(("k", "expected"), [(1, 2 / 3), (2, 2 / 3), (4, 2.0), (16, 10.0), (64, 42.0)])
def test_growing_penalty_weight(k, expected):
    assert penalty_weight("grow", k) == pytest.approx(expected)
    assert penalty_weight(2.5, k) == 2.5
    assert penalty_weight(0.0, k) == 0.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "shrink"])
def test_penalty_weight_is_checked(value):
    with pytest.raises(ValueError, match="lambda_r: expected a finite number >= 0 or 'grow'"):
        penalty_weight(value, 4)


def test_penalty_weight_is_no_switch():
    with pytest.raises((ValueError, TypeError)):
        penalty_weight(True, 4)


def test_duplicated_modes_pay_at_large_k_unless_the_penalty_grows():
    """Copying a mode of σ = 1 over one of σ = 0 gains 1/k of L_diag and costs 2λ/(k² - k): worth it if k > 2λ+1."""

    def duplication_gain(k, lambda_r):
        honest = np.diag([*np.ones(k - 1), 0.0])
        copied = honest.copy()
        copied[0, -1] = copied[-1, 0] = copied[-1, -1] = 1.0
        weight = penalty_weight(lambda_r, k)
        loss = jax.jit(combined_loss, static_argnums=1)
        return float(loss(honest, weight)) - float(loss(copied, weight))

    assert duplication_gain(16, 10.0) == pytest.approx(1 / 16 - 20 / 240)
    assert duplication_gain(64, 10.0) == pytest.approx(1 / 64 - 20 / 4032)
    for k in (16, 64):
        assert duplication_gain(k, "grow") == pytest.approx((1 - 20 / 15) / k)


# ------------------------------------------------------------------------------ make_objective


def test_make_objective_fills_in_the_penalty():
    assert make_objective("derex", 4) == DeRexObjective(10.0)
    assert make_objective("derex", 31, "grow") == DeRexObjective(20.0)
    assert make_objective("nested", 4) == NestedObjective()
    assert make_objective("laplacian", 4, 3.0) == GraphDrawingObjective(3.0)
    assert [make_objective(name, 4).tied for name in ("derex", "nested", "laplacian")] == [False, False, True]


def test_make_objective_names_the_choices():
    with pytest.raises(
        ValueError, match="objective: expected one of 'derex', 'nested', 'laplacian', got 'pca'"
    ):
        make_objective("pca", 4)
    with pytest.raises(ValueError, match="lambda_r"):
        make_objective("nested", 4, -1.0)


# ---------------------------------------------------------------------------- De-Rex objective


def test_derex_loss_by_hand():
    """One feature: f = ±1 and g = ∓2 are perfectly anti-correlated, Σ̂ = -1 but for ε."""
    half = half_of(np.array([[1.0], [-1.0]]), np.array([[3.0], [7.0]]))
    estimate = jax.jit(DeRexObjective())(half, half)
    sigma = -2 / np.sqrt((1 + 1e-5) * (4 + 1e-5))
    assert float(estimate.loss) == pytest.approx(-sigma, rel=1e-12)
    assert float(estimate.statistics.sigma[0, 0]) == pytest.approx(-1.0, rel=1e-11)  # read without that ε
    np.testing.assert_allclose(estimate.statistics.f, [[0.0], [1.0]])
    np.testing.assert_allclose(estimate.statistics.g, [[5.0], [4.0]])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("double_sampling", [True, False])
def test_derex_loss_by_formula(normalise, double_sampling):
    first, second = random_halves(1)
    scale = whitened if normalise else np.asarray
    sigmas = [scale(h.f).T @ scale(h.g) / 5 for h in (first, second)]
    diag = (np.trace(sigmas[0]) + np.trace(sigmas[1])) / 6
    if double_sampling:
        off = 2 * np.sum(off_diagonal(sigmas[0] * sigmas[1])) / 6
    else:
        off = np.sum(off_diagonal(sigmas[0] ** 2 + sigmas[1] ** 2)) / 12
    estimate, _ = differentiate(DeRexObjective(3.0, normalise, double_sampling), first, second)
    assert float(estimate.loss) == pytest.approx(-diag + 3.0 * off, rel=1e-12)


@pytest.mark.parametrize("double_sampling", [True, False])
def test_derex_gradient_by_formula_without_normalisation(double_sampling):
    """∂L/∂f of half 1 is g times (-I/2k + λ/(k²-k) X)ᵀ over b, X = Σ̂ of the other half, or of the same one."""
    first, second = random_halves(2)
    _, found = differentiate(DeRexObjective(3.0, False, double_sampling), first, second)
    f_1, g_1, f_2, g_2 = first.f, first.g, second.f, second.g
    sigma_1, sigma_2 = f_1.T @ g_1 / 5, f_2.T @ g_2 / 5
    seen_by_1, seen_by_2 = (sigma_2, sigma_1) if double_sampling else (sigma_1, sigma_2)
    push_1 = -np.eye(3) / 6 + 3.0 / 6 * off_diagonal(seen_by_1)
    push_2 = -np.eye(3) / 6 + 3.0 / 6 * off_diagonal(seen_by_2)
    expected = [g_1 @ push_1.T / 5, f_1 @ push_1 / 5, g_2 @ push_2.T / 5, f_2 @ push_2 / 5]
    for gradient, formula in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, formula, rtol=1e-12, atol=1e-14)


def test_derex_gradient_flows_through_the_statistics_of_the_batch():
    """Normalised outputs cannot be shifted or rescaled, so the gradient is orthogonal to both but for ε."""
    first, second = random_halves(3)
    _, gradients = differentiate(DeRexObjective(3.0), first, second)
    for z, gradient in zip((first.f, first.g, second.f, second.g), gradients, strict=True):
        np.testing.assert_allclose(np.sum(gradient, 0), np.zeros(3), atol=1e-14)
        np.testing.assert_allclose(np.sum(gradient * z, 0), np.zeros(3), atol=1e-4)
        assert np.max(np.abs(gradient)) > 0.01


# ---------------------------------------------------------------------------- nested objective


def test_nested_loss_by_hand():
    """Half 1: cov f = ((2, -4), (-4, 8)), cov g = ((2, 2), (2, 2)); Σ_11 = 2, Σ_22 = -4. Half 2 below."""
    first = half_of(np.array([[1.0, 0.0], [-1.0, 4.0]]), np.array([[1.0, 2.0], [-1.0, 0.0]]))
    second = half_of(np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 1.0]]))
    # Half 2: cov f = ((.5, .5), (.5, .5)), cov g = ((2, -1), (-1, .5)); Σ_11 = 1, Σ_22 = -.5.
    linear = -(2 - 4) - (1 - 0.5)
    f_first = 2 * 2 + 8 * 0.5 + 2 * (-4) * (-1)  # C_f of half 1 with C_g of half 2
    g_first = 0.5 * 2 + 0.5 * 2 + 2 * 0.5 * 2  # C_f of half 2 with C_g of half 1
    assert float(jax.jit(NestedObjective())(first, second).loss) == pytest.approx(
        linear + (f_first + g_first) / 2
    )


def test_nested_gradient_by_formula():
    """∂L/∂f of half 1 = (-g + f tril(C_g of half 2)ᵀ) / (b - 1), f and g centred: only j <= i push f_i."""
    first, second = random_halves(4)
    _, found = differentiate(NestedObjective(), first, second)
    f_1, g_1, f_2, g_2 = first.f, first.g, second.f, second.g
    sides = [(f_1, g_1, g_2), (g_1, f_1, f_2), (f_2, g_2, g_1), (g_2, f_2, f_1)]
    for gradient, (own, paired, other) in zip(found, sides, strict=True):
        own_centred, paired_centred = own - own.mean(0), paired - paired.mean(0)
        formula = (-paired_centred + own_centred @ np.tril(covariance(other, other)).T) / 4
        np.testing.assert_allclose(gradient, formula, rtol=1e-11, atol=1e-13)


def test_later_components_of_nested_do_not_influence_earlier_ones():
    halves = random_halves(5)
    _, before = differentiate(NestedObjective(), *halves)
    last = np.array([0.0, 0.0, 1.0])
    changed = [Half(h.f - 4.0 * h.f * last, h.g + np.arange(5.0)[:, None] * last) for h in halves]
    _, after = differentiate(NestedObjective(), *changed)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new[:, :2], old[:, :2], rtol=1e-12, atol=1e-14)
        assert np.max(np.abs(new[:, 2] - old[:, 2])) > 0.1


def test_nested_with_one_component_is_the_rank_one_approximation():
    halves = random_halves(6, k=1)
    cross = [covariance(h.f, h.g).item() for h in halves]
    (f_1, g_1), (f_2, g_2) = ([covariance(z, z).item() for z in (h.f, h.g)] for h in halves)
    expected = -sum(cross) + (f_1 * g_2 + f_2 * g_1) / 2
    assert float(jax.jit(NestedObjective())(*halves).loss) == pytest.approx(expected, rel=1e-12)


def test_nested_statistics_are_read_after_rescaling_to_unit_variance():
    """f and g are free up to (c, 1/c); Σ̂ of the statistics is the correlation matrix, whatever c is."""
    halves = random_halves(7)
    c = np.array([10.0, 0.5, -3.0])
    plain, _ = differentiate(NestedObjective(), *halves)
    scaled, _ = differentiate(NestedObjective(), *(Half(h.f * c, h.g / c) for h in halves))
    correlations = [np.corrcoef(h.f, h.g, rowvar=False)[:3, 3:] for h in halves]
    np.testing.assert_allclose(plain.statistics.sigma, np.mean(correlations, 0), atol=1e-4)
    signs = np.outer(np.sign(c), np.sign(c))
    np.testing.assert_allclose(scaled.statistics.sigma, signs * plain.statistics.sigma, atol=1e-3)
    np.testing.assert_allclose(scaled.statistics.f.variance, c**2 * plain.statistics.f.variance)
    assert float(scaled.loss) == pytest.approx(float(plain.loss), rel=1e-12)


# ------------------------------------------------------------------------ statistics and weights


def test_statistics_are_the_mean_of_the_halves():
    def standard(z):  # read with a smaller ε than training's
        return (z - z.mean(0)) / np.sqrt(z.var(0) + READING_EPSILON)

    halves = random_halves(8)
    statistics = jax.jit(compute_batch_statistics)(*halves)
    np.testing.assert_allclose(statistics.f.mean, np.mean([h.f.mean(0) for h in halves], 0))
    np.testing.assert_allclose(statistics.g.variance, np.mean([h.g.var(0) for h in halves], 0))
    sigma = np.mean([standard(h.f).T @ standard(h.g) / 5 for h in halves], 0)
    np.testing.assert_allclose(statistics.sigma, sigma, rtol=1e-11)


@every_variant
def test_integer_weights_equal_repeated_rows(objective):
    """Loss, all statistics, and gradients: that of a weighted row is the sum over its copies."""
    counts = np.array([[2, 0, 1, 3, 1], [1, 2, 0, 0, 1]])  # seven rows and four, not five
    weighted = random_halves(9, weights=counts.astype(float))
    rows = [np.repeat(np.arange(5), c) for c in counts]
    found, gradients = differentiate(objective, *weighted)
    repeated = [half_of(h.f[r], h.g[r]) for h, r in zip(weighted, rows, strict=True)]
    wanted, of_copies = differentiate(objective, *repeated)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), found, wanted)
    for which, (gradient, copies) in enumerate(zip(gradients, of_copies, strict=True)):
        summed = np.eye(5)[rows[which // 2]].T @ np.asarray(copies)
        np.testing.assert_allclose(gradient, summed, rtol=1e-10, atol=1e-13)


@every_variant
def test_a_row_of_weight_zero_influences_nothing(objective):
    mask = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]])
    masked = random_halves(10, weights=mask.astype(float))
    other = [
        half_of(np.where(m[:, None], h.f, 1e3), np.where(m[:, None], h.g, -1e4), h.weights)
        for h, m in zip(masked, mask == 1, strict=True)
    ]
    found, gradients = differentiate(objective, *masked)
    changed, changed_gradients = differentiate(objective, *other)
    jax.tree.map(np.testing.assert_array_equal, changed, found)
    for which, (gradient, again) in enumerate(zip(gradients, changed_gradients, strict=True)):
        np.testing.assert_allclose(again, gradient, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(np.asarray(again)[mask[which // 2] == 0], 0.0)


# ------------------------------------------------------------------------------------- minima


@pytest.fixture(scope="module")
def joint():
    """D P of a six-state chain whose singular values, 0.93, 0.71, 0.51, 0.32, 0.12, can be told apart."""
    rng = np.random.default_rng(180)
    P = 0.2 * np.eye(6)[rng.permutation(6)] + 0.8 * rng.dirichlet(np.full(6, 0.2), size=6)
    return exact.joint_matrix(rng.dirichlet(np.full(6, 5.0)), P)


def population(joint, f, g):
    """Every pair (s, s') with its probability: weights that sum to one, so expectations are exact."""
    rows, columns = (index.ravel() for index in np.indices(joint.shape))
    return Half(f[rows], g[columns], jnp.asarray(joint.ravel()))


def descend(objective, joint, k, steps, seed=0):
    """Tabular f and g by full-batch Adam with a step size that vanishes."""
    f, g = np.random.default_rng(seed).normal(size=(2, len(joint), k))
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-2, steps))

    def loss(tables):
        half = population(joint, *tables)
        return objective(half, half).loss

    def step(carry, _):
        tables, state = carry
        updates, state = optimiser.update(jax.grad(loss)(tables), state)
        return (optax.apply_updates(tables, updates), state), None

    @jax.jit
    def run(tables):
        return jax.lax.scan(step, (tables, optimiser.init(tables)), None, steps)[0][0]

    return [np.asarray(table) for table in run((f, g))]


def test_minimum_of_nested_is_the_exact_svd_in_order(joint):
    k = 4
    truth = exact.decompose(joint, k)
    assert np.min(-np.diff(truth.singular_values)) > 0.18  # else order could not be told
    f, g = descend(NestedObjective(), joint, k, steps=3000)
    half = population(joint, f, g)
    estimate = jax.jit(NestedObjective())(half, half)
    sigma = scores.correlation_matrix(joint, f, g)
    np.testing.assert_allclose(np.diag(sigma), truth.singular_values, atol=1e-6)
    np.testing.assert_allclose(off_diagonal(sigma), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.diag(estimate.statistics.sigma), truth.singular_values, atol=1e-4)
    variances = estimate.statistics.f.variance * estimate.statistics.g.variance
    np.testing.assert_allclose(variances, truth.singular_values**2, atol=1e-6)
    assert float(estimate.loss) == pytest.approx(-np.sum(truth.singular_values**2), abs=1e-9)
    centred_f, centred_g = f - truth.d @ f, g - truth.d_next @ g  # the constant mode is free
    for i in range(k):
        outer = truth.singular_values[i] * np.outer(truth.left[:, i], truth.right[:, i])
        np.testing.assert_allclose(np.outer(centred_f[:, i], centred_g[:, i]), outer, atol=1e-4)


def test_paper_loss_converges_to_the_exact_decomposition_at_small_k(joint):
    """The order of the components is not in the loss, so they are sorted first."""
    values = exact.decompose(joint, 3).singular_values
    f, g = descend(DeRexObjective(), joint, 3, steps=3000)
    sigma = scores.correlation_matrix(joint, f, g)
    np.testing.assert_allclose(np.sort(np.diag(sigma))[::-1], values, atol=1e-5)
    np.testing.assert_allclose(off_diagonal(sigma), 0.0, atol=1e-5)
    assert scores.captured_energy(joint, f) == pytest.approx(1.0, abs=1e-6)
    half = population(joint, f, g)
    assert float(jax.jit(DeRexObjective())(half, half).loss) == pytest.approx(-np.mean(values), abs=1e-4)
