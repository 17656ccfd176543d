"""--quick shortens what was not given, and nothing else: options that equal the full study's defaults are given too."""

import json
from dataclasses import asdict, fields

import pytest

from derex import cli
from derex.cli import studies
from derex.studies.definitions import (
    AsymmetryStudy,
    ExplorationStudy,
    PixelsStudy,
    PomdpStudy,
    TabularStudy,
    UnseenStudy,
)

STUDIES = (TabularStudy, PixelsStudy, UnseenStudy, AsymmetryStudy, PomdpStudy, ExplorationStudy)


@pytest.fixture
def typed(monkeypatch):
    """What `derex reproduce` would run for these words."""
    asked = []
    monkeypatch.setattr(studies, "show", lambda results: None)
    load = studies.load
    monkeypatch.setattr(studies, "load", lambda path: asked.append if path.endswith(":run") else load(path))

    def parse(study, *words):
        assert cli.main(["reproduce", study.name, *words]) == 0
        return asked.pop()

    return parse


def changed_by_quick(study):
    full, short = asdict(study()), asdict(study.shortened())
    return {name: value for name, value in full.items() if name != "quick" and short[name] != value}


@pytest.mark.parametrize("study", STUDIES)
def test_a_value_equal_to_the_full_default_wins(study, typed):
    full = changed_by_quick(study)
    assert full.keys() == study.short.keys()
    assert typed(study) == study()
    assert typed(study, "--quick") == study.shortened()
    for name, value in full.items():
        values = value if isinstance(value, tuple) else (value,)
        words = ["--quick", f"--{name.replace('_', '-')}", *map(str, values)]
        assert typed(study, *words) == study.shortened(**{name: value})
    assert asdict(study.shortened(**full)) == asdict(study()) | {"quick": True}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_of_plain_values(study):
    for config in (study(), study.shortened()):
        kinds = {type(getattr(config, field.name)) for field in fields(config) if field.name != "out"}
        assert kinds <= {int, tuple, bool, str, float}
        json.dumps(asdict(config), default=str)


@pytest.mark.parametrize(("words", "shown"), [((), ("8000", "32768")), (("--quick",), ("1000", "4096"))])
def test_help_shows_the_defaults(words, shown, capsys):
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "pomdp", *words, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(number in text for number in shown)
