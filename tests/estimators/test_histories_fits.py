"""Fits of histories: episode boundaries, seeds, checkpoints, fits side by side, single steps, files."""

import os
import stat
from typing import Any

import jax
import numpy as np
import pytest

from derex import DeRex, HistoryDeRex
from derex.estimators import fit_together, fitting, trajectories
from derex.types import NO_ACTION, Indexed, Trajectories

B, T = 6, 8
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(B, T, 3)).astype(np.float32)
IDS = RNG.integers(0, 5, (B, T))
IDS[0, 0] = 4
FIRST = np.zeros((B, T), bool)
FIRST[:, [0, 4]] = True
VALID = np.ones((B, T), bool)
ACTIONS = np.where(FIRST, NO_ACTION, RNG.integers(0, 3, (B, T)))
VECTORS = np.where(FIRST[..., None], 0.0, RNG.normal(size=(B, T, 2))).astype(np.float32)
X = Trajectories(NUMBERS, ACTIONS, FIRST, VALID)
OTHER = X._replace(observation=-NUMBERS)
PARTS = Trajectories({"place": IDS, "numbers": NUMBERS}, VECTORS, FIRST, VALID)


def small(**options: Any) -> HistoryDeRex:
    few: dict[str, Any] = {"k": 2, "width": 8, "tests": 2, "batch_size": 4, "steps": 4, "random_state": 0}
    return HistoryDeRex(**few | options)


@pytest.fixture(scope="module")
def fitted():
    return {"numbers": small().fit(X), "parts": small().fit(PARTS)}


# ------------------------------------------------------------------------------------- where episodes begin


@pytest.mark.parametrize(("name", "data", "left"), [("numbers", X, 2), ("parts", PARTS, 9.0)])
def test_no_action_is_read_across_the_start_of_an_episode(fitted, name, data, left):
    """What an actor's unroll holds there is the last action of the episode before."""
    actions = np.array(data.previous_action)
    actions[FIRST] = left
    unroll, model = data._replace(previous_action=actions), fitted[name]
    np.testing.assert_array_equal(model.transform(unroll), model.transform(data))
    np.testing.assert_array_equal(model.bonus(unroll), model.bonus(data))
    assert model.score(unroll) == model.score(data)
    np.testing.assert_array_equal(small().fit(unroll).sigma_, model.sigma_)
    observation = jax.tree.map(lambda leaf: leaf[:, 4], data.observation)
    memory = model.initial_memory(B)
    mine, its = (
        model.step(memory, observation, each.previous_action[:, 4], FIRST[:, 4]) for each in (unroll, data)
    )
    np.testing.assert_array_equal(mine.representation, its.representation)


# ------------------------------------------------------------------------------------- seeds of interrupted fits


@pytest.fixture
def chunks(monkeypatch):
    """Of two updates, each followed by a checkpoint."""
    monkeypatch.setattr("derex.estimators.data.STREAM_CHUNK_STEPS", 2)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", -1.0)


def stop(done, *_):
    if done == 4:
        raise KeyboardInterrupt


@pytest.mark.parametrize("seed", [lambda: None, lambda: np.random.RandomState(5)], ids=["none", "generator"])
def test_an_interrupted_fit_goes_on_with_the_seed_that_was_drawn(chunks, tmp_path, seed):
    np.random.seed(0)  # noqa: NPY002 (what is drawn from where random_state is None)
    expected = small(random_state=seed()).fit(X)
    np.random.seed(0)  # noqa: NPY002
    with pytest.raises(KeyboardInterrupt):
        small(random_state=seed()).fit(X, checkpoint=tmp_path / "fit", watch=stop)
    other = seed() if seed() is None else np.random.RandomState(99)
    resumed = small(random_state=other).fit(X, checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(resumed.sigma_, expected.sigma_)
    np.testing.assert_array_equal(resumed.transform(X), expected.transform(X))
    with pytest.raises(ValueError, match=r"checkpoint: .*other parameters \['random_state'\]"):
        small(random_state=7).fit(X, checkpoint=tmp_path / "fit")


# ------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("checkpoint", "error", "message"),
    [
        (True, TypeError, "checkpoint: expected the name of a file, got True of type bool"),
        (3, TypeError, "checkpoint: expected the name of a file, got 3 of type int"),
        (".", IsADirectoryError, "checkpoint: . is a folder; name a file in it, such as model.npz"),
        ("", IsADirectoryError, "checkpoint: . is a folder"),
    ],
)
def test_what_is_no_file_is_refused(checkpoint, error, message):
    with pytest.raises(error, match=message):
        small().fit(X, checkpoint=checkpoint)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"some text\n"])
def test_damaged_checkpoints_say_what_to_do(tmp_path, content):
    (tmp_path / "fit").write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint: .*fit is not .*damaged.*remove it to start again"):
        small().fit(X, checkpoint=tmp_path / "fit")


def test_checkpoints_of_other_encoders_are_refused_by_name(tmp_path, fitted):
    fitted["numbers"].save(tmp_path / "fit")
    with pytest.raises(
        ValueError, match=r"checkpoint: cannot resume from .*fit: encoder: .*emove it to start"
    ):
        small(encoder=lambda key, width: None).fit(X, checkpoint=tmp_path / "fit")


# ------------------------------------------------------------------------------------- fits side by side


def two(**options: Any) -> list[HistoryDeRex]:
    return [small(random_state=seed, **options) for seed in (0, 1)]


def test_the_same_twice_is_refused(tmp_path):
    model = small()
    with pytest.raises(ValueError, match=r"models\[1\] is there twice.*clone"):
        fit_together([model, model], [X, OTHER])
    (tmp_path / "in").mkdir()
    files = [tmp_path / "fit", tmp_path / "in" / ".." / "fit"]
    with pytest.raises(ValueError, match="checkpoints: expected a file of its own for each fit"):
        fit_together(two(), [X, OTHER], checkpoints=files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((small(), [X]), "models: expected a list .*got HistoryDeRex.*HistoryDeRex.fit"),
        ((two(), X), "trajectories: expected a list .*got Trajectories"),
        (([DeRex(2), small()], [X, X]), r"models\[0\]: expected a HistoryDeRex, got DeRex"),
        ((["a"], [X]), r"models\[0\]: expected a HistoryDeRex, got str"),
        (([small()], [NUMBERS]), r"trajectories\[0\]: expected derex.types.Trajectories, got ndarray"),
    ],
)
def test_wrong_types_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        fit_together(*arguments)


def test_wrong_checkpoints_and_watchers_are_named():
    with pytest.raises(TypeError, match=r"checkpoints: expected a list .*got str"):
        fit_together(two(), [X, OTHER], checkpoints="ab")
    with pytest.raises(TypeError, match=r"checkpoints\[1\]: expected the name of a file, got None"):
        fit_together(two(), [X, OTHER], checkpoints=["a", None])
    with pytest.raises(TypeError, match=r"watch: expected a function .*got 3"):
        fit_together(two(), [X, OTHER], watch=3)
    with pytest.raises(TypeError, match=r"watch: expected a function .*got 'loss'"):
        small().fit(X, watch="loss")


def rows(number, seed):
    """So many distinct vectors, and so many actions."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, number, (B, T))
    index[0, :number] = np.arange(number)
    actions = np.where(FIRST, NO_ACTION, index % number)
    return Trajectories(rng.normal(size=(number, 3)).astype(np.float32)[index], actions, FIRST, VALID)


@pytest.mark.parametrize(
    "most",
    [
        pytest.param(4, marks=pytest.mark.slow, id="one deduplicated"),
        pytest.param(40, id="both deduplicated"),
    ],
)
def test_sets_may_have_other_numbers_of_distinct_rows_and_actions(most, monkeypatch):
    sets, stored = [rows(3, 0), rows(6, 1)], trajectories.deduplicate_together
    monkeypatch.setattr(trajectories, "deduplicate_together", lambda sets, **_: stored(sets, most))
    both = two()
    fit_together(both, sets)
    assert [model._spec.choices for model in both] == [6, 6]
    for model, data, alone in zip(both, sets, two(n_actions=6), strict=True):
        alone.fit(data)
        np.testing.assert_allclose(model.singular_values_, alone.singular_values_, atol=0.02)
        assert model.transform(data).shape == (B, T, 2)


def test_sets_may_have_other_ids(tmp_path, chunks):
    """A fit goes on alone from the checkpoint of one of several, whose tables are larger than it needs."""
    fewer = PARTS._replace(observation={"place": np.minimum(IDS, 2), "numbers": NUMBERS})
    both, files = two(), [tmp_path / "0", tmp_path / "1"]
    fit_together(both, [PARTS, fewer])
    assert [model._spec.parts[1].n_ids for model in both] == [5, 5]
    with pytest.raises(KeyboardInterrupt):
        fit_together(two(), [PARTS, fewer], checkpoints=files, watch=stop)
    alone = two()[1].fit(fewer, checkpoint=files[1])
    np.testing.assert_allclose(alone.singular_values_, both[1].singular_values_, atol=1e-3)


DIFFERENT = {
    "steps": (jax.tree.map(lambda leaf: leaf[:, :7], X), r"trajectories\[1\]: expected 8 steps, as in .*\[0\]; got 7"),
    "shape": (X._replace(observation=NUMBERS[..., :2]), r"trajectories\[1\].observation: .*\(3,\).*as in traj.*\(2,\)"),
    "parts": (X._replace(observation={"a": NUMBERS}), r"trajectories\[1\].observation: expected array.*{'a': array}"),
    "actions": (X._replace(previous_action=VECTORS), r"trajectories\[1\].previous_action: .*numbers.*vectors of 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_said_in_words(name):
    other, message = DIFFERENT[name]
    with pytest.raises(ValueError, match=message):
        fit_together(two(), [X, other])


def test_indexed_and_plain_sets_go_together():
    table = RNG.normal(size=(9, 3)).astype(np.float32)
    indexed = X._replace(observation=Indexed(table, RNG.integers(0, 9, (B, T))))
    both = two()
    fit_together(both, [X, indexed])
    assert all(np.isfinite(model.sigma_).all() for model in both)


# ------------------------------------------------------------------------------------- steps


def test_the_snippets_of_the_docs(fitted):
    """One stream, as the README and docs/histories.md have it; the first step of an episode has no action before it."""
    model = fitted["numbers"]
    wanted = model.transform(X)[0, :2]
    for nothing in (None, [None], [NO_ACTION], np.array([NO_ACTION])):
        memory, f, _ = model.step(model.initial_memory(), [NUMBERS[0, 0]], nothing)
        np.testing.assert_allclose(f[0], wanted[0], atol=1e-5)
        memory, f, bonus = model.step(memory, NUMBERS[0, 1][None], [ACTIONS[0, 1]])
        np.testing.assert_allclose(f[0], wanted[1], atol=1e-5)
        assert bonus.shape == (1,)


def test_steps_of_dicts_and_vectors(fitted):
    model = fitted["parts"]
    wanted = model.transform(PARTS)[:2, :2]
    seen = [[{"place": IDS[b, t], "numbers": NUMBERS[b, t]} for b in range(2)] for t in range(2)]
    for nothing in (None, [None, None], [None, np.zeros(2)]):
        memory, f, _ = model.step(model.initial_memory(2), seen[0], nothing)
        np.testing.assert_allclose(f, wanted[:, 0], atol=1e-5)
    _, f, _ = model.step(memory, seen[1], list(VECTORS[:2, 1]))
    np.testing.assert_allclose(f, wanted[:, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (NUMBERS[0, 0], [1]),
            r"^observation: .* each of 1 streams, got shape \(3,\). .*one stream: \[observation\]",
        ),
        (([NUMBERS[0, 0]], 1), r"^previous_action: .*got a single int64. .*one stream: \[previous_action\]"),
        (([NUMBERS[0, 0]], [1.0]), r"^previous_action: expected numbers .*got vectors of 1. .*astype\(int\)"),
        (([NUMBERS[0, 0]], [1], True), r"^first: .*got a single bool. .*\[first\]"),
    ],
)
def test_bad_steps_of_one_stream(fitted, arguments, message):
    with pytest.raises(ValueError, match=message):
        fitted["numbers"].step(fitted["numbers"].initial_memory(), *arguments)


# ------------------------------------------------------------------------------------- ids, scores, files


def test_room_for_ids_not_yet_seen(fitted):
    new = PARTS._replace(observation={"place": IDS + 5, "numbers": NUMBERS})
    with pytest.raises(ValueError, match=r"X.observation\['place'\]: id 9 is new .*showed 0..4.*n_ids=10"):
        fitted["parts"].transform(new)
    roomy = small(n_ids=10).fit(PARTS)
    assert roomy._spec.parts[1].n_ids == 10
    assert np.isfinite(roomy.transform(new)).all()
    with pytest.raises(ValueError, match=r"n_ids: got 3, but X.observation\['place'\] has id 4"):
        small(n_ids=3).fit(PARTS)


def test_scores_are_of_what_was_fitted():
    model = small().fit(X)
    before = model.score(X)
    model.set_params(k=40, tests=100, width=64)
    assert model.score(X) == before
    model.set_params(batch_size=0)
    with pytest.raises(ValueError, match="batch_size: expected at least 2, got 0"):
        model.score(X)


def test_weights_that_are_not_numbers(fitted, tmp_path):
    fitted["numbers"].save(tmp_path / "model")
    with np.load(tmp_path / "model") as stored:
        arrays = dict(stored)
    name = next(name for name in arrays if name.endswith(".forward.bias"))
    arrays[name] = np.full_like(arrays[name], np.nan)
    with (tmp_path / "model").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match=r"model is damaged: .*forward.bias contains NaN"):
        HistoryDeRex.load(tmp_path / "model")


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_files_respect_the_umask(fitted, tmp_path, mask):
    before = os.umask(mask)
    try:
        fitted["numbers"].save(tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o666 & ~mask
