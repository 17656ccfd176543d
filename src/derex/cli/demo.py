"""`derex demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from derex.cli import studies
from derex.cli.parsing import parse

DEMO = ("tabular", "pixels")


@dataclass(frozen=True)
class Demo:
    """Figures 2 and 3 of the paper, quick: learnt from ids and from pixels."""

    out: Path = Path("results/demo")
    """folder for the results; each study gets its own inside"""


def run(arguments: list[str]) -> int:
    """`derex demo [--out DIR]`."""
    options = parse(Demo, arguments, "derex demo", ("derex demo", "derex demo --out /tmp/look"))
    configs = {
        name: studies.load(studies.STUDIES[name].config)(out=options.out / name, quick=True) for name in DEMO
    }
    studies.show([(name, studies.run_study(name, config)) for name, config in configs.items()])
    return 0
