"""The convolution in its two forms, and the encoder built of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.networks.encoders import SMALLEST, Conv, Convolution, convolve, convolve_by_patches

SIZES = [(1, 1), (3, 5), (4, 7), (8, 6)]


@pytest.mark.parametrize("size", SIZES)
def test_patches_and_convolution_agree(size):
    """Values and gradients, for odd and even sides."""
    rng = np.random.default_rng(0)
    image, weight = jnp.asarray(rng.normal(size=(*size, 3))), jnp.asarray(rng.normal(size=(27, 4)))
    direction = rng.normal(size=(-(-size[0] // 2), -(-size[1] // 2), 4))

    @partial(jax.jit, static_argnums=0)
    def values_and_gradients(form, image, weight):
        out, pull = jax.vjp(form, image, weight)
        return out, pull(jnp.asarray(direction, out.dtype))

    found = [values_and_gradients(form, image, weight) for form in (convolve_by_patches, convolve)]
    assert found[0][0].shape == direction.shape
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *found)


def test_patches_by_hand():
    """The centre of each window is every second pixel; outside the image there are zeros."""
    image = jnp.arange(1.0, 13.0).reshape(3, 4, 1)
    centre, left, all_of_it = (np.zeros((9, 1), np.float32) for _ in range(3))
    centre[4], left[3], all_of_it[:] = 1.0, 1.0, 1.0
    np.testing.assert_array_equal(convolve_by_patches(image, jnp.asarray(centre))[..., 0], [[1, 3], [9, 11]])
    np.testing.assert_array_equal(convolve_by_patches(image, jnp.asarray(left))[..., 0], [[0, 2], [0, 10]])
    np.testing.assert_array_equal(convolve_by_patches(image, jnp.asarray(all_of_it))[0, 0, 0], 1 + 2 + 5 + 6)


def test_a_layer_is_rectified_and_keeps_the_scale():
    layer = Convolution(8, 16, key=jax.random.key(0))
    out = layer(jax.random.normal(jax.random.key(1), (20, 20, 8)))
    assert out.min() == 0.0
    assert float(jnp.mean(out[1:-1, 1:-1] ** 2)) == pytest.approx(1.0, abs=0.3)  # E relu(z)² = E z²/2 = 1


@pytest.mark.parametrize(
    ("shape", "layers"), [((5, 5, 1), 1), ((16, 9, 3), 1), ((17, 9, 3), 2), ((84, 84, 4), 4)]
)
def test_convolutions_go_on_until_the_image_is_small(shape, layers):
    encoder = Conv(shape, 3, channels=2, width=5, key=jax.random.key(0))
    assert len(encoder.convolutions) == layers
    height, width = (int(np.ceil(side / 2**layers)) for side in shape[:2])
    assert max(height, width) <= SMALLEST
    assert encoder.hidden.in_features == height * width * (2 if layers == 1 else 4)
    assert jax.eval_shape(encoder, jnp.zeros(shape)).shape == (3,)


def test_bytes_are_fractions_of_255():
    encoder = Conv((4, 4, 1), 2, channels=2, width=5, key=jax.random.key(0))
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 16
    np.testing.assert_allclose(encoder(jnp.asarray(image)), encoder(jnp.asarray(image / 255.0)), rtol=1e-5)


@pytest.mark.parametrize("scale", [1, 255.0], ids=["bytes", "fractions"])
def test_the_mean_image_is_taken_out(scale):
    rows = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 1), dtype=np.uint8)
    built = Conv((4, 4, 1), 2, channels=2, width=5, key=jax.random.key(0))
    prepared = built.prepared(rows if scale == 1 else rows / scale)
    np.testing.assert_allclose(prepared.mean.value, rows.mean(axis=0) / 255.0, rtol=1e-5)
    image = jnp.asarray(rows[0] / 255.0, jnp.float32)
    np.testing.assert_allclose(prepared(image), built(image - prepared.mean.value), rtol=1e-4, atol=1e-6)
