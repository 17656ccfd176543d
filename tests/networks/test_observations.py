"""Encoders of observations with several parts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.encoders import Conv, InputSpec
from derex.networks.inputs import Ids, Parts, Vector, infer_kind, make_encoder
from derex.networks.layers import trainable_mask

SIZE, N = 5, 12
SPECS = [  # in the order of the names: id, image, numbers
    InputSpec((), 7, "ids", "int32"),
    InputSpec((4, 4, 1), 0, "images", "uint8"),
    InputSpec((3,), 0, "vectors", "float32"),
]


def observations():
    rng = np.random.default_rng(0)
    return {
        "numbers": (3.0 + 20.0 * rng.normal(size=(N, 3))).astype(np.float32),
        "image": rng.integers(0, 256, (N, 4, 4, 1), dtype=np.uint8),
        "id": rng.integers(0, 7, N).astype(np.int32),
    }


def row(i):
    return {name: jnp.asarray(part[i]) for name, part in observations().items()}


@eqx.filter_jit
def encode(encoder, observation):
    return encoder(observation)


@pytest.fixture(scope="module")
def built():
    return make_encoder(SPECS, SIZE, key=jax.random.key(0))


@pytest.fixture(scope="module")
def prepared(built):
    return built.prepared(observations())


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((84, 84, 3), np.uint8, "images"),
        ((5, 5, 2), np.float32, "images"),
        ((), np.int64, "ids"),
        ((), np.uint8, "ids"),
        ((), np.float32, "vectors"),
        ((), np.bool_, "vectors"),
        ((4,), np.float64, "vectors"),
        ((4,), np.int32, "vectors"),
        ((1,), np.int32, "vectors"),
        ((3, 3), np.uint8, "vectors"),
        ((2, 2, 2, 2), np.float32, "vectors"),
    ],
)
def test_kinds(shape, dtype, kind):
    assert infer_kind(shape, np.dtype(dtype)) == kind


def test_each_part_has_the_encoder_of_its_kind(built):
    assert [type(encoder) for encoder in built.encoders] == [Ids, Conv, Vector]
    assert built.encoders[0].table.shape == (7, SIZE)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_part_gives_as_many_numbers(count):
    encoder = make_encoder(SPECS[:count], SIZE, key=jax.random.key(0))
    example = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in SPECS[:count]]
    out = eqx.filter_eval_shape(encoder, example)
    assert (out.shape, out.dtype) == ((count * SIZE,), jnp.float32)


def test_outputs_are_those_of_the_parts_in_the_order_of_their_names(prepared):
    one = row(0)
    named = zip(prepared.encoders, ("id", "image", "numbers"), strict=True)
    wanted = np.concatenate([encode(encoder, one[name]) for encoder, name in named])
    assert np.all(np.isfinite(wanted))
    np.testing.assert_allclose(encode(prepared, one), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("place", "name"), [(0, "id"), (1, "image"), (2, "numbers")])
def test_a_part_moves_its_own_numbers_only(prepared, place, name):
    one, other = row(0), row(1)
    moved = np.reshape(encode(prepared, one) != encode(prepared, {**one, name: other[name]}), (3, SIZE))
    np.testing.assert_array_equal(moved.any(axis=1), np.arange(3) == place)


def test_a_batch_is_its_rows(prepared):
    batch = encode(jax.vmap(prepared), jax.tree.map(jnp.asarray, observations()))
    assert batch.shape == (N, 3 * SIZE)
    for i in (0, N - 1):
        np.testing.assert_allclose(batch[i], encode(prepared, row(i)), rtol=1e-4, atol=1e-5)


def test_preparing_sets_the_scales_of_each_part(built, prepared):
    """The mean picture, and centre and reach of the numbers; what is trained stays as it was."""
    rows = observations()
    np.testing.assert_allclose(prepared.encoders[1].mean.value, rows["image"].mean(axis=0) / 255.0, rtol=1e-5)
    scale, mean = prepared.encoders[2].mlp.scale, rows["numbers"].mean(axis=0)
    np.testing.assert_allclose(scale.mean.value, mean, rtol=1e-5)
    np.testing.assert_allclose(scale.reach.value, np.abs(rows["numbers"] - mean).max(axis=0), rtol=1e-5)
    assert jax.tree.structure(prepared) == jax.tree.structure(built)
    before, after = (jax.tree.leaves(eqx.filter(e, trainable_mask(e))) for e in (built, prepared))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    np.testing.assert_array_equal(built.encoders[2].mlp.scale.reach.value, np.ones(3))


def test_every_part_learns(prepared):
    params, fixed = eqx.partition(prepared, trainable_mask(prepared))
    rows = jax.tree.map(jnp.asarray, observations())
    gradients = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(jax.vmap(eqx.combine(p, fixed))(rows)))))(params)
    for part in gradients.encoders:
        leaves = jax.tree.leaves(part)
        assert leaves
        assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0.0) for leaf in leaves)


def test_like_parts_do_not_share_weights():
    encoder = make_encoder([SPECS[2]] * 2, SIZE, key=jax.random.key(0))
    first, second = encoder(tuple(jnp.ones((2, 3)))).reshape(2, SIZE)
    assert not np.any(first == second)


def test_building_is_deterministic(built):
    again, other = (make_encoder(SPECS, SIZE, key=jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(encode(again, row(0)), encode(built, row(0)))
    assert not np.any(encode(other, row(0)) == encode(built, row(0)))


def test_a_missing_part_is_an_error(built):
    with pytest.raises(ValueError, match="shorter"):
        built({name: part for name, part in row(0).items() if name != "numbers"})
    with pytest.raises(ValueError, match="shorter"):
        built.prepared({name: part for name, part in observations().items() if name != "numbers"})


def test_ids_are_rows_of_a_table():
    ids = Ids(4, SIZE, key=jax.random.key(0))
    for dtype in (jnp.int32, jnp.uint8):
        np.testing.assert_array_equal(jax.vmap(ids)(jnp.arange(4, dtype=dtype)), ids.table)


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
def test_numbers_of_any_shape_and_unit(shape):
    """They are flattened, and other units say the same."""
    rows = np.random.default_rng(0).normal(size=(N, *shape)).astype(np.float32)
    vector = Vector(shape, SIZE, key=jax.random.key(0))
    out = jax.vmap(vector.prepared(rows))(jnp.asarray(rows))
    assert out.shape == (N, SIZE)
    flat = Vector((rows[0].size,), SIZE, key=jax.random.key(0)).prepared(rows.reshape(N, -1))
    np.testing.assert_allclose(out, jax.vmap(flat)(jnp.asarray(rows.reshape(N, -1))), rtol=1e-5, atol=1e-6)
    converted = 1000.0 * rows - 300.0
    again = jax.vmap(vector.prepared(converted))(jnp.asarray(converted))
    np.testing.assert_allclose(out, again, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
def test_whole_numbers_are_read_by_their_values(dtype):
    rows = np.random.default_rng(0).integers(0, 200, (N, 3))
    encoder = make_encoder([InputSpec((3,), 0, "vectors", np.dtype(dtype).name)], SIZE, key=jax.random.key(0))
    out = jax.vmap(encoder.prepared(rows.astype(dtype)))(jnp.asarray(rows.astype(dtype)))
    wanted = jax.vmap(encoder.prepared(rows.astype(np.float64)))(jnp.asarray(rows, jnp.float32))
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_an_encoder_without_scales_is_left_as_it_is():
    parts = Parts((eqx.nn.Identity(), Vector((2,), SIZE, key=jax.random.key(0))))
    rows = (np.ones((N, 1), np.float32), np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32))
    prepared = parts.prepared(rows)
    out = prepared((jnp.full(1, 7.0), jnp.asarray(rows[1][0])))
    assert out.shape == (1 + SIZE,)
    assert out[0] == 7.0
