"""Adapters of JAX suites: ends and cuts told apart, returns that count as success, options, wrong names."""

import sys
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex.envs import make, make_streams
from derex.envs.registry import SUITES, is_installed, suite_names
from derex.types import Symbols

JAX_SUITES = [name for name, suite in SUITES.items() if not suite.host and suite.extra]
SLOW = ("navix", "craftax")
FORWARD, RIGHT = 0, 1  # actions of xminigrid
KEY = 7  # a tile of xminigrid


def need(suite):
    if not is_installed(suite):
        pytest.skip(f"{suite} is not installed")


suites = pytest.mark.parametrize(
    "suite", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in JAX_SUITES]
)


def stream(env, actions, seed=0):
    """The time steps of one stream that repeats the actions until an episode is over, and the one after it."""
    streams, reset, step = compiled(env)
    keys = jax.random.split(jax.random.key(seed), env.spec.horizon + 2)
    state, seen = reset(keys[0])
    steps = [seen]
    for number, key in enumerate(keys[1:]):
        done = bool(steps[-1].last[0])
        state, seen = step(state, jnp.asarray([actions[number % len(actions)]]), key)
        steps.append(seen)
        if done:
            break
    return jax.tree.map(lambda *leaves: np.stack(leaves)[:, 0], *steps), streams.summary(state).total()


@lru_cache(maxsize=1)
def compiled(env):
    streams = make_streams(env, 1)
    return streams, jax.jit(lambda key: streams.reset(key, stagger=False)), jax.jit(streams.step)


PICK_UP, TOGGLE = 3, 5  # of NAVIX


def shortest(env, state, limit, moves=None):
    """The fewest actions that end the episode with a reward, by trying all of them from every state that is met."""
    step = jax.jit(lambda state: jax.vmap(lambda a: env.step(state, a, jax.random.key(0)))(actions))
    actions = jnp.arange(env.spec.action.n)
    seen, queue = set(), [(state, [])]
    while queue and len(seen) < limit:
        state, done = queue.pop(0)
        after, _, rewards, _ = jax.device_get(step(state))
        for action in range(env.spec.action.n) if moves is None else moves:
            if rewards[action] > 0:
                return [*done, action]
            one = jax.tree.map(lambda leaf, at=action: leaf[at], after)
            mark = marked(one)
            if mark not in seen:
                seen.add(mark)
                queue.append((one, [*done, action]))
    raise AssertionError(f"no way to a reward among {limit} states")


def marked(state):
    """What of a state of a grid world matters: not how long it took, nor the key, nor what happened."""
    if hasattr(state, "entities"):
        kept = [state.entities[kind] for kind in sorted(state.entities)]
    else:
        kept = [state.grid, state.agent]
    return tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(kept))


# --- gymnax ----------------------------------------------------------------------------------------------------------


def test_gymnax_cuts_a_pole_that_never_falls():
    """Pendulum has no end of its own: its limit of 200 steps is a cut."""
    steps, sums = stream(make("gymnax:Pendulum-v1"), [[0.0]])
    assert steps.truncated.tolist() == [False] * 200 + [True, False]
    assert np.all(steps.discount == 1)
    assert sums.lengths.item() == 200


def test_gymnax_ends_a_pole_that_falls():
    """Always to the right: the pole falls after some ten steps, each of which gave 1."""
    steps, sums = stream(make("gymnax:CartPole-v1"), [1])
    assert 8 <= len(steps.first) - 2 <= 12
    assert steps.discount[-2] == 0
    assert not steps.truncated.any()
    assert sums.returns.item() == len(steps.first) - 2
    assert steps.first[-1]


def test_gymnax_deep_sea_ends_where_its_limit_is():
    """Both come at step 8, and the end counts. The treasure is on the one dive to the right."""
    env: Any = make("gymnax:DeepSea-bsuite")
    right = np.asarray(env._env.action_mapping)[np.arange(8), np.arange(8)]
    steps, sums = stream(env, right.tolist())
    assert steps.discount.tolist() == [1.0] * 8 + [0.0, 1.0]
    assert not steps.truncated.any()
    assert sums.returns.item() == pytest.approx(0.99)
    assert sums.successes.item() == 1
    _, sums = stream(env, (1 - right).tolist())
    assert sums.returns.item() <= 0
    assert sums.successes.item() == 0


def test_gymnax_states_that_are_a_number_are_one_hot():
    env = make("gymnax:FrozenLake-misc")
    _, observation = env.reset(jax.random.key(0))
    assert observation.tolist() == [1.0] + [0.0] * 15
    assert env.spec.horizon == 100


def test_gymnax_numbers_are_floats():
    assert make("gymnax:FourRooms-misc").reset(jax.random.key(0))[1].dtype == jnp.float32


def test_gymnax_of_old_is_refused(monkeypatch):
    """Its step has as many values, with another meaning."""
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.0.9")
    with pytest.raises(ImportError, match=r"gymnax 0.0.9 is installed.*pip install .* 'gymnax>=1.0'"):
        make("gymnax:CartPole-v1")
    with pytest.raises(ValueError, match=r"expected 1\.0 or later"):
        suite_names("gymnax")


@pytest.mark.parametrize("name", suite_names("gymnax"))
def test_every_environment_of_gymnax_keeps_its_types(name):
    env: Any = make(name)
    key = jax.random.key(0)
    state, observation = jax.eval_shape(env.reset, key)
    action = jnp.int32(0) if hasattr(env.spec.action, "n") else jnp.zeros(env.spec.action.size)
    after = jax.eval_shape(env.step, state, action, key)

    def types(tree):
        return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]

    assert types((state, observation)) == types(after[:2])
    assert (observation.shape, observation.dtype) == (env.spec.observation.shape, jnp.float32)
    assert types(after[2:]) == [((), jnp.float32, False), ((), jnp.bool_, False)]


# --- xminigrid -------------------------------------------------------------------------------------------------------


def test_xminigrid_ends_and_cuts():
    """In an empty room of 3 x 3 the goal is four steps and a turn away; who only turns is cut after 100 steps."""
    env = make("xminigrid:MiniGrid-Empty-5x5")
    steps, sums = stream(env, [FORWARD, FORWARD, RIGHT, FORWARD, FORWARD])
    assert steps.discount.tolist() == [1.0] * 5 + [0.0, 1.0]
    assert not steps.truncated.any()
    assert sums.returns.item() == pytest.approx(1 - 0.9 * 5 / 100)
    assert sums.successes.item() == 1
    steps, sums = stream(env, [RIGHT])
    assert steps.truncated.tolist() == [False] * 100 + [True, False]
    assert np.all(steps.discount == 1)
    assert (sums.episodes.item(), sums.successes.item(), sums.returns.item()) == (1, 0, 0)


def test_xminigrid_worlds_without_a_goal_have_no_success():
    assert make("xminigrid:XLand-MiniGrid-R1-9x9").spec.success_return is None
    assert make("xminigrid:MiniGrid-Playground").spec.success_return is None
    spec = make("xminigrid:MiniGrid-MemoryS8").spec
    assert spec.success_return == 0.05
    assert spec.observation == Symbols((3, 3, 2), (13, 12))


def carried_along(name, way):
    """Views of all steps of a way, plain and with what is carried in the agent's place; that place of the latter."""
    plain, showing = make(name), make(f"{name}+carried")
    assert plain.spec.observation == showing.spec.observation
    state, view = jax.jit(plain.reset)(jax.random.key(0))
    shown = [np.asarray(jax.jit(showing.reset)(jax.random.key(0))[1])]
    views, step = [np.asarray(view)], jax.jit(plain.step)
    show = jax.jit(lambda state, action: showing.step(state, action, jax.random.key(0))[1])
    for action in way:
        shown.append(np.asarray(show(state, jnp.int32(action))))
        state, view, *_ = step(state, jnp.int32(action), jax.random.key(0))
        views.append(np.asarray(view))
    views, shown = np.stack(views), np.stack(shown)
    middle = (views.shape[1] - 1, views.shape[2] // 2)
    there = shown[:, middle[0], middle[1]].copy()
    shown[:, middle[0], middle[1]] = views[:, middle[0], middle[1]]
    np.testing.assert_array_equal(shown, views)
    return views, there, views[:, middle[0], middle[1]]


def test_xminigrid_shows_what_is_carried_if_asked():
    """In the agent's place, from where the key is picked up on, in the colour that the key had before it."""
    name = "xminigrid:MiniGrid-DoorKey-5x5"
    way = [RIGHT, RIGHT, PICK_UP, RIGHT, RIGHT, FORWARD]  # with this seed the key is behind the agent
    views, there, plain = carried_along(name, way)
    taken = way.index(PICK_UP) + 1
    np.testing.assert_array_equal(there[:taken], plain[:taken])
    before = views[taken - 1, -2, views.shape[2] // 2]
    assert before[0] == KEY
    assert np.all(there[taken:] == before)
    with pytest.raises(ValueError, match=r"asks for 'rgb' after a \+; expected some of \+carried"):
        make(f"{name}+rgb")


# --- navix -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_navix_ends_and_cuts():
    need("navix")
    env = make("navix:Navix-Empty-5x5-v0")
    way = shortest(env, jax.jit(env.reset)(jax.random.key(0))[0], 200)
    steps, sums = stream(env, way)
    assert steps.discount.tolist() == [1.0] * len(way) + [0.0, 1.0]
    assert (sums.returns.item(), sums.successes.item()) == (1, 1)
    steps, _ = stream(env, [0])
    assert steps.truncated.tolist() == [False] * 100 + [True, False]
    assert np.all(steps.discount == 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ["KeyCorridorS3R1", "KeyCorridorS3R2"])
def test_navix_key_corridors_can_be_solved_with_the_key_alone(name, seed):
    """NAVIX's own have no way to a reward at all."""
    need("navix")
    moves = (0, 1, 2, 3, 5)  # neither drop nor done: no way needs them
    env = make(f"navix:Navix-{name}-v0")
    way = shortest(env, jax.jit(env.reset)(jax.random.key(seed))[0], 20_000, moves)
    assert way.count(PICK_UP) == 2  # the key, then the ball
    assert way[-1] == PICK_UP
    assert TOGGLE in way[way.index(PICK_UP) :]
    original = make(f"navix:Navix-{name}-v0+original")
    with pytest.raises(AssertionError, match="no way to a reward"):
        shortest(original, jax.jit(original.reset)(jax.random.key(seed))[0], 20_000, moves)


@pytest.mark.slow
def test_navix_shows_what_is_carried_if_asked():
    need("navix")
    name = "navix:Navix-KeyCorridorS3R1-v0"
    env = make(name)
    way = shortest(env, jax.jit(env.reset)(jax.random.key(0))[0], 20_000, (0, 1, 2, 3, 5))
    views, there, plain = carried_along(name, way)
    taken = way.index(PICK_UP) + 1
    np.testing.assert_array_equal(there[:taken], plain[:taken])
    before = views[taken - 1, -2, views.shape[2] // 2]
    assert before[0] == 5
    assert there[taken].tolist() == [5, before[1], 0]
    with pytest.raises(ValueError, match="which pictures do not show"):
        make(f"{name}+carried+rgb")


@pytest.mark.slow
def test_navix_options():
    need("navix")
    with pytest.raises(ValueError, match=r"asks for 'rbg' after a \+; expected some of \+rgb, \+original"):
        make("navix:Navix-Empty-5x5-v0+rbg")
    assert make("navix:Navix-Empty-5x5-v0+rgb").spec.observation.shape == (56, 56, 3)
    assert make("navix:Navix-KeyCorridorS6R3-v0").spec.horizon == 1024


# --- craftax ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_craftax_ends_with_death_and_not_with_time():
    need("craftax")
    env = make("craftax:Craftax-Classic-Symbolic-v1")
    assert env.spec.horizon == 10_000
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    step = jax.jit(env.step)
    late = state.replace(timestep=jnp.asarray(20_000, state.timestep.dtype))
    dead = state.replace(player_health=jnp.asarray(0, state.player_health.dtype))
    key = jax.random.key(1)
    assert [bool(step(one, jnp.int32(0), key)[3]) for one in (state, late, dead)] == [False, False, True]


@pytest.mark.slow
def test_craftax_pixels_are_bytes():
    need("craftax")
    env = make("craftax:Craftax-Classic-Pixels-v1")
    observation = np.asarray(jax.jit(env.reset)(jax.random.key(0))[1])
    assert (observation.shape, observation.dtype) == ((63, 63, 3), np.uint8)
    assert observation.max() > 100


# --- all of them -----------------------------------------------------------------------------------------------------


@suites
def test_names_can_be_made(suite):
    need(suite)
    found = suite_names(suite)
    assert SUITES[suite].example in found
    assert len(set(found)) == len(found) >= 4
    env = make(found[0])
    assert env.spec.name == found[0]


@suites
def test_a_wrong_name_is_told_the_nearest(suite):
    need(suite)
    example = SUITES[suite].example
    with pytest.raises(ValueError, match=f"{suite} has no .* Did you mean '{example}'"):
        make(example[:-3] + example[-2:])


@pytest.mark.parametrize("suite", JAX_SUITES)
def test_a_missing_package_says_what_installs_it(suite, monkeypatch):
    monkeypatch.setitem(sys.modules, suite, None)
    with pytest.raises(ImportError, match=rf"pip install .*\[{suite}\]"):
        make(SUITES[suite].example)


# --- one's own -------------------------------------------------------------------------------------------------------


def test_an_environment_of_ones_own():
    assert type(make("jax:derex.envs.diagnostic:Catch")).__name__ == "Catch"
    with pytest.raises(ValueError, match=r"expected 'jax:package\.module:name', got 'jax:catch'"):
        make("jax:catch")
    with pytest.raises(ValueError, match=r"could not be imported: No module named 'nowhere'"):
        make("jax:nowhere:Task")
    with pytest.raises(ValueError, match=r"could not be imported: .* no attribute 'Cash'"):
        make("jax:derex.envs.diagnostic:Cash")
    with pytest.raises(ValueError, match=r"jax:builtins:dict.*dict.*reset\(key\)"):
        make("jax:builtins:dict")
