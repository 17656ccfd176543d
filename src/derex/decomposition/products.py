"""Matrix products in full single precision.

Accelerators round the operands of a float32 product to 10 bits of mantissa unless told otherwise (NVIDIA's TF32). For
a layer of a network that is harmless. A correlation is then wrong by 1e-3, where the ridge that keeps a correlation
matrix invertible is 1e-5: Cholesky's factorisation fails, and what does not fail is a bonus made of rounding.
"""

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision


def exact_product(a: Array, b: Array) -> Array:
    """a @ b, as precise as float32 is."""
    return jnp.matmul(a, b, precision=Precision.HIGHEST)
