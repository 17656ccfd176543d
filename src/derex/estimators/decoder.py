"""A linear decoder of hidden states: how much a representation says about them (Section 5, Figure 4).

Shapes: n rows, k features, m classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

MIN_DEVIATION = 1e-6
MIN_LOG_LOSS = 1e-4  # below it there is nothing left to learn


class LinearReadout(NamedTuple):
    """One linear layer and a softmax."""

    mean: Float[Array, " k"]
    spread: Float[Array, " k"]
    weight: Float[Array, "k m"]
    bias: Float[Array, " m"]

    @jax.jit
    def probabilities(self, features: Float[Any, "*batch k"]) -> Float[Array, "*batch m"]:
        """Computes Pr(class | features)."""
        with jax.default_matmul_precision("highest"):
            logits = (features - self.mean) / self.spread @ self.weight + self.bias
        return jax.nn.softmax(logits)


def fit_readout(
    features: Float[Any, "n k"], classes: Int[Any, " n"], m: int, iterations: int = 300
) -> LinearReadout:
    """Fits a read-out by maximum likelihood: L-BFGS on all rows at once, features standardised first.

    Args:
        features: (n, k).
        classes: (n,), the integers to predict, below m.
        m: number of classes; those that never occur get small probabilities.
        iterations: of L-BFGS. The problem is convex; they bound how sharp the read-out becomes.
    """
    x, y = jnp.asarray(features, jnp.float32), jnp.asarray(classes, jnp.int32)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"features and classes: expected shapes (n, k) and (n,), got {x.shape} and {y.shape}."
        )
    if not 0 <= int(y.min()) <= int(y.max()) < m:
        raise ValueError(f"classes: expected numbers from 0 to {m - 1}, got {y.min()} to {y.max()}.")
    return _fit(x, y, m=m, iterations=iterations)


@partial(jax.jit, static_argnames=("m", "iterations"))
def _fit(x: Float[Array, "n k"], y: Int[Array, " n"], *, m: int, iterations: int) -> LinearReadout:
    mean, spread = x.mean(axis=0), x.std(axis=0) + MIN_DEVIATION
    x = (x - mean) / spread
    start = (jnp.zeros((x.shape[1], m)), jnp.log(jnp.bincount(y, length=m) + 1.0))
    solver = optax.lbfgs()

    def loss(layer: tuple[Array, Array]) -> Array:
        with jax.default_matmul_precision("highest"):
            logits = x @ layer[0] + layer[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry: Any, _: None) -> tuple[Any, None]:
        layer, state = carry
        value, gradient = optax.value_and_grad_from_state(loss)(layer, state=state)
        updates, following = solver.update(gradient, state, layer, value=value, grad=gradient, value_fn=loss)
        moved: Any = optax.apply_updates(layer, updates)
        # Perfectly separable classes have no best layer: stop before the weights overflow.
        finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((moved, value))]
        sound = jnp.all(jnp.stack(finite)) & (jnp.asarray(value) > MIN_LOG_LOSS)
        chosen = jax.tree.map(lambda new, old: jnp.where(sound, new, old), (moved, following), (layer, state))
        return chosen, None

    (layer, _), _ = jax.lax.scan(step, (start, solver.init(start)), None, length=iterations)
    return LinearReadout(mean, spread, *layer)


def belief_scores(
    belief: Float[Any, "n m"], true: Int[Any, " n"], distance: Float[np.ndarray, "m m"]
) -> dict[str, float]:
    """Scores beliefs about a hidden state.

    Args:
        belief: (n, m), probabilities of each state.
        true: (n,), the states.
        distance: (m, m), between states.

    Returns:
        accuracy of the likeliest state, log_loss of the true one, the expected distance of a state drawn from the
        belief, and the mean distance of the likeliest state.
    """
    belief, true = np.asarray(belief, np.float32), np.asarray(true)
    guess = belief.argmax(axis=1)
    given = np.maximum(belief[np.arange(len(true)), true], np.finfo(np.float32).tiny)
    return {
        "accuracy": float(np.mean(guess == true)),
        "log_loss": float(-np.mean(np.log(given.astype(np.float64)))),
        "distance": float(np.mean(np.einsum("nm,nm->n", belief, distance[true].astype(np.float32)))),
        "distance_of_guess": float(np.mean(distance[true, guess])),
    }
