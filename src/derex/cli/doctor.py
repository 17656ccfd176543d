"""`derex doctor`."""

from __future__ import annotations

from derex.cli.parsing import parse


def run(arguments: list[str]) -> int:
    """`derex doctor [--json]`."""
    from derex import doctor

    options = parse(doctor.Doctor, arguments, "derex doctor", ("derex doctor", "derex doctor --json"))
    return doctor.run(options)
