"""Networks that have to work before there is data: unit scale, small actions, a way past the LSTM's gates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.encoders import InputSpec
from derex.networks.histories import ACTION_SCALE, Embedding, make_embedding
from derex.networks.inputs import UnitScale, make_encoder
from derex.networks.recurrent import LSTM, make_core

SIZE, WIDTH = 50, 32
ONE_HOT = (InputSpec((SIZE,)),)


def test_encoded_observations_have_unit_scale():
    encoder = UnitScale(make_encoder(list(ONE_HOT), WIDTH, key=jax.random.key(0)))
    for row in (jnp.eye(SIZE)[3], 1000.0 * jnp.eye(SIZE)[3]):
        assert np.mean(np.square(encoder(row))) == pytest.approx(1.0, rel=1e-3)
    assert np.all(np.isfinite(encoder(jnp.zeros(SIZE))))


def test_a_fresh_embedding_hears_observations_as_well_as_actions():
    """Of one-hot observations: how much states differ by what is observed, against what actions add."""

    def heard(embedding: Embedding) -> float:
        observed = embedding.embed_observations(jnp.eye(SIZE)[None], (1, SIZE))
        return float(np.mean(np.std(observed[0], axis=0)) / np.mean(np.std(embedding.from_action, axis=0)))

    fresh = make_embedding(ONE_HOT, 4, WIDTH, key=jax.random.key(1))
    assert np.std(fresh.from_action) == pytest.approx(ACTION_SCALE, rel=0.3)
    assert heard(fresh) > 0.5
    encoder = make_encoder(list(ONE_HOT), WIDTH, key=jax.random.key(1))
    assert heard(Embedding(encoder, WIDTH, 4, WIDTH, key=jax.random.key(1))) < 0.1


def test_a_residual_lstm_adds_its_inputs():
    plain, residual = (LSTM(WIDTH, WIDTH, flag, key=jax.random.key(2)) for flag in (False, True))
    x = jax.random.normal(jax.random.key(3), (5, 2, WIDTH))
    keep = jnp.ones((5, 2))
    out, memory = plain(x, keep, plain.initial(2))
    sums, same = residual(x, keep, residual.initial(2))
    np.testing.assert_allclose(sums, out + x, rtol=1e-6)
    np.testing.assert_array_equal(same.hidden, memory.hidden)


def test_a_residual_lstm_needs_as_many_inputs_as_units():
    with pytest.raises(ValueError, match="residual: expected as many inputs as units, got 3 and 4"):
        LSTM(3, 4, True, key=jax.random.key(0))


def test_the_recurrent_core_is_residual():
    assert make_core("lstm", WIDTH, WIDTH, key=jax.random.key(0)).residual
