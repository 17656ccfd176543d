"""Four rooms with a hidden agent (Section 5, appendix D): what is run, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from derex.experiments.quick import either

PICTURED, DECODED, UNCERTAIN, CLOCKS = "pictured", "decoded", "uncertain", "clocks"
FEW = 4  # features, at most, of the cases that are pictured
WORDS = {
    PICTURED: "few features",
    DECODED: "many features",
    UNCERTAIN: "slip 0.1, unknown start",
    CLOCKS: "few features, tests to the end",
}


@dataclass(frozen=True)
class Case:
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
        """For files."""
        return f"{self.purpose}-p{self.p:.12g}-k{self.k}-seed{self.seed}"

    @property
    def label(self) -> str:
        """For people."""
        return f"p = {self.p:g}, k = {self.k}, {WORDS[self.purpose]}"

    def steps(self, study: PomdpStudy) -> int:
        """Updates: where the agent is seen often, or few features are asked for, half of them do."""
        hard = self.k > FEW and (self.p > 0.5 or self.random_start)
        return study.steps if hard else max(1, study.steps // 2)

    def described(self) -> dict[str, Any]:
        """Plain values for metrics.json."""
        return asdict(self)


@dataclass(frozen=True)
class PomdpStudy:
    """Section 5 and appendix D: beliefs, representations and bonuses of histories when the agent is hidden."""

    out: Path = Path("results/pomdp")
    """folder for pictures, metrics.json and report.html; an interrupted run goes on where it stopped"""
    quick: bool = False
    """a short look: p = 0.3 and 0.6, small networks, few updates, short episodes"""
    p: tuple[float, ...] = either((0.0, 0.3, 0.6, 0.9), quick=(0.3, 0.6))
    """probabilities that a frame hides the agent"""
    seeds: int = 1
    """each seed draws its own trajectories and networks"""
    steps: int = either(8000, quick=1000)
    """updates of a fit; the easy ones take half as many"""
    width: int = either(256, quick=64)
    """units of the LSTMs"""
    batch: int = either(128, quick=32)
    """trajectories in an update"""
    large_k: int = either(64, quick=32)
    """features from which beliefs are decoded"""
    trajectories: int = either(32768, quick=4096)
    """to train on, of a uniform random policy"""
    decoder_trajectories: int = either(1024, quick=128)
    """to train decoders on; others than those"""
    test_trajectories: int = either(256, quick=64)
    """to score on; others again"""
    horizon: int = either(250, quick=100)
    """steps of an episode"""
    tests: int = either(32, quick=16)
    """longest test"""
    objective: str = "nested"
    """nested (ordered, reliable in a few thousand updates) or derex (the paper's loss)"""

    name: ClassVar[str] = "pomdp"

    def groups(self) -> list[list[Case]]:
        """The grid: for each p few features for the pictures and many for beliefs, then the two side questions.

        Cases of a group differ in their seeds alone.
        """
        common = {"tests": self.tests, "objective": self.objective}
        few = {**common, "test_actions": False}  # why tests are without actions there: docs/histories.md
        many = {**common, "k": self.large_k, "seed": 0, "lambda_r": "grow"}
        grid = []
        for p in self.p:
            grid.append(Case(PICTURED, p, 3 if p < 0.5 else 4, 0, **few))  # the paper's dimensions
            grid.append(Case(DECODED, p, **many))
        if not self.quick:
            grid.append(Case(UNCERTAIN, 0.6, slip=0.1, random_start=True, **many))
            grid.append(Case(CLOCKS, 0.3, 3, 0, **{**few, "tests": "to-end"}))
        return [[replace(case, seed=seed) for seed in range(self.seeds)] for case in grid]

    def cases(self) -> list[Case]:
        """All of them."""
        return [case for group in self.groups() for case in group]
