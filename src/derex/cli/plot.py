"""`derex plot`: learning curves and final scores of run folders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from derex.cli.parsing import parse, print_table

ENDINGS = (".png", ".html")
EXAMPLES = (
    "derex plot runs/chain",
    "derex plot runs --metric success --out curves.png",
    "derex plot runs/a runs/b --label folder --out curves.html",
    "derex plot runs/babyai --metric success --task all --out tasks.png",
)


@dataclass(frozen=True)
class Plot:
    """Learning curves and final scores of one or more runs.

    Interquartile means over seeds with 95 % bootstrap intervals; a final score is the mean over the last part of a
    run's steps (--last). Unfinished runs are drawn up to their last line.
    """

    dirs: tyro.conf.Positional[tuple[Path, ...]]
    """run folders, or folders that are searched for them"""
    out: Path | None = None
    """picture (.png) or page to open (.html); none: only the table"""
    metric: str = "return"
    """return, success, or any other number in metrics.jsonl"""
    task: str = ""
    """for runs of several tasks: draw this task, or "all" for each task separately; none: their mean"""
    label: Literal["method", "folder"] = "method"
    """group runs by method and form, or show each folder separately"""
    last: float = 2.0
    """a final score is the mean over this percentage of a run's steps, the last ones; the paper's 2 % contain few
    episodes of a short run"""

    def __post_init__(self) -> None:
        if not self.dirs:
            raise ValueError("dirs: expected at least one folder of derex train.")
        if not 0.0 < self.last <= 100.0:
            raise ValueError(f"--last: expected percent above 0 and up to 100; got {self.last:g}.")
        if self.out is None:
            return
        from derex.report.files import check_place

        if self.out.suffix not in ENDINGS:
            raise ValueError(f"--out: expected a name that ends in {' or '.join(ENDINGS)}; got {self.out}.")
        if self.out.is_dir():
            raise IsADirectoryError(f"--out: {self.out} is a folder; give a file.")
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
