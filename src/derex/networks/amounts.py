"""Amounts: numbers of any size, such as rewards; h(x) keeps small ones as they are and tells large ones by order."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Num, PRNGKeyArray, Shaped

from derex.networks.precision import matched

SLOPE = 0.001  # far out, where the root hardly grows
UNITS = 20


def signed_hyperbolic(x: Num[Array, "*shape"]) -> Float[Array, "*shape"]:
    """h(x) = sign(x) (√(|x| + 1) − 1) + 0.001 x (Pohlen et al. 2018, proposition A.2)."""
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + SLOPE * x


class Rectified(eqx.Module):
    """Numbers of any shape, linear to a few units, then a rectifier (appendix B)."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], units: int = UNITS, *, key: PRNGKeyArray):
        self.layer = eqx.nn.Linear(math.prod(shape), units, key=key)

    def __call__(self, values: Shaped[Array, "*shape"]) -> Float[Array, " units"]:
        numbers = values.ravel().astype(jnp.promote_types(values.dtype, jnp.float32))
        return jax.nn.relu(self.layer(matched(numbers, self.layer.weight)))


class Hyperbolic(eqx.Module):
    """h of each number, and no more (appendix B)."""

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " size"]:
        return signed_hyperbolic(values).ravel()


class AmountUnits(eqx.Module):
    """h of each number, then a few rectified units."""

    units: Rectified

    def __init__(self, shape: tuple[int, ...], units: int = UNITS, *, key: PRNGKeyArray):
        self.units = Rectified(shape, units, key=key)

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " units"]:
        return self.units(signed_hyperbolic(values))


class Amounts(eqx.Module):
    """The same, and a linear layer to `size` numbers."""

    units: AmountUnits
    out: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], size: int, *, key: PRNGKeyArray):
        units_key, out_key = jax.random.split(key)
        self.units = AmountUnits(shape, key=units_key)
        self.out = eqx.nn.Linear(UNITS, size, key=out_key)

    def __call__(self, values: Num[Array, "*shape"]) -> Float[Array, " size"]:
        return self.out(self.units(values))
