"""The studies as data: options, defaults for --quick, and grids of cases. Imports neither JAX nor scikit-learn.

Options of agents and representations are in `derex.training.presets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from derex._text import PathOption, convert_path


class Setting(NamedTuple):
    """How one decomposition is learnt: a cell of a study's grid."""

    objective: str
    k: int
    lambda_r: float | str = 10.0
    control: str = ""
    """untrained, shuffled, or none"""

    @property
    def label(self) -> str:
        weight = f", λ_r = {self.lambda_r}" if self.objective == "derex" else ""
        return f"{self.control or self.objective}, k = {self.k}{weight}"


FIGURE = Setting("derex", 2, 1.0)  # the paper's figures: two dimensions, λ_r = 1
CONTROLS = tuple(Setting("derex", 16, control=control) for control in ("untrained", "shuffled"))
QUICK = (Setting("derex", 16), Setting("nested", 16), *CONTROLS)


class StudyOptions:
    """Base of the options of a study: `out` may be a string, and some defaults are others with --quick."""

    short: ClassVar[dict[str, Any]] = {}
    """defaults with --quick"""

    def __post_init__(self) -> None:
        convert_path(self, "out")

    @classmethod
    def shortened(cls, **options: Any) -> Any:
        """The study with --quick: `options`, and short defaults for all others."""
        return cls(**{**cls.short, **options, "quick": True})


@dataclass(frozen=True)
class TabularStudy(StudyOptions):
    """Figure 2: states as ids. Learnt against exact, in both geometries, with controls."""

    out: PathOption = Path("results/tabular")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: four rooms, one seed, a few fits"""
    seeds: int = 3
    """each seed draws its own data, networks and, for mazes, map"""
    maps: tuple[str, ...] = ("four-rooms", "maze", "rooms")
    """of four-rooms, maze, rooms (the last two with one-way doors, new for each seed)"""
    transitions: int = 1_000_000
    """of a uniform random policy from one corner"""
    steps: int = 4000
    """updates of each fit"""

    short: ClassVar = {"seeds": 1, "maps": ("four-rooms",), "transitions": 200_000, "steps": 2000}
    name: ClassVar[str] = "tabular"
    figure: ClassVar[str] = "Figure 2"
    encoder: ClassVar[str] = "tabular"
    grid: ClassVar[tuple[Setting, ...]] = (
        *(Setting("nested", k) for k in (2, 3, 8, 16, 64)),
        *(Setting("derex", k) for k in (2, 3, 8, 16)),
        Setting("derex", 64, "grow"),
        *CONTROLS,
    )


@dataclass(frozen=True)
class PixelsStudy(TabularStudy):
    """Figure 3: states as 30×30 pictures through a convolutional network. Learnt against exact, with controls."""

    out: PathOption = Path("results/pixels")
    """folder for pictures, metrics.json and report.html"""
    maps: tuple[str, ...] = ("four-rooms", "rooms")
    """of four-rooms, maze, rooms (the last two with one-way doors, new for each seed)"""
    transitions: int = 100_000
    """of a uniform random policy from one corner; 2.7 kB of picture each"""
    steps: int = 2000
    """updates of each fit"""

    short: ClassVar = {"seeds": 1, "maps": ("four-rooms",), "transitions": 50_000, "steps": 400}
    name: ClassVar[str] = "pixels"
    figure: ClassVar[str] = "Figure 3"
    encoder: ClassVar[str] = "conv"
    grid: ClassVar[tuple[Setting, ...]] = (
        *(Setting("nested", k) for k in (3, 8, 16, 64)),
        *(Setting("derex", k) for k in (3, 8, 16)),
        *CONTROLS,
    )


@dataclass(frozen=True)
class UnseenStudy(StudyOptions):
    """A room is closed while data is collected; AUROC of the bonus between its states and the seen ones."""

    out: PathOption = Path("results/unseen")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: one room, one seed"""
    seeds: int = 3
    """each seed draws its own data and networks"""
    rooms: tuple[int, ...] = (1, 2, 3)
    """of four rooms, which to leave out, one after the other; the agent starts in room 0"""
    encoders: tuple[str, ...] = ("mlp", "conv")
    """mlp sees coordinates, conv sees 30×30 pictures"""
    objectives: tuple[str, ...] = ("derex", "nested")
    """losses to train with"""
    transitions: int = 100_000
    """of a uniform random policy from one corner"""
    steps: int = 1500
    """updates of each fit"""

    short: ClassVar = {
        "seeds": 1, "rooms": (3,), "objectives": ("derex",), "transitions": 50_000, "steps": 400
    }  # fmt: skip
    name: ClassVar[str] = "unseen"
    k: ClassVar[int] = 16


@dataclass(frozen=True)
class AsymmetryStudy(StudyOptions):
    """De-Rex against graph drawing as dynamics lose their symmetry: error of the best linear value function."""

    out: PathOption = Path("results/asymmetry")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: two levels, three mazes"""
    seeds: int = 10
    """mazes, each with its own data and networks"""
    doors: tuple[int, ...] = (0, 4, 8, 12, 16, 20)
    """how many doors of the maze are one-way"""
    k: int = 16
    """features of each method, beside a constant"""
    transitions: int = 1_000_000
    """of a uniform random policy from one corner"""
    steps: int = 2000
    """updates of each fit"""
    gamma: float = 0.95
    """discount of the value functions"""

    short: ClassVar = {"seeds": 3, "doors": (0, 20), "transitions": 500_000, "steps": 1000}
    name: ClassVar[str] = "asymmetry"
    methods: ClassVar[tuple[str, ...]] = ("derex", "nested", "laplacian")
    horizon: ClassVar[int] = 1000


PICTURED, DECODED, UNCERTAIN, CLOCKS = "pictured", "decoded", "uncertain", "clocks"
FEW = 4  # features, at most, of the cases that are pictured
WORDS = {
    PICTURED: "few features",
    DECODED: "many features",
    UNCERTAIN: "slip 0.1, unknown start",
    CLOCKS: "few features, tests to the end",
}


@dataclass(frozen=True)
class PomdpCase:
    """One fit: a world, and what is learnt of it."""

    purpose: str
    """why it is run: one of the four above"""
    p: float
    """probability that a frame hides the agent"""
    k: int
    seed: int
    tests: int | str = 32
    test_actions: bool = True
    lambda_r: float | str = 10.0
    objective: str = "nested"
    slip: float = 0.0
    random_start: bool = False

    @property
    def name(self) -> str:
        return f"{self.purpose}-p{self.p:.12g}-k{self.k}-seed{self.seed}"

    @property
    def label(self) -> str:
        return f"p = {self.p:g}, k = {self.k}, {WORDS[self.purpose]}"

    def steps(self, study: PomdpStudy) -> int:
        """Updates: where the agent is seen often, or few features are asked for, half of them do."""
        hard = self.k > FEW and (self.p > 0.5 or self.random_start)
        return study.steps if hard else max(1, study.steps // 2)


@dataclass(frozen=True)
class PomdpStudy(StudyOptions):
    """Section 5 and appendix D: beliefs, representations and bonuses of histories when the agent is hidden."""

    out: PathOption = Path("results/pomdp")
    """folder for pictures, metrics.json and report.html; an interrupted run is resumed"""
    quick: bool = False
    """a short look: p = 0.3 and 0.6, small networks, few updates, short episodes"""
    p: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    """probabilities that a frame hides the agent"""
    seeds: int = 1
    """each seed draws its own trajectories and networks"""
    steps: int = 8000
    """updates of a fit; the easy ones take half as many"""
    width: int = 256
    """units of the LSTMs"""
    batch: int = 128
    """trajectories in an update"""
    large_k: int = 64
    """features from which beliefs are decoded"""
    trajectories: int = 32768
    """to train on, of a uniform random policy"""
    decoder_trajectories: int = 1024
    """to train decoders on; others than those"""
    test_trajectories: int = 256
    """to score on; others again"""
    horizon: int = 250
    """steps of an episode"""
    tests: int = 32
    """longest test"""
    objective: str = "nested"
    """nested (ordered, reliable in a few thousand updates) or derex (the paper's loss)"""

    short: ClassVar = {
        "p": (0.3, 0.6), "steps": 1000, "width": 64, "batch": 32, "large_k": 32, "trajectories": 4096,
        "decoder_trajectories": 128, "test_trajectories": 64, "horizon": 100, "tests": 16,
    }  # fmt: skip
    name: ClassVar[str] = "pomdp"

    def groups(self) -> list[list[PomdpCase]]:
        """The grid: for each p few features for the pictures and many for beliefs, then the two side questions.

        Cases of a group differ in their seeds alone.
        """
        common = {"tests": self.tests, "objective": self.objective}
        few = {**common, "test_actions": False}  # why tests are without actions there: docs/histories.md
        many = {**common, "k": self.large_k, "seed": 0, "lambda_r": "grow"}
        grid = []
        for p in self.p:
            grid.append(PomdpCase(PICTURED, p, 3 if p < 0.5 else 4, 0, **few))  # the paper's dimensions
            grid.append(PomdpCase(DECODED, p, **many))
        if not self.quick:
            grid.append(PomdpCase(UNCERTAIN, 0.6, slip=0.1, random_start=True, **many))
            grid.append(PomdpCase(CLOCKS, 0.3, 3, 0, **{**few, "tests": "to-end"}))
        return [[replace(case, seed=seed) for seed in range(self.seeds)] for case in grid]

    def cases(self) -> list[PomdpCase]:
        """All of them."""
        return [case for group in self.groups() for case in group]


BASELINE = "vmpo"  # what overheads are relative to
FORMS = ("histories", "states", "belief")
HIDDEN_FORMS = ("histories", "belief")  # where one observation is not the state


@dataclass(frozen=True)
class ExplorationCase:
    """One run of all seeds: an environment and a method."""

    env: str
    method: str
    form: str = ""
    """which of the method's forms, where the study compares several"""

    @property
    def name(self) -> str:
        return "-".join(re.sub(r"[^\w.-]+", "-", part) for part in (self.env, self.method, self.form) if part)

    @property
    def label(self) -> str:
        return f"{self.method}, {self.form}" if self.form else self.method


@dataclass(frozen=True)
class ExplorationStudy(StudyOptions):
    """The methods on exploration environments: success against steps, with intervals over seeds.

    Each case is a run of `derex train`, in runs/ of the folder. On one environment all methods have the same agent, but
    for the learning rate of `derex` on the agent's belief.
    """

    out: PathOption = Path("results/exploration")
    """folder for runs, pictures, metrics.json and report.html; after an interruption finished runs are kept"""
    quick: bool = False
    """a short look: one small environment, three methods, two seeds; it shows what is written more than who is best"""
    envs: tuple[str, ...] = ("rooms-chain-8", "rooms-chain-8-hidden", "deep-sea-20", "key-rooms-3")
    """environments, as for derex train"""
    methods: tuple[str, ...] = ("vmpo", "laplacian", "rnd", "derex-rep", "derex")
    """methods, as for derex train; overheads are relative to vmpo"""
    forms: tuple[str, ...] = FORMS
    """forms of derex; where the state is hidden those of them without states, or histories if none are left"""
    seeds: int = 5
    """seeds of each case, side by side"""
    steps: int | float = 3_000_000
    """environment steps of each seed"""
    streams: int = 1024
    """environments side by side, for each seed"""
    width: int = 64
    """units of every layer, of the agent and of what a representation has for itself"""
    k: int = 64
    """features of a representation"""

    short: ClassVar = {
        "envs": ("rooms-chain-3",), "methods": ("vmpo", "rnd", "derex"), "forms": ("states",),
        "seeds": 2, "steps": 400_000, "streams": 64, "k": 16,
    }  # fmt: skip
    name: ClassVar[str] = "exploration"

    def cases(self) -> list[ExplorationCase]:
        """The grid: for each environment the methods, `derex` in the forms that make sense there."""
        grid = []
        for env in self.envs:
            sensible = HIDDEN_FORMS if is_hidden(env) else FORMS
            chosen = tuple(form for form in self.forms if form in sensible) or sensible[:1]
            for method in self.methods:
                forms = chosen if method == "derex" else ("",)
                grid += [ExplorationCase(env, method, form) for form in forms]
        return grid


def is_hidden(env: str) -> bool:
    """Whether an observation of the environment tells less than its state."""
    return env.endswith("-hidden") or env.startswith("recall-")
