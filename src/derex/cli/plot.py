"""`derex plot`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from derex.cli.parsing import parse
from derex.cli.tables import print_table

ENDINGS = (".png", ".html")
PERCENT = 100.0
EXAMPLES = (
    "derex plot runs/chain",
    "derex plot runs --metric success --out curves.png",
    "derex plot runs/a runs/b --label folder --out curves.html",
    "derex plot runs/babyai --metric success --task all --out tasks.png",
)


@dataclass(frozen=True)
class Plot:
    """Learning curves and final scores of one run or many.

    Interquartile means over seeds with 95 % bootstrap intervals; a final score is the mean over the last of a run's
    steps (--last). Runs that are still going are drawn as far as they are.
    """

    dirs: tyro.conf.Positional[tuple[Path, ...]]
    """run folders, or folders that are searched for them"""
    out: Path | None = None
    """picture (.png) or page to open (.html); none: only the table"""
    metric: str = "return"
    """return, success, or any other number in metrics.jsonl"""
    task: str = ""
    """of runs of several tasks: draw this one, or "all" for each by itself; none: their mean"""
    label: Literal["method", "folder"] = "method"
    """join runs of the same method and form, or keep every folder apart"""
    last: float = 2.0
    """percent of a run's steps that a final score is the mean over, its last ones; the paper's 2 hold few episodes of a
    short run"""

    def __post_init__(self) -> None:
        if not self.dirs:
            raise ValueError("dirs: expected at least one folder of derex train.")
        if not 0.0 < self.last <= PERCENT:
            raise ValueError(f"--last: expected percent above 0 and up to 100; got {self.last:g}.")
        if self.out is not None and self.out.suffix not in ENDINGS:
            raise ValueError(f"--out: expected a name that ends in {' or '.join(ENDINGS)}; got {self.out}.")
        if self.out is not None and self.out.is_dir():
            raise IsADirectoryError(f"--out: {self.out} is a folder; give a file.")
        if self.out is not None:
            from derex.report.files import check_place

            check_place(self.out, "--out")


def run(arguments: list[str]) -> int:
    """`derex plot DIR... [--out FILE] [--metric NAME] [--task NAME] [--label folder] [--last PERCENT]`."""
    options = parse(Plot, arguments, "derex plot", EXAMPLES)

    from derex.report import learning_curves
    from derex.report.runs import find_runs

    runs = find_runs(options.dirs)
    if options.task:
        runs = learning_curves.runs_of_task(runs, options.task)
    learning_curves.check_metric(runs, options.metric)
    groups = learning_curves.group_runs(runs, options.label, options.last)
    for note in learning_curves.notes_on(groups):
        print(f"derex: {note}", file=sys.stderr)
    written = options.out and learning_curves.write_curves(groups, options.metric, options.out)
    columns = [name.format(options.metric) for name in learning_curves.COLUMNS]
    print_table(columns, learning_curves.score_rows(groups, options.metric))
    if written:
        print(f"\n{'Open in a browser:' if written.suffix == '.html' else 'Picture:'}\n  {written}")
    return 0
