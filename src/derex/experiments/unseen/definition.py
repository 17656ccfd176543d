"""A room left out of the data: does the bonus know that it was never visited? What is run, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from derex.experiments.quick import either


@dataclass(frozen=True)
class UnseenStudy:
    """A room is closed while data is collected; AUROC of the bonus between its states and the seen ones."""

    out: Path = Path("results/unseen")
    """folder for pictures, metrics.json and report.html"""
    quick: bool = False
    """a short look: one room, one seed"""
    seeds: int = either(3, quick=1)
    """each seed draws its own data and networks"""
    rooms: tuple[int, ...] = either((1, 2, 3), quick=(3,))
    """of four rooms, which to leave out, one after the other; the agent starts in room 0"""
    encoders: tuple[str, ...] = ("mlp", "conv")
    """mlp sees coordinates, conv sees 30×30 pictures"""
    objectives: tuple[str, ...] = either(("derex", "nested"), quick=("derex",))
    """losses to train with"""
    transitions: int = either(100_000, quick=50_000)
    """of a uniform random policy from one corner"""
    steps: int = either(1500, quick=400)
    """updates of each fit"""

    name: ClassVar[str] = "unseen"
    k: ClassVar[int] = 16
