"""The methods on exploration environments: what is run, as data.

The numbers of agents and representations are in `derex.training.presets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from derex.experiments.quick import either

DEREX = "derex"  # the one method that is run in several forms
BASELINE = "vmpo"  # what overheads are relative to
FORMS = ("histories", "states", "belief")
HIDDEN_FORMS = ("histories", "belief")  # where one observation is not the state


@dataclass(frozen=True)
class Case:
    """One run of all seeds: an environment and a method."""

    env: str
    method: str
    form: str = ""
    """which of the method's forms, where the study compares several"""

    @property
    def name(self) -> str:
        """For folders."""
        return "-".join(re.sub(r"[^\w.-]+", "-", part) for part in (self.env, self.method, self.form) if part)

    @property
    def label(self) -> str:
        """The method, for people."""
        return f"{self.method}, {self.form}" if self.form else self.method


@dataclass(frozen=True)
class ExplorationStudy:
    """The methods on exploration environments: success against steps, with intervals over seeds.

    Each case is a run of `derex train`, in runs/ of the folder. On one environment all methods have the same agent, but
    for the learning rate of `derex` on the agent's belief.
    """

    out: Path = Path("results/exploration")
    """folder for runs, pictures, metrics.json and report.html; after an interruption finished runs are kept"""
    quick: bool = False
    """a short look: one small environment, three methods, two seeds; it shows what is written more than who is best"""
    envs: tuple[str, ...] = either(
        ("rooms-chain-8", "rooms-chain-8-hidden", "deep-sea-20", "key-rooms-3"), quick=("rooms-chain-3",)
    )
    """environments, as for derex train"""
    methods: tuple[str, ...] = either(
        ("vmpo", "laplacian", "rnd", "derex-rep", "derex"), quick=("vmpo", "rnd", "derex")
    )
    """methods, as for derex train; overheads are relative to vmpo"""
    forms: tuple[str, ...] = either(FORMS, quick=("states",))
    """forms of derex; where the state is hidden those of them without states, or histories if none are left"""
    seeds: int = either(5, quick=2)
    """seeds of each case, side by side"""
    steps: int | float = either(3_000_000, quick=400_000)
    """environment steps of each seed"""
    streams: int = either(1024, quick=64)
    """environments side by side, for each seed"""
    width: int = 64
    """units of every layer, of the agent and of what a representation has for itself"""
    k: int = either(64, quick=16)
    """features of a representation"""

    name: ClassVar[str] = "exploration"

    def cases(self) -> list[Case]:
        """The grid: for each environment the methods, `derex` in the forms that make sense there."""
        return [
            Case(env, method, form)
            for env in self.envs
            for method in self.methods
            for form in (self._forms_on(env) if method == DEREX else ("",))
        ]

    def _forms_on(self, env: str) -> tuple[str, ...]:
        sensible = HIDDEN_FORMS if is_hidden(env) else FORMS
        return tuple(form for form in self.forms if form in sensible) or sensible[:1]


def is_hidden(env: str) -> bool:
    """Whether an observation of the environment tells less than its state."""
    return env.endswith("-hidden") or env.startswith("recall-")
