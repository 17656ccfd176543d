"""Bad trajectories, parameters and steps are refused with their names and a way out, before any training starts."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

from derex import HistoryDeRex
from derex.estimators.trajectories import check_trajectories, make_stream_spec, outline
from derex.types import NO_ACTION, Indexed, Trajectories

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


def replaced(array, value, place=(2, 3)):
    """The array with one value changed, at a step that counts."""
    array = np.array(array)
    array[place] = value
    return array


def seen(observation):
    return X._replace(observation=observation)


def acted(previous_action):
    return X._replace(previous_action=previous_action)


def indexed(index, values=NUMBERS[0]):
    return seen(Indexed(values, index))


def model(**options: Any) -> HistoryDeRex:
    few: dict[str, Any] = {"k": 2, "width": 8, "tests": 3, "batch_size": 4, "steps": 2, "random_state": 0}
    return HistoryDeRex(**few | options)


class Module(eqx.Module):
    """Returns what it is told to."""

    weight: jax.Array
    rank: int

    def __init__(self, rank=1, size=3):
        self.weight, self.rank = jax.numpy.ones(size), rank

    def __call__(self, x):
        return (
            (self.weight * x).reshape((1,) * (self.rank - 1) + (-1,))
            if self.rank
            else (self.weight * x).sum()
        )


class NoParameters(eqx.Module):
    def __call__(self, x):
        return x


# ------------------------------------------------------------------------------------- trajectories

NAN = replaced(NUMBERS, np.nan, (2, 3, 1))
# name: (what is given to fit, error, what its message must say: the argument, what came and what was expected)
BAD_DATA = {
    "an array": (NUMBERS, TypeError, r"X: expected derex.types.Trajectories, got ndarray.*from_episodes\("),
    "a tuple": (tuple(X), TypeError, "X: expected derex.types.Trajectories, got tuple"),
    "flags of numbers": (
        X._replace(first=FIRST * 1), TypeError,
        r"X.first: expected booleans, got int64.*X.first.astype",
    ),
    "mask of numbers": (X._replace(valid=VALID * 1.0), TypeError, "X.valid: expected booleans, got float64"),
    "flags of another shape": (
        X._replace(first=FIRST[:, :-1]), ValueError,
        r"X.first and X.valid: .*\(streams, steps\).*\(6, 7\) and \(6, 8\)",
    ),
    "flags of one axis": (
        Trajectories(NUMBERS[0], ACTIONS[0], FIRST[0], VALID[0]), ValueError,
        r"expected shape \(streams, steps\).*\(8,\)",
    ),
    "no streams": (X.rows(slice(0, 0)), ValueError, r"X.first and X.valid: .*\(0, 8\)"),
    "padding first": (X._replace(valid=VALID[:, ::-1]), ValueError, "X.valid: .*at least one step.*padding comes last"),
    "holes": (X._replace(valid=replaced(VALID, False)), ValueError, "X.valid: .*padding comes last"),
    "an empty stream": (
        X._replace(valid=VALID & (np.arange(B) != 3)[:, None]), ValueError,
        "X.valid: each stream has at least one",
    ),
    "actions of another shape": (
        acted(ACTIONS[:, 1:]), ValueError, r"X.previous_action: expected shape \(6, 8\) or .*got \(6, 7\)",
    ),
    "numbered actions of three axes": (
        acted(ACTIONS[..., None]), ValueError,
        r"X.previous_action: numbered actions have shape \(streams, steps\), got \(6, 8, 1\)",
    ),
    "negative actions": (
        acted(replaced(ACTIONS, -2)), ValueError,
        r"X.previous_action: .*from 0 \(none: -1\).*got -2 to 2",
    ),
    "huge actions": (
        acted(replaced(ACTIONS, 2**32)), ValueError,
        "X.previous_action: .*less than 1048576, got .*4294967296",
    ),
    "true actions": (acted(ACTIONS > 0), TypeError, "X.previous_action: expected integers or floats, got bool"),
    "actions in words": (
        acted(ACTIONS.astype(str)), ValueError,
        "X.previous_action: strings .*integer ids",
    ),
    "nan actions": (acted(NAN), ValueError, "X.previous_action: .*NaN.* row 2"),
    "actions too large": (acted(replaced(ACTIONS * 1.0, 1e300)), ValueError, "X.previous_action: .*too large.* row 2"),
    "nan": (seen(NAN), ValueError, "X.observation: .*NaN.* row 2"),
    "infinity": (
        seen({"a": NUMBERS, "b": replaced(NUMBERS, np.inf)}), ValueError,
        r"X.observation\['b'\]: .*infinity.* row 2",
    ),
    "too large": (
        seen(replaced(NUMBERS.astype(float), 1e300)), ValueError,
        "X.observation: .*too large for single precision",
    ),
    "integers too large": (
        seen(replaced(IMAGES.astype(int), 2**40)), ValueError,
        "X.observation: .*32 bits, got .*1099511627776",
    ),
    "text": (seen(NUMBERS.astype(str)), ValueError, "X.observation: strings .*integer ids"),
    "complex": (seen([NUMBERS, NUMBERS * 1j]), ValueError, r"X.observation\[1\]: expected numbers, got .*complex64"),
    "nothing": (seen({}), ValueError, "X.observation: expected at least one array, got {}"),
    "empty": (
        seen(NUMBERS[..., :0]), ValueError,
        r"X.observation: expected one entry for each step, got shape \(6, 8, 0\)",
    ),
    "a number": (
        seen({"a": 3.0}), ValueError,
        r"X.observation\['a'\]: expected one entry for each step, got shape \(\)",
    ),
    "fewer steps": (
        seen({"a": NUMBERS, "b": IDS[:, 1:]}), ValueError,
        r"X.observation\['b'\]: expected \(6, 8\) as its first axes, got \(6, 7\)",
    ),
    "no leaf": (seen({"a": NUMBERS, "b": None}), TypeError, "X.observation: expected arrays in dicts .*got NoneType"),
    "numbered keys": (seen({1: NUMBERS}), TypeError, r"X.observation: .*names as keys.*got dict"),
    "negative ids": (seen(replaced(IDS, -1)), ValueError, "X.observation: ids must run from 0 .*got -1 to 4.*Renumber"),
    "ids without end": (
        seen(replaced(IDS, 2**20)), ValueError,
        "X.observation: ids .*less than 1048576, got 0 to 1048576",
    ),
    "index past the values": (
        indexed(replaced(IDS, 8)), ValueError,
        "X.observation.index: expected numbers from 0 to 7",
    ),
    "negative index": (indexed(replaced(IDS, -1)), ValueError, "X.observation.index: expected numbers from 0 to 7"),
    "fractional index": (
        indexed(IDS * 1.0), ValueError,
        r"X.observation.index: expected integers of shape \(6, 8\), got float64",
    ),
    "index of another shape": (indexed(IDS[1:]), ValueError, r"X.observation.index: .*\(6, 8\), got int64 \(5, 8\)"),
    "values of unequal lengths": (
        indexed(IDS, {"a": NUMBERS[0], "b": NUMBERS[0, 1:]}), ValueError,
        r"X.observation\['b'\]: expected \(8,\) .*got \(7, 3\)",
    ),
    "too short for the tests": (
        jax.tree.map(lambda leaf: leaf[:, :3], X), ValueError,
        "X: 0 histories are followed by 3 or more steps.* at least 6 for k = 2.*longest .* 3 steps.*tests <= 2, or",
    ),
}  # fmt: skip

BAD_OPTIONS = {
    "k": ({"k": 0}, ValueError, "k: expected at least 1, got 0"),
    "k for the data": (
        {"k": 14, "width": 16}, ValueError, r"X: 26 histories .*at least 30 for k = 14.*tests <= 2, .*k <= 12",
    ),
    "tests": ({"tests": 0}, ValueError, "tests: expected at least 1, got 0"),
    "fractional tests": ({"tests": 3.0}, TypeError, "tests: expected an integer, got 3.0"),
    "misspelt tests": (
        {"tests": "to_end"}, ValueError,
        "tests: expected one of 'to-end'; got 'to_end'. Did you mean 'to-end'",
    ),
    "tests longer than episodes": (
        {"tests": 9}, ValueError,
        "X: 0 histories are followed by 9 .*longest episode has 8 .*tests <= 6",
    ),
    "objective": (
        {"objective": "deRex"}, ValueError,
        "objective: expected one of 'derex', 'nested', 'laplacian'.*'derex'",
    ),
    "encoder": ({"encoder": "atuo"}, ValueError, "encoder: expected one of 'auto'; got 'atuo'. Did you mean 'auto'"),
    "encoder of no kind": ({"encoder": 3}, TypeError, r"encoder: expected 'auto', .*\(key, width\) -> module; got 3"),
    "no module": (
        {"encoder": lambda key, width: 3}, TypeError,
        "encoder: the function must return an Equinox module, got 3",
    ),
    "function of one": (
        {"encoder": lambda key: Module()}, TypeError,
        r"encoder: .*called as encoder\(key, width\) and failed",
    ),
    "module of the wrong input": (
        {"encoder": Module(size=4)}, ValueError,
        "encoder: the module failed on one observation .*without stream",
    ),
    "module to a matrix": (
        {"encoder": Module(rank=2)}, ValueError,
        "encoder: the module must return a vector of floats, got .*shape=.1, 3.",
    ),
    "module to a number": (
        {"encoder": Module(rank=0)}, ValueError,
        "encoder: the module must return a vector of floats",
    ),
    "nothing to train": ({"encoder": NoParameters()}, ValueError, "encoder: .*no floating-point arrays"),
    "width": ({"width": 0}, ValueError, "width: expected at least 1, got 0"),
    "test_actions": ({"test_actions": 1}, TypeError, "test_actions: expected True or False, got 1"),
    "n_actions": ({"n_actions": 2}, ValueError, "n_actions: got 2, but X.previous_action has action 2"),
    "no actions": ({"n_actions": 0}, ValueError, "n_actions: expected at least 1, got 0"),
    "batch_size": ({"batch_size": 1}, ValueError, "batch_size: expected at least 2, got 1"),
    "steps": ({"steps": 0}, ValueError, "steps: expected at least 1, got 0"),
    "learning_rate": ({"learning_rate": 0.0}, ValueError, "learning_rate: expected a number > 0"),
    "lambda_r": ({"lambda_r": "growing"}, ValueError, "lambda_r: .*'grow'"),
    "sigma_floor": ({"sigma_floor": -1.0}, ValueError, "sigma_floor: expected a number >= 0"),
    "weighted_bonus": ({"weighted_bonus": "yes"}, TypeError, "weighted_bonus: expected True or False"),
    "seed": ({"random_state": "a"}, TypeError, "random_state: expected None, an integer .*got 'a' of type str"),
    "a generator": (
        {"random_state": np.random.default_rng(0)}, TypeError,
        r"random_state: expected .*RandomState; got .*Generator.*random_state=int\(generator.integers\(2\*\*31\)\)",
    ),
    "a true seed": ({"random_state": True}, TypeError, "random_state: .*got True of type bool"),
    "a negative seed": ({"random_state": -1}, ValueError, "random_state: expected an integer from 0 .*got -1"),
    "k for the width": ({"k": 9}, ValueError, "k: got 9, but .*width = 8 units.*choose width >= k"),
    "tests to the end": (
        {"tests": "to-end", "k": 20, "width": 20}, ValueError,
        r"X: 38 histories are followed by another step .*at least 42 .*fix it: collect more .*k <= 18\.$",
    ),
    "laplacian": (
        {"objective": "laplacian", "k": 20, "width": 20}, ValueError,
        r"X: 38 histories are followed by another step .*fix it: collect more or longer .*, or choose k <= 18",
    ),
    "n_ids": ({"n_ids": 0}, ValueError, "n_ids: expected at least 1, got 0"),
}  # fmt: skip


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr("derex.estimators.fitting.train_chunk", lambda *_: pytest.fail("training started"))


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data(name):
    data, error, message = BAD_DATA[name]
    with pytest.raises(error, match=f"(?s){message}"):
        model().fit(data)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    options, error, message = BAD_OPTIONS[name]
    with pytest.raises(error, match=f"(?s){message}"):
        model(**options).fit(X)


# ------------------------------------------------------------------------------------- what is accepted


def test_the_padding_is_made_harmless_and_the_rest_is_left_alone():
    checked = check_trajectories(X)
    assert checked.observation[VALID].tobytes() == NUMBERS[VALID].tobytes()
    assert not checked.observation[~VALID].any()
    assert np.all(checked.previous_action[~VALID] == NO_ACTION)
    taken = VALID & ~FIRST
    np.testing.assert_array_equal(checked.previous_action[taken], ACTIONS[taken])
    assert np.all(checked.previous_action[FIRST] == NO_ACTION)
    assert check_trajectories(checked).observation is checked.observation  # zeros already: not copied again
    whole = X._replace(valid=np.ones((B, T), bool))
    assert check_trajectories(whole).observation is NUMBERS


def test_memory_maps_are_not_read_into_memory(tmp_path):
    np.save(tmp_path / "numbers.npy", NUMBERS)
    mapped = np.load(tmp_path / "numbers.npy", mmap_mode="r")
    whole = Trajectories(mapped, ACTIONS, FIRST, np.ones((B, T), bool))
    assert check_trajectories(whole).observation is mapped


def test_descriptions():
    parts = {"picture": IMAGES, "place": IDS, "seen": IDS > 2, "numbers": (NUMBERS, [NUMBERS[..., 0]])}
    spec = make_stream_spec(check_trajectories(seen(parts)), None)
    assert (spec.actions, spec.choices) == ("ids", 3)
    assert spec.outline == {
        "dict": {"picture": 0, "place": 0, "seen": 0, "numbers": {"tuple": [0, {"list": [0]}]}}
    }
    leaves = jax.tree.leaves(parts)  # in the order of the names
    assert [part.shape for part in spec.parts] == [leaf.shape[2:] for leaf in leaves]
    assert [part.kind for part in spec.parts] == ["vectors", "vectors", "images", "ids", "vectors"]
    assert [part.dtype for part in spec.parts] == ["float32", "float32", "uint8", "int32", "float32"]
    assert [part.n_ids for part in spec.parts] == [0, 0, 0, 5, 0]
    built = spec.observation([1, 2, 3, 4, 5])
    assert built == {"numbers": (1, [2]), "picture": 3, "place": 4, "seen": 5}
    assert outline(built["numbers"][1] and NUMBERS) == 0


@pytest.mark.parametrize(
    ("actions", "n_actions", "kind", "choices"),
    [
        (ACTIONS, None, "ids", 3),
        (ACTIONS.astype(np.uint8), 9, "ids", 9),
        (np.full((B, T), NO_ACTION), None, "ids", 1),
        (ACTIONS * 1.0, None, "vectors", 1),
        (NUMBERS, None, "vectors", 3),
        (IMAGES * 1.0, None, "vectors", 36),
    ],
)
def test_actions(actions, n_actions, kind, choices):
    spec = make_stream_spec(check_trajectories(acted(actions)), n_actions)
    assert (spec.actions, spec.choices) == (kind, choices)
