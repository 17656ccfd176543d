"""Files of histories' models and interrupted fits: nothing is lost, nothing in them is run, damage is noticed."""

import io
import json
import os
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from derex import DeRex, HistoryDeRex
from derex.estimators import fitting
from derex.types import Trajectories

B, T = 8, 9
RNG = np.random.default_rng(0)
FIRST = np.zeros((B, T), bool)
FIRST[:, 0] = True
VALID = np.arange(T) < np.r_[np.full(5, T), 7, 8, 6][:, None]
ACTIONS = RNG.integers(0, 3, (B, T))
NUMBERS = RNG.normal(size=(B, T, 3)).astype(np.float32)
X = Trajectories(NUMBERS, ACTIONS, FIRST, VALID)
PARTS = X._replace(observation=({"b": NUMBERS, "a": RNG.integers(0, 5, (B, T))}, [NUMBERS[..., 0]]))


class Own(eqx.Module):
    """With a leaf that is no array."""

    layer: eqx.nn.Linear
    gain: float = 2.0

    def __call__(self, x):
        return self.gain * self.layer(x)


def own(key, width):
    return Own(eqx.nn.Linear(3, width, key=key))


def small(**options: Any) -> HistoryDeRex:
    few: dict[str, Any] = {
        "k": 2,
        "width": 8,
        "tests": 3,
        "batch_size": 4,
        "steps": 2,
        "random_state": np.int64(3),
    }
    return HistoryDeRex(**few | options)


CASES = {
    "numbers": ({}, X),
    "parts": ({"tests": "to-end", "test_actions": False, "n_actions": 7}, PARTS),
    "vector actions": (
        {"objective": "laplacian", "lambda_r": "grow"},
        X._replace(previous_action=NUMBERS[..., :2]),
    ),
    "own": ({"encoder": own}, X),
}


@pytest.fixture(scope="module")
def fitted():
    return {name: small(**options).fit(data) for name, (options, data) in CASES.items()}


@pytest.fixture(scope="module")
def file(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "numbers.derex"
    fitted["numbers"].save(path)
    return path


def assert_same(model, other, data=X):
    """Every parameter, statistic and answer, to the bit."""
    mine, its = (jax.tree_util.tree_leaves_with_path(m._state) for m in (model, other))
    assert [place for place, _ in mine] == [place for place, _ in its]
    for (place, a), (_, b) in zip(mine, its, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(place))
    for name, column in model.history_.items():
        np.testing.assert_array_equal(other.history_[name], column)
    np.testing.assert_array_equal(other.sigma_, model.sigma_)
    np.testing.assert_array_equal(other.singular_values_, model.singular_values_)
    np.testing.assert_array_equal(other.transform(data), model.transform(data))
    assert other.n_iter_ == model.n_iter_


# ------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_model_is_the_same(fitted, name, tmp_path):
    model, data = fitted[name], CASES[name][1]
    model.save(tmp_path / "model")
    loaded = HistoryDeRex.load(str(tmp_path / "model"), encoder=own if name == "own" else None)
    assert_same(model, loaded, data)
    np.testing.assert_array_equal(loaded.bonus(data), model.bonus(data))
    assert loaded.score(data) == model.score(data)
    assert loaded.get_params() == model.get_params()
    first = [jax.tree.map(lambda leaf: leaf[:, 0], part) for part in (data.observation, data.previous_action)]
    mine, its = (each.step(each.initial_memory(B), *first) for each in (model, loaded))
    np.testing.assert_array_equal(its.representation, mine.representation)


def test_a_loaded_model_can_be_fitted_again(file, fitted):
    assert_same(HistoryDeRex.load(file).fit(X), fitted["numbers"])


def test_what_was_set_since_the_fit_is_not_in_the_file(file, fitted, tmp_path):
    model = HistoryDeRex.load(file).set_params(k=5, objective="laplacian", width=3, sigma_floor=0.2)
    model.save(tmp_path / "model")
    loaded = HistoryDeRex.load(tmp_path / "model")
    assert_same(loaded, fitted["numbers"])
    assert (loaded.k, loaded.objective, loaded.width, loaded.sigma_floor) == (2, "derex", 8, 0.2)


def test_generators_are_not_kept_as_seeds(file, tmp_path):
    HistoryDeRex.load(file).set_params(random_state=np.random.RandomState(0)).save(tmp_path / "model")
    assert HistoryDeRex.load(tmp_path / "model").random_state is None


# ------------------------------------------------------------------------------------- own modules


@pytest.fixture(scope="module")
def own_file(fitted, tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "model"
    fitted["own"].save(path)
    return path


def test_own_modules_are_asked_for(own_file):
    with pytest.raises(ValueError, match=r"encoder: .*own module.*HistoryDeRex.load\(path, encoder=...\)"):
        HistoryDeRex.load(own_file)


def test_a_module_of_the_right_shape_will_do(own_file, fitted):
    assert_same(HistoryDeRex.load(own_file, encoder=own(jax.random.key(9), 8)), fitted["own"])


WRONG = {
    "shape": (lambda key, width: own(key, width + 1), "do not fit the encoder .first difference: .networks"),
    "signature": (lambda key: own(key, 8), r"encoder: a function is called as encoder\(key, width\)"),
    "module": (Own(eqx.nn.Linear(4, 8, key=jax.random.key(0))), "encoder: the module failed on one observation"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_module_is_refused(own_file, name):
    encoder, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message):
        HistoryDeRex.load(own_file, encoder=encoder)


def test_a_needless_module_is_refused(file):
    with pytest.raises(ValueError, match=r"encoder: .*load it without `encoder`"):
        HistoryDeRex.load(file, encoder=own)


# ------------------------------------------------------------------------------------- foreign and damaged files


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def archive(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def contents(path):
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def test_models_of_pairs_and_of_histories_are_told_apart(file, tmp_path):
    rows = NUMBERS.reshape(-1, 3)
    DeRex(2, encoder="linear", steps=1, batch_size=8, random_state=0).fit(rows, rows[::-1]).save(
        tmp_path / "pairs"
    )
    with pytest.raises(ValueError, match=r"format is 'derex-model', expected 'derex-history-model'"):
        HistoryDeRex.load(tmp_path / "pairs")
    with pytest.raises(ValueError, match=r"format is 'derex-history-model', expected 'derex-model'"):
        DeRex.load(file)


@pytest.mark.parametrize("name", ["history", "state/.step", "header.json"])
def test_a_trap_is_not_sprung(file, tmp_path, monkeypatch, name):
    (tmp_path / "file").write_bytes(archive(contents(file) | {name: np.array([Trap()], object)}))
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("code from the file was run"))
    with pytest.raises(ValueError, match=r"damaged.*Object arrays cannot be loaded"):
        HistoryDeRex.load(tmp_path / "file")


def test_truncated_files(file, tmp_path):
    whole = file.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 12).astype(int):
        (tmp_path / "file").write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            HistoryDeRex.load(tmp_path / "file")


def test_changed_numbers_are_noticed(file, tmp_path):
    whole = bytearray(file.read_bytes())
    place = whole.index(b"\x93NUMPY", len(whole) // 3) + 140
    whole[place] ^= 0x55
    (tmp_path / "file").write_bytes(whole)
    with pytest.raises(ValueError, match="damaged"):
        HistoryDeRex.load(tmp_path / "file")


CHANGES = {
    "a newer format": (lambda h: h.update(version=99), "format version 99; this derex reads up to 2. Upgrade"),
    "an unknown parameter": (lambda h: h["parameters"].update(colour=1), "unknown parameters .'colour'.*newer"),
    "a bad parameter": (lambda h: h["parameters"].update(objective="x"), "damaged.*objective: expected one of"),
    "no spec": (lambda h: h.pop("spec"), "damaged"),
    "a bad spec": (lambda h: h["spec"].pop("parts"), "damaged"),
    "another shape": (lambda h: h["spec"]["parts"][0].update(shape=[4]), "damaged: its arrays do not fit its header"),
    "more actions": (lambda h: h["spec"].update(choices=9), "damaged: its arrays do not fit"),
    "tied": (lambda h: h.update(tied=True), "damaged: its arrays do not fit"),
    "no parameters": (lambda h: h.update(parameters=None), "is damaged"),
    "parameters of a list": (lambda h: h.update(parameters=[1]), "is damaged"),
    "no encoder": (lambda h: h["parameters"].pop("encoder"), "is damaged"),
    "no seed to draw from": (lambda h: h["parameters"].update(random_state="x"), "is damaged.*random_state"),
    "k without a width": (lambda h: h["parameters"].update(width=1), "is damaged.*choose width >= k"),
    "no outline": (lambda h: h["spec"].update(outline=None), "is damaged"),
    "an outline of nonsense": (lambda h: h["spec"].update(outline={"set": [0]}), "is damaged"),
    "an outline of two": (lambda h: h["spec"].update(outline={"tuple": [0, 0]}), "is damaged"),
    "no kind of actions": (lambda h: h["spec"].update(actions="words"), "is damaged"),
    "no number of actions": (lambda h: h["spec"].update(choices="3"), "is damaged"),
    "a shape in words": (lambda h: h["spec"]["parts"][0].update(shape=["a"]), "is damaged"),
    "no dtype": (lambda h: h["spec"]["parts"][0].update(dtype="float99"), "is damaged"),
    "no fingerprint": (lambda h: h.update(fingerprint=None), "is damaged"),
    "a fingerprint in words": (lambda h: h.update(fingerprint="x"), "is damaged"),
    "a seed in words": (lambda h: h.update(seed="x"), "is damaged"),
    "tied by a number": (lambda h: h.update(tied=3), "is damaged"),
    "a lost array": (lambda h: h["arrays"].append("state/more"), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changed_headers(file, tmp_path, name):
    change, message = CHANGES[name]
    arrays = contents(file)
    header = json.loads(arrays["header.json"].tobytes())
    change(header)
    arrays["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    (tmp_path / "file").write_bytes(archive(arrays))
    with pytest.raises(ValueError, match=message):
        HistoryDeRex.load(tmp_path / "file")


# ------------------------------------------------------------------------------------- writing


def half_written(file, **_):
    file.write(b"half a model")
    raise OSError("disk full")


def test_a_failed_save_leaves_the_old_file(file, fitted, tmp_path, monkeypatch):
    target = tmp_path / "model"
    target.write_bytes(file.read_bytes())
    monkeypatch.setattr(np, "savez", half_written)
    with pytest.raises(OSError, match="disk full"):
        fitted["own"].save(target)
    with pytest.raises(OSError, match="disk full"):
        fitted["own"].save(tmp_path / "new")
    assert target.read_bytes() == file.read_bytes()
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_no_folder(fitted, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"folder .*absent does not exist. Create it"):
        fitted["numbers"].save(tmp_path / "absent" / "model")
    monkeypatch.setattr("derex.estimators.fitting.train_chunk", lambda *_: pytest.fail("training started"))
    with pytest.raises(FileNotFoundError, match=r"checkpoint: the folder .*absent does not exist. Create it"):
        small().fit(X, checkpoint=tmp_path / "absent" / "model")


# ------------------------------------------------------------------------------------- interrupted fits

LONG = {"steps": 8}


@pytest.fixture
def chunks(monkeypatch):
    """Of two updates, each followed by a checkpoint."""
    monkeypatch.setattr("derex.estimators.data.STREAM_CHUNK_STEPS", 2)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", -1.0)


def interrupt(at):
    def watch(done, *_):
        if done == at:
            raise KeyboardInterrupt

    return watch


@pytest.fixture(scope="module")
def uninterrupted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("derex.estimators.data.STREAM_CHUNK_STEPS", 2)
        return small(**LONG).fit(X)


@pytest.fixture
def stopped(chunks, tmp_path):
    """The checkpoint of a fit that was interrupted in its third chunk of four."""
    with pytest.raises(KeyboardInterrupt):
        small(**LONG).fit(X, checkpoint=tmp_path / "fit", watch=interrupt(6))
    return tmp_path / "fit"


def test_a_checkpoint_changes_nothing(chunks, uninterrupted, tmp_path):
    model = small(**LONG).fit(X, checkpoint=tmp_path / "fit")
    assert_same(model, uninterrupted)
    assert_same(HistoryDeRex.load(tmp_path / "fit"), uninterrupted)


def test_an_interrupted_fit_goes_on_as_if_it_had_not_been(stopped, uninterrupted):
    assert HistoryDeRex.load(stopped).n_iter_ == 4  # usable as it is
    assert np.isfinite(HistoryDeRex.load(stopped).transform(X)).all()
    seen = []
    model = small(**LONG).fit(X, checkpoint=str(stopped), watch=lambda done, *_: seen.append(done))
    assert seen == [6, 8]
    assert_same(model, uninterrupted)


def test_a_fit_may_be_interrupted_again_and_again(chunks, uninterrupted, tmp_path):
    for at in (2, 4, 4, 6, 8):  # the chunk itself is lost each time: it was not kept yet
        with pytest.raises(KeyboardInterrupt):
            small(**LONG).fit(X, checkpoint=tmp_path / "fit", watch=interrupt(at))
    assert_same(small(**LONG).fit(X, checkpoint=tmp_path / "fit"), uninterrupted)


def test_other_chunks_after_an_interruption_lose_no_update(stopped, uninterrupted, monkeypatch):
    """As after an upgrade, or on a machine with more memory."""
    monkeypatch.setattr(
        "derex.estimators.data.STREAM_CHUNK_STEPS", 3
    )  # ends at 3, 6 and 8: the fit stopped at 4
    model = small(**LONG).fit(X, checkpoint=stopped)
    assert model.n_iter_ == 8
    assert model.history_["step"].tolist() == [2.0, 4.0, 6.0, 8.0]
    np.testing.assert_allclose(model.transform(X), uninterrupted.transform(X), atol=1e-3)


def test_a_finished_fit_is_not_trained_again(chunks, uninterrupted, tmp_path, monkeypatch):
    small(**LONG).fit(X, checkpoint=tmp_path / "fit")
    monkeypatch.setattr("derex.estimators.fitting.train_chunk", lambda *_: pytest.fail("training started"))
    changed = small(**LONG, verbose=True, sigma_floor=0.3)  # neither matters to the fit
    assert_same(changed.fit(X, checkpoint=tmp_path / "fit"), uninterrupted)


def test_fits_of_own_modules_go_on(chunks, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        small(**LONG, encoder=own).fit(X, checkpoint=tmp_path / "fit", watch=interrupt(4))
    resumed = small(**LONG, encoder=own).fit(X, checkpoint=tmp_path / "fit")
    assert_same(resumed, small(**LONG, encoder=own).fit(X))


OTHER = {
    "data": ({}, X._replace(observation=NUMBERS + 1e-3), "other data"),
    "actions": ({}, X._replace(previous_action=ACTIONS[::-1]), "other data"),
    "episodes": ({}, X._replace(first=FIRST | (np.arange(T) == 5)), "other data"),
    "parameters": (
        {"learning_rate": 0.5, "tests": 2}, X, r"other parameters \['learning_rate', 'tests'\]",
    ),
    "seed": ({"random_state": 4}, X, r"other parameters \['random_state'\]"),
    "steps": ({"steps": 9}, X, r"other parameters \['steps'\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_checkpoints_of_other_fits_are_refused(stopped, name):
    options, data, message = OTHER[name]
    before = stopped.read_bytes()
    with pytest.raises(ValueError, match=f"checkpoint: .*fit is of a fit with {message}. Remove the file"):
        small(**LONG | options).fit(data, checkpoint=stopped)
    assert stopped.read_bytes() == before


def test_a_damaged_checkpoint_is_refused_and_kept(stopped):
    damaged = stopped.read_bytes()[:-50]
    stopped.write_bytes(damaged)
    with pytest.raises(
        ValueError,
        match=r"checkpoint: .*fit is not a derex model, or it is damaged.*remove it to start again",
    ):
        small(**LONG).fit(X, checkpoint=stopped)
    assert stopped.read_bytes() == damaged


def test_a_full_disk_loses_no_checkpoint(stopped, uninterrupted, monkeypatch):
    before = stopped.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", half_written)
        with pytest.raises(OSError, match="disk full"):
            small(**LONG).fit(X, checkpoint=stopped)
    assert stopped.read_bytes() == before
    assert [each.name for each in stopped.parent.iterdir()] == ["fit"]
    assert_same(small(**LONG).fit(X, checkpoint=stopped), uninterrupted)
