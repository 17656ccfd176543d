"""Correlations are computed in full single precision on every device."""

import re

import jax
import jax.numpy as jnp
import pytest

from derex.decomposition.bonus import compute_ritz_bonus
from derex.decomposition.objectives import DeRexObjective, NestedObjective
from derex.decomposition.statistics import Half, batch_normalise, precise_matmul, sigma_hat

ROWS, C, WEIGHTS = jnp.ones((8, 4)), jnp.eye(4), jnp.ones(8)
HALF = Half(ROWS, ROWS, WEIGHTS)

FUNCTIONS = {
    "correlations": lambda z: sigma_hat(z, z),
    "weighted correlations": lambda z: sigma_hat(z, z, WEIGHTS),
    "moments": lambda z: batch_normalise(z, WEIGHTS),
    "the bonus": lambda z: compute_ritz_bonus(z, C, C, C),
    "the loss": lambda z: jax.grad(lambda z: DeRexObjective()(Half(z, z, WEIGHTS), HALF).loss)(z),
    "the nested loss": lambda z: jax.grad(lambda z: NestedObjective()(Half(z, z, WEIGHTS), HALF).loss)(z),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_no_product_may_be_rounded(function):
    """An accelerator would round the operands of a product that does not ask for more to 10 bits."""
    products = re.findall(r"dot_general.*", jax.jit(function).lower(ROWS).as_text())
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in product for product in products)


def test_the_control():
    """A plain product asks for nothing."""
    text = jax.jit(lambda z: z @ z.T).lower(ROWS).as_text()
    assert "HIGHEST" not in text
    assert "HIGHEST" in jax.jit(lambda z: precise_matmul(z, z.T)).lower(ROWS).as_text()
