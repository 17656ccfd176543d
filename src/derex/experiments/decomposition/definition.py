"""Figures 2 and 3 of the paper, and how close the learnt decomposition is to the exact one: what is run, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from derex.experiments.quick import either

Cell = tuple[str, int, float | str, str]  # objective, k, λ_r, control

FIGURE: Cell = ("derex", 2, 1.0, "")  # the paper's figures: two dimensions, λ_r = 1
CONTROLS: tuple[Cell, ...] = (("derex", 16, 10.0, "untrained"), ("derex", 16, 10.0, "shuffled"))
QUICK: tuple[Cell, ...] = (("derex", 16, 10.0, ""), ("nested", 16, 10.0, ""), *CONTROLS)


@dataclass(frozen=True)
class TabularStudy:
    """Figure 2: states as ids. Learnt against exact, in both geometries, with controls."""

    out: Path = Path("results/tabular")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: four rooms, one seed, a few fits"""
    seeds: int = either(3, quick=1)
    """each seed draws its own data, networks and, for mazes, map"""
    maps: tuple[str, ...] = either(("four-rooms", "maze", "rooms"), quick=("four-rooms",))
    """of four-rooms, maze, rooms (the last two with one-way doors, new for each seed)"""
    transitions: int = either(1_000_000, quick=200_000)
    """of a uniform random policy from one corner"""
    steps: int = either(4000, quick=2000)
    """updates of each fit"""

    name: ClassVar[str] = "tabular"
    figure: ClassVar[str] = "Figure 2"
    encoder: ClassVar[str] = "tabular"
    grid: ClassVar[tuple[Cell, ...]] = (
        *(("nested", k, 10.0, "") for k in (2, 3, 8, 16, 64)),
        *(("derex", k, 10.0, "") for k in (2, 3, 8, 16)),
        ("derex", 64, "grow", ""),
        *CONTROLS,
    )


@dataclass(frozen=True)
class PixelsStudy:
    """Figure 3: states as 30×30 pictures through a convolutional network. Learnt against exact, with controls."""

    out: Path = Path("results/pixels")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: four rooms, one seed, a few fits"""
    seeds: int = either(3, quick=1)
    """each seed draws its own data, networks and, for mazes, map"""
    maps: tuple[str, ...] = either(("four-rooms", "rooms"), quick=("four-rooms",))
    """of four-rooms, maze, rooms (the last two with one-way doors, new for each seed)"""
    transitions: int = either(100_000, quick=50_000)
    """of a uniform random policy from one corner; 2.7 kB of picture each"""
    steps: int = either(2000, quick=400)
    """updates of each fit"""

    name: ClassVar[str] = "pixels"
    figure: ClassVar[str] = "Figure 3"
    encoder: ClassVar[str] = "conv"
    grid: ClassVar[tuple[Cell, ...]] = (
        *(("nested", k, 10.0, "") for k in (3, 8, 16, 64)),
        *(("derex", k, 10.0, "") for k in (3, 8, 16)),
        *CONTROLS,
    )
