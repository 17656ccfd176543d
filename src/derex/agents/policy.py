"""Policies as distributions over actions, parametrised by a network's output.

A policy is a hashable record without arrays; its parameters are finite arrays (*B, S). All have the same methods:
`sample` draws one action for each element of the leading axes, `mode` is the likeliest action, `log_prob` is log π(a)
and `entropy` -E log π(a). `kl` is KL(old ‖ new) in its P parts, named by `kl_parts`, each with its own bound and
multiplier. `encoded` is the action as network input, zeros for no action.

Shapes: *B leading axes, S = `size` policy parameters, W = `width` numbers that encode an action, P parts of the
divergence.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Float32, Int, PRNGKeyArray

from derex._text import require
from derex.types import ActionSpec, Box, Discrete, MultiDiscrete

INITIAL_SCALE = 0.5  # of a Gaussian whose parameters are 0, in units of half the range
SMALLEST_SCALE = 1e-4  # in the same units


@dataclass(frozen=True)
class Categorical:
    """One of n choices; the parameters are logits."""

    n: int
    kl_parts: ClassVar[tuple[str, ...]] = ("policy",)

    def __post_init__(self) -> None:
        require(self.n >= 1, "n", "at least one choice", self.n)

    @property
    def size(self) -> int:
        return self.n

    width = size

    def sample(self, parameters: Float[Array, "*B S"], key: PRNGKeyArray) -> Int[Array, "*B"]:
        return jax.random.categorical(key, _checked(self, parameters)).astype(jnp.int32)

    def mode(self, parameters: Float[Array, "*B S"]) -> Int[Array, "*B"]:
        return jnp.argmax(_checked(self, parameters), axis=-1).astype(jnp.int32)

    def log_prob(self, parameters: Float[Array, "*B S"], action: Int[Array, "*B"]) -> Float[Array, "*B"]:
        log_p = jax.nn.log_softmax(_checked(self, parameters))
        return jnp.take_along_axis(log_p, action[..., None], axis=-1)[..., 0]

    def entropy(self, parameters: Float[Array, "*B S"]) -> Float[Array, "*B"]:
        """-Σ_a p(a) log p(a)."""
        log_p = jax.nn.log_softmax(_checked(self, parameters))
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def kl(self, old: Float[Array, "*B S"], new: Float[Array, "*B S"]) -> Float[Array, "*B 1"]:
        """Σ_a p(a) [log p(a) - log q(a)], p the old policy and q the new."""
        log_p, log_q = jax.nn.log_softmax(_checked(self, old)), jax.nn.log_softmax(new)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1, keepdims=True)

    def encoded(self, action: Int[Array, "*B"]) -> Float32[Array, "*B W"]:
        """One-hot; zeros for `NO_ACTION`."""
        return jax.nn.one_hot(action, self.n, dtype=jnp.float32)


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices, the i-th one of sizes[i]; the parameters are their concatenated logits."""

    sizes: tuple[int, ...]
    kl_parts: ClassVar[tuple[str, ...]] = ("policy",)

    def __post_init__(self) -> None:
        require(min(self.sizes, default=0) >= 1, "sizes", "at least one, each at least 1", self.sizes)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    width = size

    def sample(self, parameters: Float[Array, "*B S"], key: PRNGKeyArray) -> Int[Array, "*B m"]:
        keys = jax.random.split(key, len(self.sizes))
        return jnp.stack(self._map(Categorical.sample, self._split(parameters), keys), axis=-1)

    def mode(self, parameters: Float[Array, "*B S"]) -> Int[Array, "*B m"]:
        return jnp.stack(self._map(Categorical.mode, self._split(parameters)), axis=-1)

    def log_prob(self, parameters: Float[Array, "*B S"], action: Int[Array, "*B m"]) -> Float[Array, "*B"]:
        """Σ_i log p_i(a_i)."""
        return _sum(self._map(Categorical.log_prob, self._split(parameters), self._columns(action)))

    def entropy(self, parameters: Float[Array, "*B S"]) -> Float[Array, "*B"]:
        return _sum(self._map(Categorical.entropy, self._split(parameters)))

    def kl(self, old: Float[Array, "*B S"], new: Float[Array, "*B S"]) -> Float[Array, "*B 1"]:
        """KL of the joint distribution: the sum over the choices."""
        return _sum(self._map(Categorical.kl, self._split(old), self._split(new)))

    def encoded(self, action: Int[Array, "*B m"]) -> Float32[Array, "*B W"]:
        """Concatenated one-hots; zeros for each `NO_ACTION`."""
        return jnp.concatenate(self._map(Categorical.encoded, self._columns(action)), axis=-1)

    def _map(self, method: Callable[..., Array], *arguments: Iterable[Array]) -> list[Array]:
        """The method of each choice, with the arguments of that choice."""
        return [method(*each) for each in zip(map(Categorical, self.sizes), *arguments, strict=True)]

    def _split(self, parameters: Array) -> list[Array]:
        return jnp.split(_checked(self, parameters), list(accumulate(self.sizes))[:-1], axis=-1)

    def _columns(self, action: Array) -> list[Array]:
        good = action.shape[-1] == len(self.sizes)
        require(good, "action", f"{len(self.sizes)} numbers each", f"shape {action.shape}")
        return [action[..., i] for i in range(len(self.sizes))]


@dataclass(frozen=True)
class Gaussian:
    """A vector of independent normal variables; parameters are the means, then the raw scales.

    In units of half the range h = (high - low)/2 about its centre c,

        μ = c + h m,    σ = h [softplus(ρ + ρ₀) + 10⁻⁴],    parameters (m, ρ),

    with ρ₀ such that ρ = 0 is σ = h/2. Actions are not squashed: environments clip them, and the agent learns from
    the action that was drawn, not the clipped one.
    """

    dimensions: int
    low: float = -1.0
    high: float = 1.0
    kl_parts: ClassVar[tuple[str, ...]] = ("mean", "covariance")

    def __post_init__(self) -> None:
        require(self.dimensions >= 1, "dimensions", "at least one", self.dimensions)
        finite = -math.inf < self.low < self.high < math.inf
        require(finite, "low, high", "finite low < high", f"{self.low} and {self.high}")

    @property
    def size(self) -> int:
        return 2 * self.dimensions

    @property
    def width(self) -> int:
        return self.dimensions

    def mean_and_scale(
        self, parameters: Float[Array, "*B S"]
    ) -> tuple[Float[Array, "*B d"], Float[Array, "*B d"]]:
        """μ and σ, in the units of the actions."""
        m, rho = jnp.split(_checked(self, parameters), 2, axis=-1)
        centre, h = (self.low + self.high) / 2, (self.high - self.low) / 2
        rho_0 = math.log(math.expm1(INITIAL_SCALE - SMALLEST_SCALE))
        return centre + h * m, h * (jax.nn.softplus(rho + rho_0) + SMALLEST_SCALE)

    def sample(self, parameters: Float[Array, "*B S"], key: PRNGKeyArray) -> Float[Array, "*B d"]:
        mu, sigma = self.mean_and_scale(parameters)
        return mu + sigma * jax.random.normal(key, mu.shape, mu.dtype)

    def mode(self, parameters: Float[Array, "*B S"]) -> Float[Array, "*B d"]:
        return self.mean_and_scale(parameters)[0]

    def log_prob(self, parameters: Float[Array, "*B S"], action: Float[Array, "*B d"]) -> Float[Array, "*B"]:
        """Σ_i -½((a - μ)/σ)² - log σ - ½ log 2π."""
        mu, sigma = self.mean_and_scale(parameters)
        each = -jnp.square((action - mu) / sigma) / 2 - jnp.log(sigma) - math.log(2 * math.pi) / 2
        return jnp.sum(each, axis=-1)

    def entropy(self, parameters: Float[Array, "*B S"]) -> Float[Array, "*B"]:
        """Σ_i log σ + ½ log 2πe."""
        _, sigma = self.mean_and_scale(parameters)
        return jnp.sum(jnp.log(sigma) + math.log(2 * math.pi * math.e) / 2, axis=-1)

    def kl(self, old: Float[Array, "*B S"], new: Float[Array, "*B S"]) -> Float[Array, "*B 2"]:
        """The divergence of the mean, then of the covariance, each with the other held at its old value.

            KL_μ = KL(N(μ, σ) ‖ N(μ', σ)) = Σ_i ½((μ' - μ)/σ)²
            KL_σ = KL(N(μ, σ) ‖ N(μ, σ')) = Σ_i ½(eˣ - 1 - x),    x = 2 log(σ/σ')

        with (μ, σ) old and (μ', σ') new. Acme holds the old σ in KL_μ too; rlax leaves the choice to its caller
        (its tests divide by the new σ, so that the two parts add up to the whole divergence). With the old σ the
        bound on the mean does not loosen when the policy widens.
        """
        (mu, sigma), (mu_new, sigma_new) = self.mean_and_scale(old), self.mean_and_scale(new)
        mean = jnp.square((mu_new - mu) / sigma) / 2
        x = 2 * (jnp.log(sigma) - jnp.log(sigma_new))
        covariance = (jnp.expm1(x) - x) / 2  # expm1: bounds on this part are as small as 1e-6
        return jnp.stack([jnp.sum(mean, axis=-1), jnp.sum(covariance, axis=-1)], axis=-1)

    def encoded(self, action: Float[Array, "*B d"]) -> Float32[Array, "*B W"]:
        """The vector, clipped to the range as environments do."""
        return jnp.clip(action, self.low, self.high).astype(jnp.float32)


Policy: TypeAlias = Categorical | MultiCategorical | Gaussian


def make_policy(action: ActionSpec) -> Policy:
    """The policy for an environment's actions."""
    match action:
        case Discrete(n):
            return Categorical(n)
        case MultiDiscrete(sizes):
            return MultiCategorical(tuple(sizes))
        case Box(dimensions, low, high):
            return Gaussian(dimensions, low, high)
    raise ValueError(f"action: expected Discrete, MultiDiscrete or Box of derex.types, got {action!r}.")


def _sum(terms: list[Array]) -> Array:
    return jnp.sum(jnp.stack(terms), axis=0)


def _checked(policy: Any, parameters: Array) -> Array:
    """The parameters, if their number is right."""
    good = parameters.shape[-1:] == (policy.size,)
    require(good, f"parameters of {policy}", f"shape (…, {policy.size})", parameters.shape)
    return parameters
