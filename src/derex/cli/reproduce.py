"""`derex reproduce`."""

from __future__ import annotations

import sys

from derex._text import hint
from derex.cli import studies
from derex.cli.parsing import UsageError, columns_text, examples_text, parse


def run(arguments: list[str]) -> int:
    """`derex reproduce STUDY [options]`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name, *rest = arguments
    if name.startswith("-"):
        known = ",".join(studies.STUDIES)
        raise UsageError(f"name the study before its options: derex reproduce {{{known}}} {name}")
    if name not in studies.STUDIES:
        raise UsageError(_unknown_study(name))
    study = studies.STUDIES[name]
    command = f"derex reproduce {name}"
    examples = (f"{command} --quick", f"{command} --out elsewhere/{name}")
    config = parse(studies.load(study.config), rest, command, examples, study.summary)
    studies.show([(name, studies.run_study(name, config))])
    return 0


def help_text() -> str:
    """What `derex reproduce --help` prints."""
    return "\n".join(
        [
            "usage: derex reproduce STUDY [options]",
            "",
            "Run one study and write its numbers, pictures and a page to open.",
            "",
            "studies:",
            *columns_text({name: study.summary for name, study in studies.STUDIES.items()}),
            "",
            "Each study has options of its own: derex reproduce STUDY --help",
            "",
            examples_text(("derex reproduce tabular --quick", "derex reproduce pixels --help")),
        ]
    )


def _unknown_study(word: str) -> str:
    """Says which studies there are and which one was probably meant."""
    near = hint(word, studies.STUDIES, prefix="derex reproduce ")
    return f"there is no study {word!r}.{near} Studies: {', '.join(studies.STUDIES)}."
