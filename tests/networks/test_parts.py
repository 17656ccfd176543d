"""Parts of observations: what is declared, and the encoder that each gets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.encoders import Conv, InputSpec
from derex.networks.inputs import (
    PARTS,
    Amounts,
    ByteNumbers,
    Bytes,
    Vector,
    describe_parts,
    make_encoder,
    part_kind,
    signed_hyperbolic,
)
from derex.networks.tokens import FlatSymbols, Instructions, SymbolGrid, encode_one_hot
from derex.types import Amount, Symbols, Words

SIZE = 6


def of(shape, dtype):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("leaf", "part", "kind", "encoder"),
    [
        (of((8, 8, 3), np.uint8), InputSpec((8, 8, 3), kind="images"), "images", Conv),
        (of((8, 8, 3), np.float32), InputSpec((8, 8, 3), kind="images"), "images", Conv),
        (of((8, 8, 3), np.bool_), InputSpec((8, 8, 3), kind="images"), "images", Conv),
        (of((4,), np.float32), InputSpec((4,), kind="vectors"), "vectors", Vector),
        (of((), np.float32), InputSpec((), kind="vectors"), "vectors", Vector),
        (of((4,), np.int32), InputSpec((4,), kind="vectors"), "vectors", Vector),
        (of((4,), np.uint8), ByteNumbers((4,)), "bytes", Bytes),
        (Symbols((5, 5, 2), (3, 4)), Symbols((5, 5, 2), (3, 4)), "symbols", FlatSymbols),
        (Symbols((), (7,)), Symbols((), (7,)), "symbols", FlatSymbols),
        (Symbols((25, 25, 3), (11, 6, 4)), Symbols((25, 25, 3), (11, 6, 4)), "symbols", SymbolGrid),
        (Words(5, 30), Words(5, 30), "words", Instructions),
        (Amount(), Amount(), "amounts", Amounts),
        (Amount((2,)), Amount((2,)), "amounts", Amounts),
    ],
    ids=str,
)
def test_every_kind_of_part(leaf, part, kind, encoder):
    """Its declaration, its name, its encoder, and that this one reads it: one and many."""
    parts = describe_parts({"it": leaf})
    assert parts == (part,)
    assert part_kind(parts[0]) == kind
    built = make_encoder(parts, SIZE, key=jax.random.key(0))
    assert isinstance(built.encoders[0], encoder)
    example = of(leaf.shape, leaf.dtype)
    out = eqx.filter_eval_shape(built, (example,))
    assert (out.shape, out.dtype) == ((SIZE,), jnp.float32)
    many = eqx.filter_eval_shape(built.rows, (of((3, *leaf.shape), leaf.dtype),))
    assert many.shape == (3, SIZE)


def test_parts_come_in_the_order_of_their_names():
    parts = describe_parts({"b": Amount(), "a": Words(3), "c": (of((2,), np.float32), Symbols((), (4,)))})
    assert [part_kind(part) for part in parts] == ["words", "amounts", "vectors", "symbols"]
    assert set(PARTS) >= {part_kind(part) for part in parts}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"room": of((), np.int32)}, r"observation\['room'\]: a single integer.*Symbols\(\(\)"),
        (of((), np.uint8), "observation: a single integer.*Amount"),
        ({"grid": of((5, 5, 2), np.int32)}, r"observation\['grid'\]: integers.*Symbols"),
        (Symbols((5, 5, 2), (3,)), r"expected 2 sizes.*got \(3,\)"),
        (Symbols((2,), (3, 0)), "of at least 1"),
        (Symbols((), (3, 3)), "expected 1 sizes"),
        (Words(0), "length of at least 1"),
        (Words(4, 1), "2 buckets or more"),
        ({}, "at least one part"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused(observation, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        describe_parts(observation)


def test_symbols_side_by_side():
    values = jnp.asarray([[[0, 3], [2, 0]]], jnp.uint8)
    wanted = [[[1, 0, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0, 0]]]
    np.testing.assert_array_equal(encode_one_hot(values, (3, 4)), wanted)
    np.testing.assert_array_equal(encode_one_hot(jnp.asarray(2), (4,)), [0, 0, 1, 0])
    np.testing.assert_array_equal(
        encode_one_hot(jnp.asarray([7, 1]), (3, 2)), [0, 0, 0, 0, 1]
    )  # 7 is none of 3


def test_every_symbol_matters_and_its_place_does():
    encoder = FlatSymbols(Symbols((2, 2, 2), (3, 4)), SIZE, key=jax.random.key(0))
    base = jnp.zeros((2, 2, 2), jnp.uint8)
    outs = [encoder(base)] + [encoder(base.at[place].set(1)) for place in np.ndindex(2, 2, 2)]
    assert len({tuple(np.asarray(out).tolist()) for out in outs}) == 9
    rms = np.sqrt(np.mean(np.square(np.asarray(outs))))
    assert 0.1 < rms < 3.0


def test_signed_hyperbolic():
    """Values worked out by hand; odd, and steep where it matters."""
    x = jnp.asarray([0.0, 3.0, -3.0, 99.0, 1e6])
    wanted = [0.0, 1.003, -1.003, 9.099, 999.0005 + 1000.0]
    np.testing.assert_allclose(signed_hyperbolic(x), wanted, rtol=1e-6)
    assert jax.grad(signed_hyperbolic)(0.1) == pytest.approx(0.5 / 1.1**0.5 + 0.001)
    assert np.isfinite(jax.grad(signed_hyperbolic)(0.0))


def test_bytes_are_fractions():
    encoder = Bytes((3,), SIZE, key=jax.random.key(0))
    values = jnp.asarray([0, 100, 255], jnp.uint8)
    np.testing.assert_allclose(encoder(values), encoder.vector(values / 255.0))
    rows = np.random.default_rng(0).integers(0, 256, (20, 3)).astype(np.uint8)
    out = jax.vmap(encoder.prepared(rows))(jnp.asarray(rows))
    plain = encoder.vector.prepared(rows)
    np.testing.assert_allclose(out, jax.vmap(plain)(jnp.asarray(rows)), rtol=1e-4, atol=1e-5)


def test_truths_are_a_picture_of_0_and_1():
    conv = Conv((4, 4, 1), SIZE, key=jax.random.key(0))
    image = jax.random.bernoulli(jax.random.key(1), 0.5, (4, 4, 1))
    np.testing.assert_array_equal(conv(image), conv(image.astype(jnp.float32)))
