"""The same numbers to the last bit, run after run.

On a CPU a program gives them anyway. On a GPU sums can be taken in any order, and kernels are chosen by timing them:
XLA has a flag against both, which is read when JAX first looks for devices.
"""

from __future__ import annotations

import os

FLAG = "--xla_gpu_deterministic_ops=true"


def require_determinism() -> None:
    """Sets the flag, or raises where it is too late for it."""
    import jax
    from jax._src import xla_bridge  # there is no public way to ask whether devices have been looked for

    flags = os.environ.get("XLA_FLAGS", "").split()
    if FLAG in flags:
        return
    if not xla_bridge.backends_are_initialized():
        os.environ["XLA_FLAGS"] = " ".join([*flags, FLAG])
    elif jax.default_backend() == "gpu":
        raise ValueError(
            f"deterministic: JAX has been used in this process already; set XLA_FLAGS={FLAG} before Python starts, or "
            "use derex train --deterministic."
        )
