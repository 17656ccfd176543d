"""Threads of the linear algebra that JAX calls on a processor: one is quicker than several.

OpenBLAS shares out even small triangular systems, and its threads then spin for some 30 ms in case there are more. XLA
has threads of its own, which wait for the cores meanwhile: on two cores a training step of De-Rex takes a tenth
longer, and the step after every line of the log another tenth.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import jax
from threadpoolctl import threadpool_limits


def one_blas_thread() -> AbstractContextManager[object]:
    """While it is entered, on a processor; an accelerator has no need of it."""
    return threadpool_limits(1, user_api="blas") if jax.default_backend() == "cpu" else nullcontext()
