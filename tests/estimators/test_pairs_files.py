"""Files: nothing is lost, nothing in them is run, and damage is noticed."""

import io
import json
import os
import pickle
import zipfile
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import DeRex
from derex.estimators.files import PAIRS, read_archive

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), RNG.normal(size=(40, 2)).astype(np.float32)
IDS, NEXT = np.arange(40) % 5, (np.arange(40) * 3 + 1) % 7
IMAGES = RNG.integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)


class Own(eqx.Module):
    """With a leaf that is no array."""

    layer: eqx.nn.Linear
    gain: float = 2.0

    def __call__(self, x):
        return self.gain * self.layer(x)


def own(key, shape, k):
    return Own(eqx.nn.Linear(shape[0], k, key=key))


DATA = {
    "tabular": (IDS, NEXT),
    "linear": (X, Y),
    "mlp": (X, Y),
    "conv": (IMAGES, IMAGES[::-1]),
    "own": (X, Y),
    "pair": (IDS, Y),
    "laplacian": (X, X[::-1]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "own": {"encoder": own},
    "pair": {"encoder": ("tabular", own), "n_states": (np.int64(9), None)},
    "laplacian": {"encoder": "linear", "objective": "laplacian"},
}


def fitted(name):
    options: dict[str, Any] = {
        "k": 2,
        "encoder": name,
        "steps": 2,
        "batch_size": 16,
        "random_state": np.int64(3),
    }
    return DeRex(**options | OPTIONS.get(name, {})).fit(*DATA[name])


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """A model and its file."""
    model, path = fitted("linear"), tmp_path_factory.mktemp("models") / "linear.derex"
    model.save(path)
    return model, path


# ------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", DATA)
def test_a_loaded_model_is_the_same(name, tmp_path):
    model, (x, y) = fitted(name), DATA[name]
    model.save(tmp_path / "model")
    encoder = OPTIONS.get(name, {}).get("encoder") if name in ("own", "pair") else None
    loaded = DeRex.load(str(tmp_path / "model"), encoder=encoder)
    np.testing.assert_array_equal(loaded.transform(x), model.transform(x))
    np.testing.assert_array_equal(loaded.transform_y(y), model.transform_y(y))
    np.testing.assert_array_equal(loaded.bonus(x), model.bonus(x))
    np.testing.assert_array_equal(loaded.sigma_, model.sigma_)
    assert {key: value.tolist() for key, value in loaded.history_.items()} == {
        key: value.tolist() for key, value in model.history_.items()
    }
    assert loaded.get_params() == model.get_params()
    assert loaded.n_iter_ == 2


@pytest.mark.parametrize("name", ["mlp", "laplacian"])
def test_training_goes_on_where_it_stopped(name, tmp_path):
    (x, y) = DATA[name]
    model = fitted(name).partial_fit(x, y)  # the guard's network is no longer that of the state
    model.save(tmp_path / "model")
    loaded = DeRex.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.partial_fit(x, y).transform(x), model.partial_fit(x, y).transform(x))
    np.testing.assert_array_equal(loaded.bonus(x), model.bonus(x))


def test_names_of_features_are_kept(linear, tmp_path):
    model = linear[0]
    assert vars(DeRex.load(linear[1]))["n_features_in_"] == 3
    model.feature_names_in_ = np.array(["a", "b", "c"], object)
    model.save(tmp_path / "named")
    del model.feature_names_in_
    assert vars(DeRex.load(tmp_path / "named"))["feature_names_in_"].tolist() == ["a", "b", "c"]


def test_a_stream_is_continued_from_a_file(tmp_path):
    model = DeRex(1, encoder="tabular", n_states=8, random_state=0)
    for _ in range(3):
        model.partial_fit(IDS, NEXT)
    model.save(tmp_path / "model")
    loaded = DeRex.load(tmp_path / "model")
    for each in (model, loaded):
        each.partial_fit(NEXT, IDS)
    np.testing.assert_array_equal(loaded.bonus(np.arange(8)), model.bonus(np.arange(8)))
    assert loaded.n_iter_ == 4


def test_generators_are_not_kept_as_seeds(tmp_path):
    model = DeRex(2, encoder="linear", steps=2, batch_size=16, random_state=np.random.RandomState(0)).fit(
        X, Y
    )
    model.save(tmp_path / "model")
    assert DeRex.load(tmp_path / "model").random_state is None


# ------------------------------------------------------------------------------------- own modules


@pytest.fixture(scope="module")
def own_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "model"
    fitted("own").save(path)
    return path


def test_own_modules_are_asked_for(own_file):
    with pytest.raises(ValueError, match=r"encoder: .*own module.*DeRex.load\(path, encoder=...\)"):
        DeRex.load(own_file)


def test_a_module_of_the_right_shape_will_do(own_file):
    x_side, y_side = (Own(eqx.nn.Linear(size, 2, key=jax.random.key(9))) for size in (3, 2))
    loaded = DeRex.load(own_file, encoder=(x_side, y_side))
    np.testing.assert_array_equal(loaded.transform(X), fitted("own").transform(X))


@pytest.mark.parametrize("wrong", [lambda key, shape, k: Own(eqx.nn.Linear(shape[0], k + 1, key=key)), "mlp"])
def test_the_wrong_module_is_refused(own_file, wrong):
    with pytest.raises(ValueError, match=r"do not fit the encoder \(first difference: .networks.f.network"):
        DeRex.load(own_file, encoder=wrong)


def test_a_function_that_fails_is_not_taken_for_damage(own_file):
    with pytest.raises(TypeError, match=r"encoder: a function is called as encoder\(key, shape, k\)"):
        DeRex.load(own_file, encoder=lambda key: own(key, (3,), 2))


def test_a_needless_module_is_refused(linear):
    with pytest.raises(ValueError, match=r"encoder: .*holds its own encoder, 'linear'; load it without"):
        DeRex.load(linear[1], encoder=own)


# ------------------------------------------------------------------------------------- foreign and damaged files


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.system, ("exit 1",)


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


FOREIGN = {
    "empty": b"",
    "text": b"not a model",
    "pickle": pickle.dumps({"k": 2}),
    "array": np.lib.format.magic(1, 0) + b"rubbish",
    "foreign npz": archive(weights=np.ones(3)),
    "header of another kind": archive(**{"header.json": np.frombuffer(b'["derex-model"]', np.uint8)}),
    "another format": archive(
        **{"header.json": np.frombuffer(b'{"format": "other", "version": 1}', np.uint8)}
    ),
    "a trap": archive(**{"header.json": np.array([Trap()], object)}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files(tmp_path, name, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("code from the file was run"))
    (tmp_path / "file").write_bytes(FOREIGN[name])
    with pytest.raises(ValueError, match="file is not a derex model, or it is damaged"):
        DeRex.load(tmp_path / "file")


def test_a_trap_among_the_arrays_is_not_sprung(linear, tmp_path, monkeypatch):
    with np.load(linear[1]) as file:
        arrays = {**file, "history": np.array([Trap()], object)}
    (tmp_path / "file").write_bytes(archive(**arrays))
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("code from the file was run"))
    with pytest.raises(ValueError, match=r"damaged.*Object arrays cannot be loaded"):
        DeRex.load(tmp_path / "file")


def test_no_file_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        DeRex.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"folder .* does not exist. Create it"):
        fitted("linear").save(tmp_path / "absent" / "model")


def test_truncated_files(linear, tmp_path):
    whole = linear[1].read_bytes()
    for length in np.linspace(1, len(whole) - 1, 25).astype(int):
        (tmp_path / "file").write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            DeRex.load(tmp_path / "file")


def read_file(path):
    return read_archive(path, PAIRS)


def test_flipped_bytes_are_noticed_or_harmless(linear, tmp_path):
    """Every region of the file: headers, arrays and directory. Fields that nobody reads may change."""
    path = linear[1]
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    places = np.unique(
        np.r_[np.linspace(0, len(whole) - 1, 400), np.linspace(directory, len(whole) - 1, 400)].astype(int)
    )
    harmless = 0
    for place in places:
        (tmp_path / "file").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            header, arrays = read_file(tmp_path / "file")
        except ValueError as error:
            assert "damaged" in str(error)  # noqa: PT017
            continue
        harmless += 1
        wanted_header, wanted = read_file(path)
        assert header == wanted_header
        assert all(np.array_equal(arrays[name], wanted[name]) for name in wanted)
        assert arrays.keys() == wanted.keys()
    assert harmless < 0.5 * len(places)


def rewritten(path, change):
    """The file with its header changed."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays["header.json"].tobytes())
    change(header)
    arrays["header.json"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    return archive(**arrays)


CHANGES = {
    "a newer format": (
        lambda h: h.update(version=99),
        "format version 99; this derex reads up to 2. Upgrade",
    ),
    "an unknown parameter": (
        lambda h: h["parameters"].update(colour=1),
        "unknown parameters .'colour'.; .*newer",
    ),
    "a bad parameter": (lambda h: h["parameters"].update(objective="x"), "objective: expected one of"),
    "no specs": (lambda h: h.pop("specs"), "damaged"),
    "other shapes": (lambda h: h["specs"][0].update(shape=[4]), "arrays do not fit its header"),
    "a lost array": (lambda h: h["arrays"].append("guard/x/more"), "damaged"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_headers(linear, tmp_path, name):
    change, message = CHANGES[name]
    (tmp_path / "file").write_bytes(rewritten(linear[1], change))
    with pytest.raises(ValueError, match=message):
        DeRex.load(tmp_path / "file")


# ------------------------------------------------------------------------------------- writing


def test_a_failed_save_leaves_the_old_file(linear, tmp_path, monkeypatch):
    model, path = linear
    target = tmp_path / "model"
    target.write_bytes(path.read_bytes())

    def fail(file, **_):
        file.write(b"half a model")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        model.save(target)
    assert target.read_bytes() == path.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_files_are_plain_archives_of_arrays(linear):
    with zipfile.ZipFile(linear[1]) as file:
        assert file.testzip() is None
        assert all(name.endswith(".npy") for name in file.namelist())
    with np.load(linear[1], allow_pickle=False) as file:
        header = json.loads(file["header.json"].tobytes())
    assert header["parameters"]["k"] == 2
    assert header["parameters"]["random_state"] == 3


def test_parameters_changed_after_training_do_not_spoil_the_file(tmp_path):
    model = fitted("linear")
    before = model.transform(X)
    model.set_params(k=5, encoder="mlp").save(tmp_path / "m.derex")
    loaded = DeRex.load(tmp_path / "m.derex")
    assert (loaded.k, loaded.encoder) == (2, "linear")
    np.testing.assert_array_equal(loaded.transform(X), before)


class HalfPrecision(eqx.Module):
    weight: jax.Array

    def __call__(self, x):
        return (x.astype(jnp.bfloat16) @ self.weight).astype(jnp.float32)


def test_reduced_precision_modules_survive_a_file(tmp_path):
    def build(key, shape, k):
        return HalfPrecision(jax.random.normal(key, (*shape, k), jnp.bfloat16))

    model = DeRex(2, encoder=build, steps=2, batch_size=16, random_state=0).fit(X, Y)
    model.save(tmp_path / "m.derex")
    loaded = DeRex.load(tmp_path / "m.derex", encoder=build)
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
