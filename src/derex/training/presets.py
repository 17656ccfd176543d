"""The agents and representations of `derex reproduce exploration`: every number that is tuned, in one place.

What is shared: on one environment all methods have the same agent, `AGENTS`, to the last number; they differ in the
representation alone, `FORMS`. The one exception is the paper's form, trained through the agent's loss:
`LEARNING_RATES`. All bonuses are divided by their own running deviation, so that λ_b weighs them alike.
A feed-forward core does for the belief forms too where an observation is the whole state: b_t = F₂(F₁(O_t)).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from derex.agents.config import AgentConfig
from derex.representations.base import Form
from derex.representations.belief import BeliefForm
from derex.representations.decomposed import Decomposition
from derex.representations.histories import HistoriesForm
from derex.representations.methods import METHODS, find_form
from derex.representations.none import NoForm
from derex.representations.own import OwnTraining
from derex.representations.rnd import RndForm
from derex.representations.states import StatesForm

WIDTH, FEATURES = 64, 64  # units of a layer, and k

EXPLORER = AgentConfig(core="lstm", unroll=32, epsilon_kl=1e-3, multiplier=2.0, dual_rate=0.02)
"""the agent where nothing better is known; `width` is the study's"""

AGENTS: dict[str, AgentConfig] = {
    "rooms-chain-N": replace(EXPLORER, core="feed-forward"),
    "rooms-chain-N-hidden": EXPLORER,
    # The cost of moving right, 0.01/N, is the only reward for long: at unit scale it would forbid to explore.
    "deep-sea-N": replace(EXPLORER, core="feed-forward", reward_floor=1.0),
    "key-rooms-N": replace(EXPLORER, core="feed-forward"),
    "four-rooms": replace(EXPLORER, core="feed-forward"),
    "four-rooms-pixels": replace(EXPLORER, core="feed-forward"),
}
"""by environment, N for its number; `EXPLORER` on others"""

LEARNING_RATES: dict[tuple[str, str], float] = {("derex", "belief"): 1e-3}
"""by method and form: what it takes to learn the decomposition through the agent's own loss while the policy moves; all
others have the agent's"""

NEW = Decomposition(episodic=0.1)
"""of a bonus for what is rare in all experience and new in its episode"""

FORMS: dict[tuple[str, str], Form] = {
    ("vmpo", ""): NoForm(),
    ("laplacian", "belief"): BeliefForm(Decomposition(objective="laplacian"), lambda_b=0.0),
    ("rnd", ""): RndForm(),
    ("derex-rep", "belief"): BeliefForm(lambda_b=0.0),
    ("derex", "histories"): HistoriesForm(NEW, training=OwnTraining(steps=4)),
    ("derex", "states"): StatesForm(NEW),
    ("derex", "belief"): BeliefForm(NEW, weight=1.0, test_actions=False),
}
"""by method and form, on all environments; `width` and `k` are the study's"""

FORMS_ON: dict[str, dict[tuple[str, str], Form]] = {
    # With a key in hand the way back leads through cells that the episode has shown already.
    "key-rooms-N": {
        ("derex", "histories"): HistoriesForm(width=WIDTH),
        ("derex", "states"): StatesForm(width=WIDTH),
        ("derex", "belief"): BeliefForm(weight=1.0, test_actions=False),
    },
    # Rows are modes of σ = 1, and all of a smaller k (docs/agents.md). With more units and features than there are
    # cells, f spans every function of the cell, and the norm is 1/√d before anything is learnt. A path along cells that
    # are rare all the way collects up to 10 λ_b in each of N steps, which has to stay below the reward of 1.
    "deep-sea-N": {("derex", "states"): StatesForm(Decomposition(k=256), lambda_b=0.005, width=256)},
}
"""by environment, as in `AGENTS`: what differs there from `FORMS`, sizes included"""


def exploration_agent(env: str, method: str = "", form: str = "", *, width: int = WIDTH) -> AgentConfig:
    """The agent on an environment: the same for all methods but for `LEARNING_RATES`."""
    agent = replace(AGENTS.get(_family(env), EXPLORER), width=width)
    return replace(agent, learning_rate=LEARNING_RATES.get((method, form), agent.learning_rate))


def exploration_form(env: str, method: str, form: str = "", *, width: int = WIDTH, k: int = FEATURES) -> Form:
    """The representation of a method on an environment; a user's own, `package.module:Class`, as it is."""
    default = find_form(method, form)
    if method not in METHODS:
        return default
    chosen = method, form or next(iter(METHODS[method]))
    here = FORMS_ON.get(_family(env), {})
    return here[chosen] if chosen in here else _sized(FORMS[chosen], width, k)


def _family(env: str) -> str:
    """The name with N in the place of its number."""
    return re.sub(r"(?<=-)\d+\b", "N", env)


def _sized(form: Form, width: int, k: int) -> Form:
    """The same form in the study's sizes."""
    if isinstance(form, RndForm):
        return replace(form, width=width, k=k)
    if isinstance(form, HistoriesForm | StatesForm):
        return replace(form, width=width, decomposition=replace(form.decomposition, k=k))
    if isinstance(form, BeliefForm):
        return replace(form, decomposition=replace(form.decomposition, k=k))
    return form


class Preset(NamedTuple):
    """Where the numbers of a run come from that its user leaves open."""

    agent: Callable[[str, str, str], AgentConfig]
    """of an environment, for a method and one of its forms"""
    form: Callable[[str, str, str], Form]
    """the same for the representation"""


PRESETS: dict[str, Preset] = {"exploration": Preset(exploration_agent, exploration_form)}
"""`derex train --preset NAME`: the numbers of a study"""


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name in PRESETS:
        return PRESETS[name]
    close = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"preset: there is no preset {name!r}.{hint} Known: {', '.join(PRESETS)}.")
