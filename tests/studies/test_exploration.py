"""The study of exploration, tiny: its grid, what it writes, what it keeps, and its numbers from hand-made lines."""

import json
import re
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from derex import cli
from derex.agents.config import AgentConfig
from derex.envs.registry import make
from derex.report.curves import Curve, CurvePanel, Line, learning_figure, learning_section
from derex.representations.methods import METHODS
from derex.studies import exploration as running
from derex.studies.definitions import ExplorationCase, ExplorationStudy, is_hidden
from derex.studies.exploration import (
    COLUMNS,
    Run,
    column,
    final,
    load_run,
    panels_of,
    prepare_run,
    steps_until_solved,
    summarise,
    table_row,
    train_config,
    with_overheads,
)
from derex.training import DivergedError, load_config, presets
from derex.training.folder import check_folder
from derex.training.presets import exploration_agent, exploration_form

ENV = "rooms-chain-2"
TOY = ExplorationStudy(
    quick=True, envs=(ENV,), methods=("vmpo", "derex"), forms=("states",), seeds=2, steps=1024, streams=16, width=8, k=4
)  # fmt: skip
STATES: Any = presets.FORMS["derex", "states"]
NAMES = [f"{ENV}-vmpo", f"{ENV}-derex-states"]


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """One run that all tests share: its folder and what it returned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "EXPLORER", AgentConfig(unroll=32, epochs=1, minibatches=2))
        patch.setitem(presets.AGENTS, "rooms-chain-N", AgentConfig("feed-forward", epochs=1, minibatches=2))
        before = jax.config.values["jax_disable_most_optimizations"]
        jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the work
        out = tmp_path_factory.mktemp("studies") / "exploration"
        yield out, running.run(replace(TOY, out=out))
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def copied(toy, tmp_path):
    """A folder like that of the shared run, to be spoilt."""
    return shutil.copytree(toy[0], tmp_path / "copy")


@pytest.fixture
def trained(toy, monkeypatch):
    """Names of the runs that are trained from now on, by copying those of the shared one; no page is written."""
    names = []

    def pretend(config, progress):
        names.append(config.out.name)
        config.out.mkdir(parents=True, exist_ok=True)
        run = toy[0] / "runs" / NAMES[config.method == "derex"]
        shutil.copytree(run, config.out, dirs_exist_ok=True)
        return SimpleNamespace(seconds=0.0, compile_seconds=0.0)

    monkeypatch.setattr(running, "train", pretend)
    monkeypatch.setattr(running, "write_report", lambda study, *_: study.out / "report.html")
    return names


# ------------------------------------------------------------------------------------------- the grid


def test_the_grid_has_every_method_and_the_forms_that_make_sense():
    study = ExplorationStudy()
    cases = study.cases()
    assert len({case.name for case in cases}) == len(cases) == 3 * 7 + 6
    assert [case.env for case in cases] == sorted([case.env for case in cases], key=study.envs.index)
    for env in study.envs:
        here = [case for case in cases if case.env == env]
        forms = [case.form for case in here if case.method == "derex"]
        assert forms == (["histories", "belief"] if is_hidden(env) else ["histories", "states", "belief"])
        others = [(case.method, case.form) for case in here if case.method != "derex"]
        assert others == [("vmpo", ""), ("laplacian", ""), ("rnd", ""), ("derex-rep", "")]
        assert make(env).spec.n_states > 0


def test_where_the_state_is_hidden_derex_is_not_left_out():
    assert replace(TOY, envs=("rooms-chain-2-hidden",)).cases()[1].form == "histories"
    assert is_hidden("recall-3")
    assert not is_hidden("rooms-chain-8")


def test_names_are_folders():
    assert ExplorationCase("rooms-chain-2", "my.module:Own").name == "rooms-chain-2-my.module-Own"
    assert ExplorationCase("rooms-chain-2", "derex", "belief").label == "derex, belief"


def test_all_methods_have_the_same_agent_and_their_own_representation():
    study = ExplorationStudy()
    for env in study.envs:
        configs = [train_config(study, case) for case in study.cases() if case.env == env]
        agents = {(config.method, config.form): config.agent for config in configs}
        faster = agents.pop(("derex", "belief"), None)  # what the paper's form takes
        (shared,) = set(agents.values())
        assert shared == exploration_agent(env, width=study.width)
        assert faster in (None, replace(shared, learning_rate=1e-3))
        assert len({repr(config.representation) for config in configs}) == len(configs)
        assert configs[0].agent.core == ("lstm" if is_hidden(env) else "feed-forward")
        shared = {(config.seeds, config.steps, config.streams, config.agent.width) for config in configs}
        assert shared == {(5, 3_000_000, 1024, 64)}


@pytest.mark.parametrize("method", METHODS)
def test_presets_know_every_form_and_take_the_sizes(method):
    for form in METHODS[method]:
        found = exploration_form(ENV, method, form, width=24, k=6)
        assert type(found) is type(METHODS[method][form])
        text = repr(found)
        assert "128" not in text
        assert ("k=6" in text) is (method != "vmpo")
        assert exploration_form("no-such-environment", method, form, width=24, k=6) == found
    assert exploration_form(ENV, method, width=24, k=6) == exploration_form(
        ENV, method, next(iter(METHODS[method])), width=24, k=6
    )


def test_presets_of_one_environment_can_differ(monkeypatch):
    other = replace(STATES, lambda_b=0.25)
    monkeypatch.setitem(presets.FORMS_ON, "deep-sea-N", {("derex", "states"): other})
    assert exploration_form("deep-sea-10", "derex", "states") == other
    assert exploration_form("rooms-chain-8", "derex", "states") == replace(STATES, width=presets.WIDTH)
    assert exploration_agent("something-new") == replace(presets.EXPLORER, width=presets.WIDTH)
    assert exploration_agent("rooms-chain-30") == exploration_agent("rooms-chain-3")


# ------------------------------------------------------------------------------------------- what it writes


def test_every_case_is_a_run_of_derex_train(toy):
    out, _ = toy
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(NAMES)
    for name in NAMES:
        folder = out / "runs" / name
        files = {"config.json", "metrics.jsonl", "visitation.npz", "visitation.png", "checkpoints"}
        assert {path.name for path in folder.iterdir()} == files
        config = load_config(folder)
        assert (config.seeds, config.steps, config.streams, config.agent.width) == (2, 1024, 16, 8)
    assert load_config(out / "runs" / NAMES[1]).representation.decomposition.k == 4


def test_numbers_picture_page_and_rows(toy):
    out, result = toy
    metrics = read_json(out / "metrics.json")
    assert metrics["study"] == "exploration"
    assert metrics["config"]["steps"] == 1024
    assert metrics["diverged"] == {}
    plain, bonus = metrics["results"]
    assert [plain["run"], bonus["run"]] == [f"runs/{name}" for name in NAMES]
    assert plain["curve"]["steps"] == [512, 1024]
    assert plain["overhead"] == 1.0
    assert bonus["overhead"] == pytest.approx(plain["steps_per_second"] / bonus["steps_per_second"])
    assert plain["sigma_mean"] is None
    assert -1.0 <= bonus["bonus_rank_correlation"] <= 1.0
    assert bonus["off_diagonal"] >= 0.0
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = result.page.read_text()
    for text in (
        "rooms-chain-2: success",
        "Numbers",
        "Visits: rooms-chain-2, derex, states",
        "quick version",
    ):
        assert text in page
    assert "<code>runs/rooms-chain-2-vmpo</code>" in page
    assert not re.findall(r"""<(?:script|img|link|iframe)[^>]*\b(?:src|href)=["'](?!data:)""", page)
    assert result.table.columns == COLUMNS
    assert [row[:2] for row in result.table.rows] == [(ENV, "vmpo"), (ENV, "derex, states")]


# ------------------------------------------------------------------------------------------- going on


def same_results(out, other):
    assert read_json(out / "metrics.json")["results"] == read_json(other / "metrics.json")["results"]


def test_a_finished_study_trains_nothing_again(toy, copied, trained):
    (copied / "metrics.json").unlink()
    running.run(replace(TOY, out=copied))
    assert trained == []
    same_results(copied, toy[0])


def test_what_does_not_matter_to_a_run_keeps_it(copied, trained):
    running.run(replace(TOY, out=copied, methods=("derex", "rnd")))
    assert trained == [f"{ENV}-rnd"]


@pytest.mark.parametrize("change", [{"steps": 2048}, {"seeds": 3}, {"width": 16}, {"streams": 32}])
def test_other_settings_train_again(copied, trained, change):
    running.run(replace(TOY, out=copied, **change))
    assert trained == NAMES
    running.run(replace(TOY, out=copied, **change))
    assert trained == NAMES


def test_so_does_another_preset(copied, trained, monkeypatch):
    other = replace(STATES, lambda_b=0.5)
    monkeypatch.setitem(presets.FORMS, ("derex", "states"), other)
    running.run(replace(TOY, out=copied))
    assert trained == NAMES[1:]


@pytest.mark.parametrize("method", [0, 1])
def test_an_interrupted_run_begins_again(toy, copied, trained, monkeypatch, method):
    """Ctrl-C while another study overwrites a finished run: the old header is gone, so the half is not taken for it."""
    pretend = running.train

    def interrupted(config, progress):
        assert not (copied / "cases" / f"{config.out.name}.json").exists()
        if config.out.name == NAMES[method]:
            (config.out / "metrics.jsonl").write_text('{"step": 512, "seed": 0}\n')
            raise KeyboardInterrupt
        return pretend(config, progress)

    monkeypatch.setattr(running, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run(replace(TOY, out=copied, steps=2048))
    monkeypatch.setattr(running, "train", pretend)
    trained.clear()
    running.run(replace(TOY, out=copied, steps=2048))
    assert trained == NAMES[method:]


DAMAGE = {
    "no metrics": lambda out: (out / "runs" / NAMES[1] / "metrics.jsonl").unlink(),
    "metrics cut short": lambda out: (out / "runs" / NAMES[1] / "metrics.jsonl").write_bytes(b'{"step": 5'),
    "a digit changed": lambda out: _changed(out / "runs" / NAMES[1] / "metrics.jsonl"),
    "no run at all": lambda out: shutil.rmtree(out / "runs" / NAMES[1]),
    "a header of nonsense": lambda out: (out / "cases" / f"{NAMES[1]}.json").write_bytes(b"{"),
    "another header": lambda out: (out / "cases" / f"{NAMES[1]}.json").write_bytes(b"[1]"),
}


def _changed(path):
    text = path.read_text()
    path.write_text(text.replace("512", "513", 1))


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_case_is_trained_again(toy, copied, trained, capsys, name):
    DAMAGE[name](copied)
    running.run(replace(TOY, out=copied))
    assert trained == NAMES[1:]
    assert "is missing or damaged; its case runs again.\n" in capsys.readouterr().err
    same_results(copied, toy[0])
    running.run(replace(TOY, out=copied))
    assert trained == NAMES[1:]


@pytest.mark.parametrize("config", ["{", "{}", None])
def test_a_run_whose_config_is_damaged_can_be_trained_again(toy, copied, config):
    """Training refuses folders that it does not know for its own."""
    study = replace(TOY, out=copied)
    case = study.cases()[0]
    asked = train_config(study, case)
    file = asked.out / "config.json"
    file.unlink() if config is None else file.write_text(config)
    with pytest.raises(FileExistsError, match="holds no run"):
        check_folder(asked.out)
    header = copied / "cases" / f"{case.name}.json"
    assert load_run(header, asked) is not None
    prepare_run(header, asked)
    check_folder(asked.out)
    assert not list(asked.out.iterdir())
    assert load_run(header, asked) is None


def test_a_run_that_diverges_does_not_stop_the_others(toy, copied, trained, monkeypatch):
    (copied / "cases" / f"{NAMES[0]}.json").unlink()

    def diverge(config, progress):
        raise DivergedError("training diverged by step 512, seed 0: loss not finite.")

    monkeypatch.setattr(running, "train", diverge)
    result = running.run(replace(TOY, out=copied))
    assert [row[1:3] for row in result.table.rows][1] == ("vmpo", "diverged")
    metrics = read_json(copied / "metrics.json")
    assert [entry["label"] for entry in metrics["results"]] == ["derex, states"]
    assert metrics["results"][0]["overhead"] is None
    assert list(metrics["diverged"]) == [f"{ENV}, vmpo"]
    with pytest.raises(ValueError, match="all runs diverged"):
        running.run(replace(TOY, out=copied, methods=("vmpo",)))


# ------------------------------------------------------------------------------------------- numbers


def made(successes, **numbers):
    """Lines of a run: (T, N) successes at steps 100, 200, ..."""
    return [
        {"step": 100 * (t + 1), "seed": seed, "success": value, "return": 2.0, "steps_per_second": 50.0}
        | numbers
        for t, row in enumerate(successes)
        for seed, value in enumerate(row)
    ]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([0.0, 0.95, 0.95, 0.95, 0.0], 200),
        ([0.95, 0.95, 0.0, 0.9, 0.9, 0.9], 400),
        ([0.95, 0.95], None),
        ([0.0, 0.0, 0.95, 0.95], None),
        ([0.95, np.nan, 0.95, 0.95], None),
        ([0.89, 0.89, 0.89, 0.89], None),
    ],
)
def test_steps_until_solved(means, expected):
    steps = 100 * np.arange(1, len(means) + 1)
    assert steps_until_solved(steps, np.array(means)) == expected


def test_the_end_is_the_last_fiftieth_of_the_steps():
    lines = made([[t / 100, 0.5] for t in range(1, 101)])  # steps 100 to 10000
    assert column(lines, "success").shape == (100, 2)
    assert final(lines, "success").tolist() == [pytest.approx((99 + 100) / 200), 0.5]
    lines[-1]["success"] = None  # no episode ended
    assert final(lines, "success")[1] == 0.5
    assert final(made([[0.0], [1.0]]), "success").tolist() == [1.0]


def test_lines_may_come_in_any_order():
    lines = made([[0.0, 0.1], [0.2, 0.3]])
    assert np.array_equal(column(lines[::-1], "success"), [[0.0, 0.1], [0.2, 0.3]])


def test_a_summary():
    lines = made(
        [[0.0, 0.2, None], [1.0, 0.9, 0.8], [1.0, 1.0, 1.0], [1.0, 1.0, 0.7]],
        sigma_mean=0.5,
        off_diagonal=0.25,
        bonus_rank_correlation=0.5,
    )
    lines[0]["bonus_rank_correlation"] = None
    summary = summarise(ExplorationCase(ENV, "derex", "states"), Run(lines, "cpu"))
    assert summary["measure"] == "success"
    assert summary["curve"]["mean"] == pytest.approx([0.1, 0.9, 1.0, 0.9])
    assert summary["curve"]["low"][0] == 0.0
    assert summary["curve"]["high"][0] == 0.2  # two of the seeds: their range
    assert summary["final"]["value"] == pytest.approx(0.9)
    assert summary["final_of_seeds"] == [1.0, 1.0, 0.7]
    assert summary["worst_seed"] == {"seed": 2, "final": 0.7}
    assert summary["steps_until_solved"] == 200
    assert (summary["sigma_mean"], summary["off_diagonal"]) == (0.5, 0.25)
    assert summary["bonus_rank_correlation"] == 0.5
    json.dumps(summary, allow_nan=False)


def test_return_stands_in_where_there_is_no_success():
    lines = made([[None, None], [None, None]])
    summary = summarise(ExplorationCase("pendulum", "vmpo"), Run(lines, "cpu"))
    assert (summary["measure"], summary["final"]["value"]) == ("return", 2.0)
    assert summary["steps_until_solved"] is None
    assert table_row(with_overheads([summary])[0])[0] == "pendulum (return)"


def test_a_run_in_which_no_episode_ended():
    lines = [line | {"return": None} for line in made([[None, None]])]
    (summary,) = with_overheads([summarise(ExplorationCase(ENV, "vmpo"), Run(lines, "cpu"))])
    assert summary["worst_seed"] is None
    assert table_row(summary)[2:4] == ("–", "–")


def test_overheads_are_those_of_one_device():
    base = summarise(ExplorationCase(ENV, "vmpo"), Run(made([[0.0]]), "cpu"))
    slow = summarise(ExplorationCase(ENV, "rnd"), Run(made([[0.0]], steps_per_second=20.0), "cpu"))
    entries = with_overheads([base, slow, slow | {"device": "gpu"}, slow | {"env": "other"}])
    assert [entry["overhead"] for entry in entries] == [1.0, 2.5, None, None]


# ------------------------------------------------------------------------------------------- pictures


def test_colours_are_of_methods_and_dashes_of_forms():
    study = replace(TOY, methods=("rnd", "vmpo", "derex"), forms=("belief", "histories"))
    lines = made([[0.0, 0.5], [None, 1.0], [None, None]])
    (panel,) = panels_of(study, [summarise(case, Run(lines, "cpu")) for case in study.cases()])
    assert [(line.curve.label, line.colour, line.dash) for line in panel.lines] == [
        ("rnd", 0, 0),
        ("vmpo", 1, 0),
        ("derex, belief", 2, 1),
        ("derex, histories", 2, 0),
    ]
    assert np.array_equal(panel.lines[0].curve.mean, [0.25, 1.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_figure_is_a_file(tmp_path, count):
    x = np.arange(1.0, 5.0)
    curve = Curve("a $ method", x, x / 4, x / 5, np.where(x < 3, np.nan, 1.0))
    panels = [
        CurvePanel(f"env {number}", "success", (Line(curve, 1, 2),), (0.0, 1.0)) for number in range(count)
    ]
    path = learning_figure(panels, tmp_path / "curves.png", "steps")
    assert path.read_bytes().startswith(b"\x89PNG")
    section = learning_section(panels[0], "steps", "below")
    assert section.title == "env 0: success"
    assert '"dash":"dot"' in section.html
    with pytest.raises(ValueError, match="panels: expected at least one"):
        learning_figure([], tmp_path / "none.png", "steps")


# ------------------------------------------------------------------------------------------- what is asked for


def test_quick_is_small_and_what_is_given_wins():
    short = ExplorationStudy.shortened()
    assert len(short.cases()) <= 4
    full: dict[str, Any] = asdict(ExplorationStudy())
    for name, value in full.items():
        if name != "quick" and getattr(short, name) != value:
            assert getattr(ExplorationStudy.shortened(**{name: value}), name) == value
    options = ["--quick", "--steps", "10000000", "--envs", "deep-sea-20", "catch", "--seeds", "5"]
    typed = cli.parse(
        ExplorationStudy, options, "derex", (), default=ExplorationStudy(**ExplorationStudy.short)
    )
    assert (typed.steps, typed.envs, typed.seeds) == (10_000_000, ("deep-sea-20", "catch"), 5)
    assert typed.streams == short.streams
    kinds = {type(getattr(short, field.name)) for field in fields(short)}
    assert kinds <= {int, tuple, bool, type(short.out)}


def test_steps_may_be_written_short():
    assert cli.parse(ExplorationStudy, ["--steps", "2e6"], "derex", ()).steps == 2_000_000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--envs", "rooms-chian-2"), "name: there is no environment 'rooms-chian-2'"),
        (("--envs", ENV, ENV), "--envs: expected at least one, and each once"),
        (("--methods",), "--methods: expected at least one, and each once; got ()."),
        (("--methods", "derx"), "method: expected one of vmpo, laplacian, rnd, derex-rep, derex"),
        (("--forms", "state"), "--forms: expected some of histories, states, belief; got 'state'."),
        (("--seeds", "0"), "--seeds: expected at least 1, got 0."),
        (("--k", "0"), "--k: expected at least 1, got 0."),
        (
            ("--steps", "0.5"),
            "steps: expected a whole number of steps, at least 1 and at most 1e+15",
        ),
        (("--streams", "7"), "streams: expected a multiple of agent.minibatches"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(options, says, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["reproduce", "exploration", "--quick", "--out", str(out), *options]) == 2
    assert f"derex: error: {says}" in capsys.readouterr().err
    assert not out.exists()


def test_other_studies_folders_are_refused(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"study": "tabular"}))
    with pytest.raises(FileExistsError, match=r"--out: .* holds 'tabular'"):
        running.run(replace(TOY, out=tmp_path))


def test_help_lists_the_options(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "exploration", "--help"])
    assert not stop.value.code
    text = capsys.readouterr().out
    for name in asdict(ExplorationStudy()):
        assert f"--{name}" in text
    assert "3000000" in text
