"""--quick shortens what was not given, and nothing else: options that equal the full study's defaults are given too."""

import json
from dataclasses import asdict, fields, replace

import pytest

from derex import cli
from derex.studies.definitions import (
    AsymmetryStudy,
    PixelsStudy,
    PomdpStudy,
    TabularStudy,
    UnseenStudy,
    resolved,
)

STUDIES = (TabularStudy, PixelsStudy, UnseenStudy, AsymmetryStudy, PomdpStudy)


def changed_by_quick(study):
    full, short = (asdict(resolved(study(quick=quick))) for quick in (False, True))
    return {name: value for name, value in full.items() if name != "quick" and short[name] != value}


@pytest.mark.parametrize("study", STUDIES)
def test_a_value_equal_to_the_full_default_wins(study):
    full = changed_by_quick(study)
    assert full
    for name, value in full.items():
        assert getattr(resolved(study(quick=True, **{name: value})), name) == value, name
    assert asdict(resolved(study(quick=True, **full))) == asdict(resolved(study())) | {"quick": True}


def as_options(name, value):
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name.replace('_', '-')}", *map(str, values)]


@pytest.mark.parametrize("study", STUDIES)
def test_so_does_an_option_that_was_typed(study):
    for name, value in changed_by_quick(study).items():
        typed = resolved(cli.parse(study, ["--quick", *as_options(name, value)], "derex", ()))
        assert asdict(typed) == asdict(resolved(study(quick=True))) | {name: value}


@pytest.mark.parametrize("study", STUDIES)
def test_a_resolved_study_is_of_plain_values(study):
    """Those that others serialise, hash and trace."""
    for quick in (False, True):
        config = resolved(study(quick=quick))
        kinds = {field.name: type(getattr(config, field.name)) for field in fields(config)}
        assert set(kinds.values()) - {type(config.out)} <= {int, tuple, bool, str, float}
        assert resolved(config) == config
        json.dumps(asdict(replace(config)), default=str)


def test_help_shows_the_full_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "pomdp", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "8000" in text
    assert "32768" in text
