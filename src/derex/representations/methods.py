"""The methods by name, each with one or more forms.

A user's own method is a frozen dataclass with `build() -> Representation`, given as `package.module:Class`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from derex._text import hint, require
from derex.representations.base import NoRepresentation, RepresentationConfig
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.rnd import RndConfig
from derex.representations.states import StatesConfig

METHODS: dict[str, dict[str, RepresentationConfig]] = {
    "vmpo": {"": NoRepresentation()},
    "laplacian": {"belief": BeliefConfig(DecompositionConfig(objective="laplacian"), lambda_b=0.0)},
    "rnd": {"": RndConfig()},
    "derex-rep": {"belief": BeliefConfig(lambda_b=0.0)},
    "derex": {"histories": HistoriesConfig(), "states": StatesConfig(), "belief": BeliefConfig()},
}
"""forms of each method, the default first"""


def find_representation(method: str, form: str = "") -> RepresentationConfig:
    """Default options of a method in the given form, or in its default form."""
    if ":" in method:
        return _own(method)
    known = f"one of {', '.join(METHODS)}, or your own as package.module:Class"
    require(method in METHODS, "method", known, repr(method), hint(method, METHODS).strip())
    forms = METHODS[method]
    if form and form not in forms:
        known = ", ".join(name for name in forms if name) or "none"
        raise ValueError(f"form: {method} has the forms {known}; got {form!r}.")
    return forms[form] if form else next(iter(forms.values()))


def _own(path: str) -> RepresentationConfig:
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # finds modules in the working directory, as `python file.py` does
    try:
        found = getattr(import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"method: {path!r} could not be imported as package.module:Class, and made without arguments: {error}."
        ) from error
    if not isinstance(found, RepresentationConfig):
        raise ValueError(f"method: {path!r} has no build() that returns a Representation.")
    return found
