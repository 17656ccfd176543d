"""Why an SVD and not a symmetrised Laplacian: mazes with more and more one-way doors. What is run, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from derex.experiments.quick import either


@dataclass(frozen=True)
class AsymmetryStudy:
    """De-Rex against graph drawing as dynamics lose their symmetry: error of the best linear value function."""

    out: Path = Path("results/asymmetry")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: two levels, three mazes"""
    seeds: int = either(10, quick=3)
    """mazes, each with its own data and networks"""
    doors: tuple[int, ...] = either((0, 4, 8, 12, 16, 20), quick=(0, 20))
    """how many doors of the maze are one-way"""
    k: int = 16
    """features of each method, beside a constant"""
    transitions: int = either(1_000_000, quick=500_000)
    """of a uniform random policy from one corner"""
    steps: int = either(2000, quick=1000)
    """updates of each fit"""
    gamma: float = 0.95
    """discount of the value functions"""

    name: ClassVar[str] = "asymmetry"
    methods: ClassVar[tuple[str, ...]] = ("derex", "nested", "laplacian")
    horizon: ClassVar[int] = 1000
