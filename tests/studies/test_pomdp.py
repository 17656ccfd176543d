"""The study of hidden agents, tiny: what it writes, how it goes on after an interruption, what it refuses."""

import io
import json
import re
import shutil
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from derex import cli
from derex.envs import FOUR_ROOMS, GridWorld
from derex.estimators import data as sources
from derex.estimators import fitting
from derex.progress import ProgressBar
from derex.studies import pomdp as running
from derex.studies.common import claim_folder, summarise_groups
from derex.studies.definitions import FEW, PomdpCase, PomdpStudy
from derex.studies.pomdp_cases import evaluate, make_data

# Both p ask for the same networks and as many updates, so that their programs are compiled once.
TOY = PomdpStudy(
    quick=True, p=(0.0, 0.4), steps=2, width=8, batch=4, large_k=5, trajectories=12, decoder_trajectories=4,
    test_trajectories=3, horizon=40, tests=16,
)  # fmt: skip
CONTROLS = ("filter", "filter_decoded", "untrained", "memoryless")
SCORES = ("accuracy", "log_loss", "distance")


def read_metrics(out):
    return json.loads((out / "metrics.json").read_text())


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """One run that all tests share: its folder and what it returned."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the work
    out = tmp_path_factory.mktemp("studies") / "pomdp"
    yield out, running.run(replace(TOY, out=out))
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def copied(toy, tmp_path):
    """A folder like that of the shared run, to be spoilt."""
    return shutil.copytree(toy[0], tmp_path / "copy")


@pytest.fixture
def evaluated(monkeypatch):
    """Names of the cases that are evaluated from now on; no page is written."""
    names = []

    def spy(study, group, *rest):
        names.extend(case.name for case in group)
        yield from evaluate(study, group, *rest)

    monkeypatch.setattr(running, "evaluate", spy)
    monkeypatch.setattr(running, "write_report", lambda study, *_: study.out / "report.html")
    return names


# ------------------------------------------------------------------------------------------- what it writes


def test_every_case_has_its_numbers_and_controls(toy):
    metrics = read_metrics(toy[0])
    assert metrics["study"] == "pomdp"
    assert metrics["config"]["horizon"] == TOY.horizon
    assert metrics["config"]["p"] == [0.0, 0.4]
    assert [(row["purpose"], row["p"], row["k"]) for row in metrics["results"]] == [
        ("pictured", 0.0, 3),
        ("decoded", 0.0, 5),
        ("pictured", 0.4, 3),
        ("decoded", 0.4, 5),
    ]
    wanted = {f"{name}_{score}" for name in ("decoded", *CONTROLS) for score in SCORES}
    wanted |= {"spearman", "spearman_exact", "time_share", "trace", "trace_exact", "seconds"}
    for row in metrics["results"]:
        assert wanted <= set(row)
        assert all(np.isfinite(row[name]) for name in wanted)
        assert len(row["singular_values"]) == row["k"]
        assert row["trace"] == pytest.approx(sum(row["singular_values"]))
        assert 0.0 < row["trace_exact"] <= row["k"] + 1e-6


def test_references_are_what_theory_says(toy):
    """A known start and moves that never fail: the filter is certain at every p, and one frame tells what it shows."""
    for row in read_metrics(toy[0])["results"]:
        assert row["filter_accuracy"] == 1.0
        assert row["filter_log_loss"] == pytest.approx(0.0, abs=1e-5)
        assert row["filter_distance"] == pytest.approx(0.0, abs=1e-5)
        assert row["memoryless_accuracy"] <= row["filter_accuracy"]
        assert -1.0 <= row["spearman"] <= 1.0
        assert row["spearman_exact"] > 0.0
    by_p = {(row["purpose"], row["p"]): row for row in read_metrics(toy[0])["results"]}
    seen, hidden = by_p["decoded", 0.0], by_p["decoded", 0.4]
    assert (
        seen["memoryless_accuracy"] > 0.9
    )  # but for states that the decoder's few trajectories never showed
    assert hidden["memoryless_accuracy"] < 0.8
    # The same walks at every p: what is exact of states alone is the same.
    assert seen["spearman_exact"] == hidden["spearman_exact"]
    assert by_p["pictured", 0.0]["trace_exact"] > by_p["pictured", 0.4]["trace_exact"]


def test_pictures_page_and_rows(toy):
    out, result = toy
    names = ("representations", "bonuses", "beliefs_decoded_p0", "beliefs_decoded_p0.4")
    assert {path.stem for path in out.glob("*.png")} == set(names)
    for name in names:
        content = (out / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 3000
    assert result.page == out / "report.html"
    page = result.page.read_text()
    assert "Four rooms with a hidden agent" in page
    assert "Accuracy of beliefs" in page
    assert "Bonuses and clocks" in page
    assert not re.findall(r"""<(?:script|img|link|iframe)[^>]*\b(?:src|href)=["'](?!data:)""", page)
    assert len(result.table.rows) == 4
    assert [row[0] for row in result.table.rows][:2] == [
        "p = 0, k = 3, few features",
        "p = 0, k = 5, many features",
    ]
    summary = read_metrics(out)["summary"]
    for cells, entry in zip(result.table.rows, summary, strict=True):
        shown = dict(zip(result.table.columns, cells, strict=True))
        assert shown["accuracy"] == f"{entry['decoded_accuracy']['mean']:.3f}"
        assert shown["exact ~ 1/d"] == f"{entry['spearman_exact']['mean']:.3f}"


def test_summary_is_over_seeds_and_leaves_out_what_is_not_known(toy):
    row = read_metrics(toy[0])["results"][1]
    other = row | {"seed": 1, "decoded_accuracy": row["decoded_accuracy"] + 0.5, "trace_exact": None}
    keys, names = ("purpose", "p", "k"), ("decoded_accuracy", "trace_exact")
    (entry,) = summarise_groups([row, other], keys, names)
    assert entry["seeds"] == 2
    assert entry["decoded_accuracy"]["mean"] == pytest.approx(row["decoded_accuracy"] + 0.25)
    assert entry["decoded_accuracy"]["min"] == row["decoded_accuracy"]
    assert entry["trace_exact"]["mean"] == row["trace_exact"]
    (entry,) = summarise_groups([other], keys, names)
    assert "trace_exact" not in entry


def test_finished_cases_are_kept_without_their_models(toy):
    names = {path.name for path in (toy[0] / "cases").iterdir()}
    assert names == {f"{case.name}.npz" for case in TOY.cases()} | {"study.json"}


# ------------------------------------------------------------------------------------------- going on


def same_numbers(out, other):
    rows, others = ([row | {"seconds": 0.0} for row in read_metrics(o)["results"]] for o in (out, other))
    assert rows == others


def test_only_what_is_missing_runs_again_and_gives_the_same(toy, copied, evaluated):
    gone = TOY.cases()[3].name
    (copied / "metrics.json").unlink()
    (copied / "cases" / f"{gone}.npz").unlink()
    running.run(replace(TOY, out=copied))
    assert evaluated == [gone]
    same_numbers(copied, toy[0])


def test_a_finished_study_runs_nothing_again_and_a_new_p_only_itself(copied, evaluated):
    running.run(replace(TOY, out=copied))
    assert evaluated == []
    running.run(replace(TOY, out=copied, p=(0.4, 0.1)))
    assert evaluated == ["pictured-p0.1-k3-seed0", "decoded-p0.1-k5-seed0"]
    assert [row["p"] for row in read_metrics(copied)["results"]] == [0.4, 0.4, 0.1, 0.1]


@pytest.fixture
def pretended(toy, evaluated, monkeypatch):
    """As `evaluated`, with outcomes of the shared run in the place of new ones."""
    finished = replace(TOY, out=toy[0])

    def spy(study, group, *_):
        evaluated.extend(case.name for case in group)
        yield from ((case, running.load_outcome(finished, replace(case, seed=0))) for case in group)

    monkeypatch.setattr(running, "evaluate", spy)
    return evaluated


def test_another_seed_runs_alone(copied, pretended):
    running.run(replace(TOY, out=copied, seeds=2))
    assert pretended == [case.name for case in replace(TOY, seeds=2).cases() if case.seed == 1]
    metrics = read_metrics(copied)
    assert [row["seed"] for row in metrics["results"]] == [0, 1] * 4
    assert [entry["seeds"] for entry in metrics["summary"]] == [2] * 4


def test_other_settings_run_again(copied, pretended):
    running.run(replace(TOY, out=copied, steps=3))
    assert pretended == [case.name for case in TOY.cases()]
    assert read_metrics(copied)["config"]["steps"] == 3
    pretended.clear()
    running.run(replace(TOY, out=copied, steps=3))
    assert pretended == []


def test_an_interrupted_study_goes_on(toy, tmp_path, evaluated):
    out = tmp_path / "stopped"
    interrupted(replace(TOY, out=out), "p = 0, k = 5", 1)
    assert not (out / "metrics.json").exists()
    assert {path.name for path in (out / "cases").iterdir()} == {"pictured-p0-k3-seed0.npz", "study.json"}
    claim_folder(out, "pomdp")
    with pytest.raises(FileExistsError, match="holds 'pomdp'"):
        claim_folder(out, "tabular")
    evaluated.clear()
    running.run(replace(TOY, out=out))
    assert evaluated == [case.name for case in TOY.cases()[1:]]
    same_numbers(out, toy[0])


def interrupted(study, label, update):
    """A run with Ctrl-C while the fit of this label reports this update."""

    def report(self, done, steps, news):
        if self.label.startswith(label) and done == update:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressBar, "update", report)
        with pytest.raises(KeyboardInterrupt):
            running.run(study)


def test_checkpoints_of_other_settings_are_not_in_the_way(toy, tmp_path, evaluated, monkeypatch):
    """An interrupted fit leaves its checkpoint; it is gone on from with the same options, and only with those."""
    monkeypatch.setattr(sources, "STREAM_CHUNK_STEPS", 1)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", -1.0)
    longer = replace(TOY, out=tmp_path, p=(0.0,), steps=4)  # two updates a case
    for resumed in (1, 2):
        interrupted(longer, "p = 0, k = 3", 2)
        assert len(list(tmp_path.glob("cases/*.model.npz"))) == 1, resumed
    running.run(replace(longer, steps=TOY.steps))
    assert evaluated == 2 * ["pictured-p0-k3-seed0"] + ["pictured-p0-k3-seed0", "decoded-p0-k5-seed0"]
    assert not list(tmp_path.glob("cases/*.model.npz"))
    numbers = [row | {"seconds": 0.0} for row in read_metrics(toy[0])["results"][:2]]
    assert numbers == [row | {"seconds": 0.0} for row in read_metrics(tmp_path)["results"]]


DAMAGE = {
    "empty": lambda whole: b"",
    "cut short": lambda whole: whole[: len(whole) // 2],
    "changed": lambda whole: whole[:90] + bytes(20) + whole[110:],
    "text": lambda whole: b"not found\n",
    "without a header": lambda whole: packed(a=np.zeros(2)),
    "with another header": lambda whole: packed(header=np.frombuffer(b"[1]", np.uint8)),
    "with a header of nonsense": lambda whole: packed(header=np.frombuffer(b"{", np.uint8)),
}


def packed(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_case_is_computed_again(copied, pretended, capsys, name):
    case = TOY.cases()[1]
    file = copied / "cases" / f"{case.name}.npz"
    file.write_bytes(DAMAGE[name](file.read_bytes()))
    running.run(replace(TOY, out=copied))
    assert pretended == [case.name]
    said = capsys.readouterr().err
    assert f"derex: {file} is missing or damaged; its case is computed again.\n" in said
    assert "pickle" not in said
    pretended.clear()
    running.run(replace(TOY, out=copied))
    assert pretended == []


def test_a_damaged_checkpoint_is_removed_and_the_fit_starts_again(toy, copied, evaluated, capsys):
    case = TOY.cases()[0]
    (copied / "cases" / f"{case.name}.npz").unlink()
    checkpoint = running.prepare_checkpoint(replace(TOY, out=copied), case)
    checkpoint.write_bytes(b"PK\x03\x04 half a model")
    running.run(replace(TOY, out=copied))
    assert evaluated == [case.name]
    same_numbers(copied, toy[0])
    assert not checkpoint.exists()
    assert f"derex: {checkpoint} is missing or damaged; its fit starts again.\n" in capsys.readouterr().err


def test_other_studies_folders_are_refused(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"study": "tabular"}))
    with pytest.raises(FileExistsError, match=r"--out: .* holds 'tabular'"):
        running.run(replace(TOY, out=tmp_path))
    (tmp_path / "metrics.json").rename(tmp_path / "mine.json")
    with pytest.raises(FileExistsError, match=r"--out: .* is not empty"):
        running.run(replace(TOY, out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


# ------------------------------------------------------------------------------------------- what is asked for


def test_quick_keeps_what_the_user_chose():
    short = PomdpStudy.shortened(steps=7, p=(0.5,))
    assert (short.steps, short.p) == (7, (0.5,))
    assert (short.width, short.horizon, short.large_k) == (64, 100, 32)
    assert PomdpStudy.shortened().p == (0.3, 0.6)
    assert {case.purpose for case in short.cases()} == {"pictured", "decoded"}


@pytest.mark.parametrize("quick", [False, True])
def test_the_grid(quick):
    study = PomdpStudy(quick=quick, seeds=3)
    groups = study.groups()
    for group in groups:
        assert [case.seed for case in group] == [0, 1, 2]
        assert len({replace(case, seed=0) for case in group}) == 1
    cases = study.cases()
    assert cases == [case for group in groups for case in group]
    assert len({case.name for case in cases}) == len(cases) == 3 * (8 if quick else 10)
    assert {case.k for case in cases if case.purpose == "pictured"} == {3, 4}  # the paper's dimensions
    assert {case.k for case in cases if case.purpose == "decoded"} == {study.large_k}
    assert any(case.slip and case.random_start for case in cases) is not quick
    assert all(case.tests == "to-end" for case in cases if case.purpose == "clocks")


def test_easy_cases_take_half_the_updates():
    study = PomdpStudy(steps=10)
    assert PomdpCase("decoded", 0.9, 64, 0).steps(study) == 10
    assert PomdpCase("decoded", 0.3, 64, 0).steps(study) == 5
    assert PomdpCase("uncertain", 0.3, 64, 0, random_start=True).steps(study) == 10
    assert PomdpCase("pictured", 0.9, FEW, 0).steps(study) == 5
    assert PomdpCase("pictured", 0.9, FEW, 0).steps(PomdpStudy(steps=1)) == 1


def test_walks_of_a_seed_are_the_same_at_every_p(toy):
    seen, hidden = (make_data(TOY, case) for case in TOY.cases() if case.purpose == "decoded")
    other = make_data(TOY, replace(TOY.cases()[0], seed=1))
    assert np.array_equal(seen.test.state, hidden.test.state)
    assert not seen.test.hidden.any()
    assert 0.2 < hidden.test.hidden.mean() < 0.6
    assert not np.array_equal(seen.test.state, other.test.state)
    assert not np.array_equal(seen.test.state, seen.decoder.state[:3])
    assert seen.train.first.shape == (TOY.trajectories, TOY.horizon + 1)
    assert np.all(seen.test.state[:, 0] == GridWorld(FOUR_ROOMS).start)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--p", "1.5"), r"--p: expected probabilities between 0 and 1, got (1.5,)."),
        (("--p", "0.3", "-0.1"), r"--p: expected probabilities between 0 and 1"),
        (("--p", "nan"), r"--p: expected probabilities between 0 and 1"),
        (("--p", "0.3", "0.3"), "--p: each probability once"),
        (("--seeds", "0"), "--seeds: expected at least 1, got 0."),
        (("--horizon", "16"), "--horizon: expected more than the 16 steps of --tests, got 16."),
        (("--objective", "svd"), "--objective: expected one of nested, derex; got 'svd'."),
        (("--large-k", "0"), "--large-k: expected at least 1, got 0."),
        (
            ("--large-k", "65"),
            "--width: expected at least 65, as many units as the most features (--large-k 65), got 64.",
        ),
        (("--width", "3"), "--width: expected at least 32"),
        (
            ("--trajectories", "3", "--horizon", "20"),
            "--trajectories: 3 of --horizon 20 have 15 histories with --tests 16 steps after them, expected at least "
            "66 for 32 features. Raise --trajectories or --horizon, or lower --tests or --large-k.",
        ),
        (("--decoder-trajectories", "0"), "--decoder-trajectories: expected at least 1, got 0."),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(options, says, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["reproduce", "pomdp", "--quick", "--out", str(out), *options]) == 2
    assert f"derex: error: {says}" in capsys.readouterr().err
    assert not out.exists()


def test_help_lists_the_options(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "pomdp", "--help"])
    assert not stop.value.code
    text = capsys.readouterr().out
    assert "usage: derex reproduce pomdp" in text
    for name in asdict(PomdpStudy()):
        assert f"--{name.replace('_', '-')}" in text
    assert "probabilities that a frame hides the agent" in text
