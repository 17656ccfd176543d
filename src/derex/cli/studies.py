"""`derex reproduce STUDY` and `derex demo`: run studies of the paper, print their numbers and where the pages are."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from derex._text import hint
from derex.cli.parsing import UsageError, help_page, parse, print_table

if TYPE_CHECKING:
    from derex.studies.common import StudyResult

DEMO = ("tabular", "pixels")


class Study(NamedTuple):
    """Where a study is, as `module:attribute` of its options and its function, imported when it is run."""

    config: str
    run: str
    summary: str


def _study(name: str, module: str, summary: str) -> Study:
    return Study(f"derex.studies.definitions:{name}Study", f"derex.studies.{module}:run", summary)


STUDIES: dict[str, Study] = {
    "tabular": _study("Tabular", "decomposition", "Figure 2: states as ids, learnt against exact"),
    "pixels": _study("Pixels", "decomposition", "Figure 3: states as pictures, learnt against exact"),
    "unseen": _study("Unseen", "unseen", "the bonus on states that the data never visited"),
    "asymmetry": _study("Asymmetry", "asymmetry", "one-way doors: the SVD against the graph Laplacian"),
    "pomdp": _study("Pomdp", "pomdp", "Section 5, appendix D: beliefs and bonuses when the agent is hidden"),
    "exploration": _study(
        "Exploration", "exploration", "the methods on exploration environments: success against steps"
    ),
}


@dataclass(frozen=True)
class Demo:
    """Figures 2 and 3 of the paper, quick: learnt from ids and from pixels."""

    out: Path = Path("results/demo")
    """folder for the results; each study has its own inside"""


def run_demo(arguments: list[str]) -> int:
    """`derex demo [--out DIR]`."""
    options = parse(Demo, arguments, "derex demo", ("derex demo", "derex demo --out /tmp/look"))
    configs = {name: load(STUDIES[name].config).shortened(out=options.out / name) for name in DEMO}
    show([(name, _run_study(name, config)) for name, config in configs.items()])
    return 0


def run_reproduce(arguments: list[str]) -> int:
    """`derex reproduce STUDY [options]`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        head = (
            "usage: derex reproduce STUDY [options]",
            "Run one study and write its numbers, pictures and a page to open.",
        )
        summaries = {name: study.summary for name, study in STUDIES.items()}
        note = "Each study has its own options: derex reproduce STUDY --help"
        examples = ("derex reproduce tabular --quick", "derex reproduce pixels --help")
        page = help_page(head, {"studies": summaries}, note, examples)
        print(page, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name.startswith("-"):
        known = ",".join(STUDIES)
        raise UsageError(f"name the study before its options: derex reproduce {{{known}}} {name}")
    if name not in STUDIES:
        near = hint(name, STUDIES, prefix="derex reproduce ")
        raise UsageError(f"there is no study {name!r}.{near} Studies: {', '.join(STUDIES)}.")
    command = f"derex reproduce {name}"
    examples = (f"{command} --quick", f"{command} --out elsewhere/{name}")
    options = load(STUDIES[name].config)
    default = options(**options.short) if "--quick" in rest else None
    show([(name, _run_study(name, parse(options, rest, command, examples, default=default)))])
    return 0


def _run_study(name: str, config: Any) -> StudyResult:
    """Runs one study; says on stderr what runs and how long it took."""
    short = " (quick)" if config.quick else ""
    print(f"derex: {name}{short}, results in {config.out}", file=sys.stderr, flush=True)
    run = load(STUDIES[name].run)
    start = time.perf_counter()
    result = run(config)
    print(f"derex: {name} took {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return result


def show(results: list[tuple[str, StudyResult]]) -> None:
    """Prints one table of all studies' numbers, then the paths of their pages."""
    columns = list(dict.fromkeys(column for _, result in results for column in result.table.columns))
    rows = []
    for name, result in results:
        for row in result.table.rows:
            cells = dict(zip(result.table.columns, map(str, row), strict=True))
            rows.append([name, *(cells.get(column, "") for column in columns)])
    print_table(["study", *columns], rows)
    print("\nOpen in a browser:")
    for _, result in results:
        print(f"  {result.page}")


def load(path: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
