"""Cores: modules that turn the embeddings of whole streams into beliefs, with memory (`LSTM`) or without.

The time of a scan is one small matrix product after another, so everything that does not depend on the previous step is
moved out of it: inputs are projected in one product before, and the gradient of the recurrent weight is one product
after (reverse-mode differentiation of the plain scan would add a whole weight matrix at every step).

A core is an Equinox module with `width`, `initial(*batch)` and a call (inputs, keep, memory) -> (outputs, memory) like
that of `LSTM`. A new core is a module and one entry in `CORES`; user code may add its own and name it in
`AgentConfig.core`.

Shapes: T steps, B streams, H units; gates in the order input, forget, cell, output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from derex._text import require
from derex.networks.layers import match_precision, matmul

GPU_UNROLL = 4
FORGET_BIAS = 1.0  # remember by default, so that early gradients reach far back


class LSTMState(NamedTuple):
    """Hidden state and cell carried from step to step."""

    hidden: Float[Array, "*B H"]
    cell: Float[Array, "*B H"]


class LSTM(eqx.Module):
    """i, f, o = σ(·), g = tanh(·) of x_t W_x + h_{t-1} W_h + c;  c_t = f c_{t-1} + i g;  h_t = o tanh c_t.

    Returns h_t, or with `residual` h_t + x_t: h_t stays within ±1 and hardly distinguishes inputs at first, so the
    residual path speeds up learning about the present step.
    """

    input_weight: Float[Array, "size 4*H"]
    state_weight: Float[Array, "H 4*H"]
    bias: Float[Array, " 4*H"]
    residual: bool = eqx.field(static=True)

    def __init__(self, size: int, width: int, residual: bool = False, *, key: PRNGKeyArray):
        require(not residual or size == width, "residual", "as many inputs as units", f"{size} and {width}")
        self.residual = residual
        input_key, state_key = jax.random.split(key)
        self.input_weight = jax.nn.initializers.glorot_uniform()(input_key, (size, 4 * width))
        orthogonal = jax.nn.initializers.orthogonal()
        keys = jax.random.split(state_key, 4)
        self.state_weight = jnp.concatenate([orthogonal(k, (width, width)) for k in keys], axis=1)
        self.bias = jnp.zeros(4 * width).at[width : 2 * width].set(FORGET_BIAS)

    @property
    def width(self) -> int:
        """Number of units H."""
        return self.state_weight.shape[0]

    def initial(self, *batch: int) -> LSTMState:
        """Nothing remembered, for each of the streams."""
        return LSTMState(jnp.zeros((*batch, self.width)), jnp.zeros((*batch, self.width)))

    def __call__(
        self, inputs: Float[Array, "T B size"], keep: Float[Array, "T B"], memory: LSTMState
    ) -> tuple[Float[Array, "T B H"], LSTMState]:
        """Outputs of all steps and the memory after the last; `keep` 0 forgets everything before that step."""
        projected = matmul(inputs, self.input_weight) + self.bias
        outputs, memory = scan(projected, keep, self.state_weight, memory)
        return outputs + inputs if self.residual else outputs, memory


def scan_unroll() -> int:
    """Steps per loop iteration of a scan: fewer, larger iterations pay off where launches dominate."""
    return GPU_UNROLL if jax.default_backend() == "gpu" else 1


@jax.custom_vjp
def scan(
    projected: Float[Array, "T B G"],
    keep: Float[Array, "T B"],
    weight: Float[Array, "H G"],
    memory: LSTMState,
) -> tuple[Float[Array, "T B H"], LSTMState]:
    """The recurrence on inputs that are already projected to the G = 4H gates."""
    return _scan_forward(projected, keep, weight, memory)[0]


def _scan_forward(projected: Array, keep: Array, weight: Array, memory: LSTMState):
    def step(memory: LSTMState, inputs: tuple[Array, Array]):
        x, kept = inputs
        i, f, g, o = jnp.split(x + matmul(memory.hidden * kept[:, None], weight), 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        cell = f * memory.cell * kept[:, None] + i * g
        hidden = o * jnp.tanh(cell)
        return LSTMState(hidden, cell), (hidden, cell, jnp.concatenate([i, f, g, o], axis=-1))

    last, (hidden, cell, gates) = jax.lax.scan(step, memory, (projected, keep), unroll=scan_unroll())
    return (hidden, last), (keep, weight, memory, hidden, cell, gates)


def _scan_backward(saved: tuple, gradients: tuple[Array, LSTMState]):
    keep, weight, memory, hidden, cell, gates = saved
    d_outputs, d_last = gradients
    kept = keep[..., None]
    cell_before = jnp.concatenate([memory.cell[None], cell[:-1]]) * kept
    hidden_before = jnp.concatenate([memory.hidden[None], hidden[:-1]]) * kept

    def step(carry: LSTMState, inputs: tuple[Array, ...]):
        d_output, gates, cell, cell_before, kept = inputs
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        squashed = jnp.tanh(cell)
        d_hidden = carry.hidden + d_output
        d_cell = carry.cell + d_hidden * o * (1.0 - squashed**2)
        d_gates = jnp.concatenate(
            [
                d_cell * g * i * (1.0 - i),
                d_cell * cell_before * f * (1.0 - f),
                d_cell * i * (1.0 - g**2),
                d_hidden * squashed * o * (1.0 - o),
            ],
            axis=-1,
        )
        return LSTMState(matmul(d_gates, weight.T) * kept, d_cell * f * kept), d_gates

    inputs = (d_outputs, gates, cell, cell_before, kept)
    d_memory, d_gates = jax.lax.scan(step, d_last, inputs, reverse=True, unroll=scan_unroll())
    d_weight = jnp.einsum(
        "tbh,tbg->hg", match_precision(hidden_before, weight), match_precision(d_gates, weight)
    )
    return d_gates, jnp.zeros_like(keep), d_weight, d_memory


scan.defvjp(_scan_forward, _scan_backward)


class FeedForward(eqx.Module):
    """One rectified layer without memory: b_t depends on o_t and a_{t-1} only."""

    weight: Float[Array, "size H"]
    bias: Float[Array, " H"]

    def __init__(self, size: int, width: int, *, key: PRNGKeyArray):
        self.weight = jax.nn.initializers.he_normal()(key, (size, width))
        self.bias = jnp.zeros(width)

    @property
    def width(self) -> int:
        return len(self.bias)

    def initial(self, *batch: int) -> tuple[()]:
        return ()

    def __call__(
        self, inputs: Float[Array, "T B size"], keep: Float[Array, "T B"], memory: tuple[()]
    ) -> tuple[Float[Array, "T B H"], tuple[()]]:
        return jax.nn.relu(matmul(inputs, self.weight) + self.bias), memory


CORES: dict[str, Callable[..., Any]] = {"lstm": partial(LSTM, residual=True), "feed-forward": FeedForward}
"""Builders (size, width, key) -> core."""


def make_core(name: str, size: int, width: int, *, key: PRNGKeyArray) -> Any:
    """Build the core of that name in `CORES`."""
    if name not in CORES:
        raise ValueError(f"agent.core: expected one of {', '.join(CORES)}; got {name!r}.")
    return CORES[name](size, width, key=key)
