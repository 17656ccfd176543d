"""What a fitted model of histories refuses to read, and scikit-learn's conventions."""

import pickle
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from derex import HistoryDeRex
from derex.networks.recurrent import LSTMState
from derex.types import NO_ACTION, Trajectories

B, T = 6, 8
RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(B, T, 3)).astype(np.float32)
IDS = RNG.integers(0, 5, (B, T))
IDS[0, 0] = 4
IMAGES = RNG.integers(0, 256, (B, T, 6, 6, 1), dtype=np.uint8)
ACTIONS = RNG.integers(0, 3, (B, T))
ACTIONS[0, 1] = 2
FIRST = np.zeros((B, T), bool)
FIRST[:, 0] = True
VALID = np.arange(T) < np.r_[T, T, T, T, 5, 7][:, None]
X = Trajectories(NUMBERS, ACTIONS, FIRST, VALID)


def seen(observation):
    return X._replace(observation=observation)


def acted(previous_action):
    return X._replace(previous_action=previous_action)


def model(**options: Any) -> HistoryDeRex:
    few: dict[str, Any] = {"k": 2, "width": 8, "tests": 3, "batch_size": 4, "steps": 2, "random_state": 0}
    return HistoryDeRex(**few | options)


NAN = np.where(np.arange(3) == 1, np.nan, NUMBERS).astype(np.float32)
FOURTH = np.where((np.arange(B) == 2)[:, None] & (np.arange(T) == 3), 3, ACTIONS)  # an action that no fit saw


@pytest.fixture(scope="module")
def fitted():
    parts = {"place": IDS, "picture": IMAGES}
    return {"numbers": model().fit(X), "parts": model().fit(Trajectories(parts, NUMBERS, FIRST, VALID))}


READING = {
    "an array": ("numbers", NUMBERS, TypeError, "X: expected derex.types.Trajectories"),
    "nan": ("numbers", seen(NAN), ValueError, "X.observation: .*NaN"),
    "fewer numbers": (
        "numbers", seen(NUMBERS[..., :2]), ValueError,
        r"X.observation: expected .* shape \(3,\), as in fit; got \(2,\)",
    ),
    "structure": (
        "numbers", seen({"a": NUMBERS}), ValueError,
        r"X.observation: expected array, as in fit; got {'a': array}",
    ),
    "more actions": (
        "numbers", acted(FOURTH), ValueError,
        "X.previous_action: action 3 is new to the model; training showed 0..2. .*n_actions=4",
    ),
    "vectors for numbers": (
        "numbers", acted(NUMBERS), ValueError,
        r"X.previous_action: expected numbers \(integers\), as in fit; got vectors of 3. Number them.*astype\(int\)",
    ),
    "a part too few": (
        "parts", seen({"place": IDS}), ValueError,
        "X.observation: expected {'picture': array, 'place': array}, as in fit; got {'place': array}",
    ),
    "type": (
        "parts", Trajectories({"place": IDS, "picture": IMAGES / 255}, NUMBERS, FIRST, VALID), ValueError,
        r"X.observation\['picture'\]: .*uint8, as in fit; got float32. .*astype\(np.uint8\). .*fractions of 255",
    ),
    "unknown ids": (
        "parts", Trajectories({"place": IDS + 1, "picture": IMAGES}, NUMBERS, FIRST, VALID), ValueError,
        r"X.observation\['place'\]: id 5 is new to the model; training showed 0..4. .*n_ids=6",
    ),
    "shorter actions": (
        "parts", Trajectories({"place": IDS, "picture": IMAGES}, NUMBERS[..., :2], FIRST, VALID), ValueError,
        "X.previous_action: expected vectors of 3, as in fit; got vectors of 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("method", ["transform", "bonus", "score"])
def test_bad_data_for_a_fitted_model(fitted, name, method):
    which, data, error, message = READING[name]
    with pytest.raises(error, match=f"(?s){message}"):
        getattr(fitted[which], method)(data)


def test_a_score_needs_histories_that_count(fitted):
    with pytest.raises(ValueError, match="X: 0 histories are followed by 3 or more steps"):
        fitted["numbers"].score(jax.tree.map(lambda leaf: leaf[:, :3], X))


NOW, BEFORE = NUMBERS[:2, 0], np.array([NO_ACTION, 1])
MEMORY = LSTMState(jax.numpy.zeros((2, 4)), jax.numpy.zeros((2, 4)))
STEPS = {
    "streams of the observation": (
        (NUMBERS[:3, 0], BEFORE),
        r"^observation: expected one entry for each of 2 streams, got shape \(3, 3\)",
    ),
    "streams of the action": ((NOW, [1, 1, 1]), r"^previous_action: .*for each of 2 streams, got shape \(3,\)"),
    "streams of the flags": ((NOW, BEFORE, [True]), r"^first: expected one entry for each of 2 .*got shape \(1,\)"),
    "a single action": ((NOW, 1), "previous_action: expected one entry for each of 2 streams, got a single int64"),
    "a single number": ((3.0, BEFORE), "observation: expected one entry for each of 2 streams, got a single float64"),
    "nan": ((NOW * np.nan, BEFORE), "^observation: .*NaN"),
    "more actions": ((NOW, [0, 3]), "^previous_action: action 3 is new to the model; training showed 0..2"),
    "fewer numbers": ((NOW[:, :2], BEFORE), r"^observation: expected .* shape \(3,\), as in fit; got \(2,\)"),
    "structure": (({"a": NOW}, BEFORE), "^observation: expected array, as in fit; got {'a': array}"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_bad_steps(fitted, name):
    arguments, message = STEPS[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        fitted["numbers"].step(fitted["numbers"].initial_memory(2), *arguments)


def test_a_memory_of_another_model(fitted):
    with pytest.raises(ValueError, match=r"memory: expected what `initial_memory` or `step` .*8 units wide"):
        fitted["numbers"].step(MEMORY, NOW, BEFORE)


def test_bad_numbers_of_streams(fitted):
    with pytest.raises(ValueError, match="streams: expected at least 1, got 0"):
        fitted["numbers"].initial_memory(0)


def test_bad_representations(fitted):
    with pytest.raises(ValueError, match=r"representation: expected 2 columns, got shape \(4, 3\)"):
        fitted["numbers"].bonus_of(np.zeros((4, 3)))
    fitted["numbers"].set_params(sigma_floor="low")
    with pytest.raises(TypeError, match="sigma_floor: expected a number"):
        fitted["numbers"].bonus(X)
    fitted["numbers"].set_params(sigma_floor=0.05)


def test_a_failed_fit_leaves_the_fitted_model_alone(fitted):
    before = fitted["numbers"].transform(X)
    with pytest.raises(ValueError, match="NaN"):
        fitted["numbers"].fit(seen(NAN))
    np.testing.assert_array_equal(fitted["numbers"].transform(X), before)


# ------------------------------------------------------------------------------------- scikit-learn's conventions


def test_parameters_go_in_and_out():
    given = model(
        objective="nested",
        tests="to-end",
        lambda_r="grow",
        n_actions=5,
        encoder=eqx.nn.Linear(3, 8, key=jax.random.key(0)),
    )
    parameters = given.get_params()
    assert (parameters["k"], parameters["tests"], parameters["n_actions"]) == (2, "to-end", 5)
    copied = clone(given)
    assert {**copied.get_params(), "encoder": 0} == {**parameters, "encoder": 0}
    assert eqx.tree_equal(copied.encoder, given.encoder)
    assert given.set_params(k=3, width=4).k == 3
    with pytest.raises(ValueError, match="Invalid parameter 'kk'"):
        given.set_params(kk=3)


def test_a_clone_is_not_fitted(fitted):
    copied = clone(fitted["numbers"])
    with pytest.raises(NotFittedError):
        copied.transform(X)
    np.testing.assert_array_equal(copied.fit(X).sigma_, fitted["numbers"].sigma_)


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.transform(X),
        lambda m: m.bonus(X),
        lambda m: m.score(X),
        lambda m: m.bonus_of(np.zeros((1, 2))),
        lambda m: m.initial_memory(),
        lambda m: m.step(MEMORY, NOW, BEFORE),
        lambda m: m.save("model"),
    ],
)
def test_models_are_fitted_first(use):
    with pytest.raises(NotFittedError, match="HistoryDeRex instance is not fitted"):
        use(model())


def test_models_can_be_pickled(fitted):
    copied = pickle.loads(pickle.dumps(fitted["parts"]))
    data = Trajectories({"place": IDS, "picture": IMAGES}, NUMBERS, FIRST, VALID)
    np.testing.assert_array_equal(copied.transform(data), fitted["parts"].transform(data))
