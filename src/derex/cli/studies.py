"""The studies: where they are, and how one is run and shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from derex.cli.tables import print_table

if TYPE_CHECKING:
    from derex.studies.common import StudyResult


class Study(NamedTuple):
    """Where a study is, as `module:attribute`, imported when it is asked for."""

    config: str
    run: str
    summary: str


STUDIES: dict[str, Study] = {
    "tabular": Study(
        "derex.studies.definitions:TabularStudy",
        "derex.studies.decomposition:run",
        "Figure 2: states as ids, learnt against exact",
    ),
    "pixels": Study(
        "derex.studies.definitions:PixelsStudy",
        "derex.studies.decomposition:run",
        "Figure 3: states as pictures, learnt against exact",
    ),
    "unseen": Study(
        "derex.studies.definitions:UnseenStudy",
        "derex.studies.unseen:run",
        "the bonus on states that the data never visited",
    ),
    "asymmetry": Study(
        "derex.studies.definitions:AsymmetryStudy",
        "derex.studies.asymmetry:run",
        "one-way doors: the SVD against the graph Laplacian",
    ),
    "pomdp": Study(
        "derex.studies.definitions:PomdpStudy",
        "derex.studies.pomdp:run",
        "Section 5, appendix D: beliefs and bonuses when the agent is hidden",
    ),
    "exploration": Study(
        "derex.studies.definitions:ExplorationStudy",
        "derex.studies.exploration:run",
        "the methods on exploration environments: success against steps",
    ),
}


def run_study(name: str, config: Any) -> StudyResult:
    """Run one study, saying what it does and how long it took on stderr."""
    short = " (quick)" if config.quick else ""
    print(f"derex: {name}{short}, results in {config.out}", file=sys.stderr, flush=True)
    run: Callable[[Any], StudyResult] = load(STUDIES[name].run)
    start = time.perf_counter()
    result = run(config)
    print(f"derex: {name} took {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return result


def show(results: list[tuple[str, StudyResult]]) -> None:
    """One table of all studies' numbers, then where the pages are."""
    columns = list(dict.fromkeys(column for _, result in results for column in result.columns))
    rows = []
    for name, result in results:
        for row in result.rows:
            cells = dict(zip(result.columns, row, strict=True))
            rows.append([name, *(cells.get(column, "") for column in columns)])
    print_table(["study", *columns], rows)
    print("\nOpen in a browser:")
    for _, result in results:
        print(f"  {result.page}")


def load(path: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
