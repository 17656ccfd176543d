"""Presets of agents and representations, as data: `derex train --preset NAME`.

`exploration` has the agents and representations of `derex reproduce exploration`, every number that is tuned, in one
place. What is shared: on one environment all methods have the same agent, `AGENTS`, to the last number; they differ in
the representation alone, `FORMS`. The one exception is the paper's form, trained through the agent's loss:
`LEARNING_RATES`. All bonuses are divided by their own running deviation, so that λ_b weighs them alike.
A feed-forward core does for the belief forms too where an observation is the whole state: b_t = F₂(F₁(O_t)).
`derex-rep` and `laplacian` have the paper's w_loss, 0.01, at the agent's rate.

`paper` has appendix B's network and the numbers that the paper prints. `small` has agents for the small tasks that the
tests learn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from derex._text import hint
from derex.agents.config import AgentConfig
from derex.representations.base import NoRepresentation, OptimisedTraining, RepresentationConfig
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.methods import METHODS, find_representation
from derex.representations.rnd import RndConfig
from derex.representations.states import StatesConfig

WIDTH, FEATURES = 64, 64  # units of a layer, and k

EXPLORER = AgentConfig(core="lstm", unroll=32, epsilon_kl=1e-3, multiplier=2.0, dual_rate=0.02)
"""the default agent; `width` is set by the study"""

FEED_FORWARD = replace(EXPLORER, core="feed-forward")

AGENTS: dict[str, AgentConfig] = {
    **dict.fromkeys(("rooms-chain-N", "key-rooms-N", "four-rooms", "four-rooms-pixels"), FEED_FORWARD),
    # The cost of moving right, 0.01/N, is the only reward for long: at unit scale it would forbid to explore.
    "deep-sea-N": replace(FEED_FORWARD, reward_floor=1.0),
}
"""by environment, N for its number; `EXPLORER` on others"""

LEARNING_RATES: dict[tuple[str, str], float] = {("derex", "belief"): 1e-3}
"""by method and form: what it takes to learn the decomposition through the agent's own loss while the policy moves; all
others have the agent's"""

NEW = DecompositionConfig(episodic=0.1)
"""of a bonus for what is rare in all experience and new in its episode"""

FORMS: dict[tuple[str, str], RepresentationConfig] = {
    ("vmpo", ""): NoRepresentation(),
    ("laplacian", "belief"): BeliefConfig(DecompositionConfig(objective="laplacian"), lambda_b=0.0),
    ("rnd", ""): RndConfig(centre_bonus=True),
    ("derex-rep", "belief"): BeliefConfig(lambda_b=0.0),
    ("derex", "histories"): HistoriesConfig(NEW, centre_bonus=True, training=OptimisedTraining(steps=4)),
    ("derex", "states"): StatesConfig(NEW, centre_bonus=True),
    ("derex", "belief"): BeliefConfig(NEW, centre_bonus=True, weight=1.0, test_actions=False),
}
"""by method and form, on all environments; `width` and `k` are the study's"""

FORMS_ON: dict[str, dict[tuple[str, str], RepresentationConfig]] = {
    # With a key in hand the way back leads through cells that the episode has shown already.
    "key-rooms-N": {
        ("derex", "histories"): HistoriesConfig(centre_bonus=True, width=WIDTH),
        ("derex", "states"): StatesConfig(centre_bonus=True, width=WIDTH),
        ("derex", "belief"): BeliefConfig(centre_bonus=True, weight=1.0, test_actions=False),
    },
    # Rows are modes of σ = 1, and all of a smaller k (docs/agents.md). With more units and features than there are
    # cells, f spans every function of the cell, and the norm is 1/√d before anything is learnt. A path along cells that
    # are rare all the way collects up to 10 λ_b in each of N steps, which has to stay below the reward of 1.
    "deep-sea-N": {
        ("derex", "states"): StatesConfig(
            DecompositionConfig(k=256), lambda_b=0.005, centre_bonus=True, width=256
        )
    },
}
"""by environment, as in `AGENTS`: what differs there from `FORMS`, sizes included"""


def exploration_agent(env: str, method: str = "", form: str = "", *, width: int = WIDTH) -> AgentConfig:
    """The agent on an environment: the same for all methods but for `LEARNING_RATES`."""
    agent = replace(AGENTS.get(_family(env), EXPLORER), width=width)
    return replace(agent, learning_rate=LEARNING_RATES.get((method, form), agent.learning_rate))


def exploration_form(
    env: str, method: str, form: str = "", *, width: int = WIDTH, k: int = FEATURES
) -> RepresentationConfig:
    """The representation of a method on an environment; a user's own, `package.module:Class`, as it is."""
    default = find_representation(method, form)
    if method not in METHODS:
        return default
    chosen = method, form or next(iter(METHODS[method]))
    here = FORMS_ON.get(_family(env), {})
    return here[chosen] if chosen in here else _sized(FORMS[chosen], width, k)


def _family(env: str) -> str:
    """The name with N in the place of its number."""
    return re.sub(r"(?<=-)\d+\b", "N", env)


def _sized(form: RepresentationConfig, width: int, k: int) -> RepresentationConfig:
    """The same form in the study's sizes."""
    sizes: dict[str, Any] = {name: size for name, size in (("width", width), ("k", k)) if hasattr(form, name)}
    if isinstance(form, HistoriesConfig | StatesConfig | BeliefConfig):
        sizes["decomposition"] = replace(form.decomposition, k=k)
    return replace(form, **sizes)  # type: ignore[type-var]


PAPER_AGENT = AgentConfig(core="lstm", encoder="appendix", width=512, previous_reward=True)
"""appendix B's network; of V-MPO the paper prints no numbers: these are ours"""

PRINTED = DecompositionConfig(k=64, ritz=False, limit=math.inf, sigma_floor=0.05, statistics_decay=0.95)
"""Σ̃ a running mean, every f_i taken for a singular function, features without a limit"""

PAPER_FORMS: dict[tuple[str, str], RepresentationConfig] = {
    ("laplacian", "belief"): BeliefConfig(DecompositionConfig(k=512, objective="laplacian"), lambda_b=0.0),
    ("derex-rep", "belief"): BeliefConfig(replace(PRINTED, k=512), lambda_b=0.0, tests="to-end"),
    ("derex", "belief"): BeliefConfig(PRINTED, lambda_b=0.001, centre_bonus=False, tests="to-end"),
}
"""tables of appendix C: De-Rex representation on DMLab-30, exploration on DM-Hard-8; all tests run to the end of what
an unroll holds"""


def paper_form(env: str, method: str, form: str = "") -> RepresentationConfig:
    """What the paper prints of a method, in its form; a form that is not the paper's as it is by itself."""
    return PAPER_FORMS.get((method, form or "belief")) or find_representation(method, form)


SMALL = AgentConfig(core="feed-forward", width=32, unroll=16, learning_rate=3e-3, epsilon_kl=0.01)
"""a small network in larger steps"""

STEADY = replace(SMALL, width=64, unroll=32, reward_clip=0.1)
"""where every step has the same reward: it has no deviation, and divided by that it becomes `reward_clip`"""

SMALL_AGENTS: dict[str, AgentConfig] = {
    "cartpole": STEADY,
    "gymnasium:CartPole-v1": STEADY,
    "recall-N": replace(SMALL, core="lstm"),
    # Values are large, and their errors would be nearly all of the gradient.
    "point-mass": replace(SMALL, width=64, unroll=32, epsilon_covariance=1e-3, gamma=0.9, value_weight=0.01),
}
"""by environment, as in `AGENTS`; `SMALL` on others"""


class Preset(NamedTuple):
    """Defaults for the options that the user leaves open."""

    agent: Callable[[str, str, str], AgentConfig]
    """of an environment, for a method and one of its forms"""
    form: Callable[[str, str, str], RepresentationConfig]
    """the same for the representation"""


PRESETS: dict[str, Preset] = {
    "exploration": Preset(exploration_agent, exploration_form),
    "paper": Preset(lambda env, method, form: PAPER_AGENT, paper_form),
    "small": Preset(
        lambda env, method, form: SMALL_AGENTS.get(_family(env), SMALL),
        lambda env, method, form: find_representation(method, form),
    ),
}
"""`derex train --preset NAME`"""


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name in PRESETS:
        return PRESETS[name]
    raise ValueError(
        f"preset: there is no preset {name!r}.{hint(name, PRESETS)} Known: {', '.join(PRESETS)}."
    )
