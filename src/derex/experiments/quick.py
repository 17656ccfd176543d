"""What --quick does to a study."""

from dataclasses import fields, replace
from typing import Any


def shortened(study: Any, **short: Any) -> Any:
    """The study with these values, except where the user chose another than the default."""
    defaults = {field.name: field.default for field in fields(study)}
    unchosen = {name: value for name, value in short.items() if getattr(study, name) == defaults[name]}
    return replace(study, **unchosen)
