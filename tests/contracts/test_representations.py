"""What every auxiliary representation promises an agent: one suite for all methods, their forms and a user's own.

Shapes: B streams, S steps of an unroll, W units of the agent.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from derex.agents.config import AgentConfig
from derex.agents.network import AgentNetwork, describe_parts
from derex.agents.policy import Categorical
from derex.agents.rollout import Rollout
from derex.agents.update import combine_rewards, init_learner
from derex.decomposition.statistics import Half
from derex.representations import (
    METHODS,
    BonusUse,
    Representation,
    RepresentationConfig,
    RepresentationState,
    RolloutView,
    Sizes,
    find_representation,
)
from derex.representations.base import OptimisedTraining, no_auxiliary, track_nothing
from derex.representations.belief import BeliefConfig
from derex.representations.decomposed import DecompositionConfig
from derex.representations.histories import HistoriesConfig
from derex.representations.rnd import RndConfig
from derex.representations.states import StatesConfig
from derex.types import Trajectories

B, S, W, K, A, LONGEST = 6, 9, 8, 4, 3, 3
PARTS = describe_parts(
    {"place": jax.ShapeDtypeStruct((5,), jnp.float32), "room": jax.ShapeDtypeStruct((2,), "float32")}
)
SIZES = Sizes(PARTS, A, W, W, B)


@dataclass(frozen=True)
class Hashing:
    """A user's own method: the bonus is 1/√n of what the signs of an observation were counted to be."""

    lambda_b: float = 0.5

    def build(self) -> Representation:
        return Representation(
            self._init, no_auxiliary, track_nothing, self._observe, self._report, BonusUse(self.lambda_b)
        )

    def _init(self, key: Array, sizes: Sizes) -> RepresentationState:
        return RepresentationState(None, None, jnp.zeros(2 ** sizes.observation[0].shape[0]), None)

    def _observe(
        self, state: RepresentationState, view: RolloutView, key: Array
    ) -> tuple[RepresentationState, Array]:
        signs = jax.tree.leaves(view.trajectories.observation)[0] > 0
        place = signs @ (2 ** jnp.arange(signs.shape[-1]))
        counts = state.tracked.at[place[:, 1:].ravel()].add(1.0)
        return state._replace(tracked=counts), 1.0 / jnp.sqrt(jnp.maximum(counts[place], 1.0))

    def _report(self, state: RepresentationState) -> dict[str, Array]:
        return {"kinds": jnp.sum(state.tracked > 0)}


def small(form: Any) -> Any:
    """The same form, tiny."""
    options = {
        "k": K,
        "width": W,
        "tests": LONGEST,
        "training": OptimisedTraining(steps=2, streams=4, learning_rate=1e-2),
    }
    names = {option.name for option in fields(form)}
    changed = {name: value for name, value in options.items() if name in names}
    if "decomposition" in names:
        changed["decomposition"] = replace(form.decomposition, k=K)
    return replace(form, **changed)


def of_k(k: int, objective: str = "derex") -> DecompositionConfig:
    return DecompositionConfig(k=k, objective=objective)


def episodic(form: Any) -> Any:
    """The same form, tiny, with a bonus for what is new in its episode."""
    return small(replace(form, decomposition=DecompositionConfig(episodic=0.1)))


FORMS: dict[str, Any] = {
    **{
        " ".join((m, name)).strip(): small(form)
        for m, forms in METHODS.items()
        for name, form in forms.items()
    },
    "belief, no projection": replace(small(BeliefConfig()), decomposition=of_k(W), projection=False),
    "belief, nested": small(BeliefConfig(of_k(K, "nested"))),
    "belief, to the end": replace(small(BeliefConfig()), tests="to-end"),
    "histories, nested": small(HistoriesConfig(of_k(K, "nested"))),
    "histories, to the end": replace(small(HistoriesConfig()), tests="to-end"),
    "histories, actions in tests": replace(small(HistoriesConfig()), test_actions=True),
    "histories, laplacian": small(HistoriesConfig(of_k(K, "laplacian"))),
    "states, nested": small(StatesConfig(of_k(K, "nested"))),
    "belief, new in its episode": episodic(BeliefConfig()),
    "histories, new in its episode": episodic(HistoriesConfig()),
    "states, new in its episode": episodic(StatesConfig()),
    "states, laplacian": small(StatesConfig(of_k(K, "laplacian"))),
    "rnd, as it comes": replace(small(RndConfig()), normalise=False),
    "a user's own": Hashing(),
}
MAIN = {name for name in FORMS if "," not in name} - {
    "derex-rep belief"
}  # the rest differs in details: `make test-all`


def often(names: Iterable[str]) -> list[Any]:
    """The names, those of the finer variants marked as slow."""
    return [name if name in MAIN else pytest.param(name, marks=pytest.mark.slow) for name in names]


DECOMPOSED = [name for name, form in FORMS.items() if hasattr(form, "decomposition")]
JOINT = [name for name, form in FORMS.items() if isinstance(form, BeliefConfig)]


class Built(NamedTuple):
    """A form and what is made of it."""

    name: str
    form: Any
    representation: Representation
    init: Any
    observe: Any


@cache
def built(name: str, form: Any) -> Built:
    representation = form.build()
    return Built(
        name, form, representation, partial(representation.init, sizes=SIZES), jax.jit(representation.observe)
    )


@pytest.fixture(params=often(FORMS), scope="module")
def method(request: pytest.FixtureRequest) -> Built:
    return built(request.param, FORMS[request.param])


def frozen(form: Any) -> Any:
    """The same form with networks and statistics that stay as they are: both are of a whole unroll, and look ahead."""
    names = {option.name for option in fields(form)}
    changes: dict[str, Any] = {"normalise": False} if "normalise" in names else {}
    if "decomposition" in names:
        changes["decomposition"] = replace(form.decomposition, statistics_decay=1.0)
    if "training" in names:
        changes["training"] = replace(form.training, steps=0)
    return replace(form, **changes)


@pytest.fixture(
    params=often(name for name, form in FORMS.items() if not isinstance(form, Hashing)), scope="module"
)
def still(request: pytest.FixtureRequest) -> tuple[Built, RepresentationState]:
    """A method whose networks do not move any more, with statistics from an unroll before."""
    moving = built(request.param, FORMS[request.param])
    state, _ = moving.observe(moving.init(jax.random.key(1)), view_of(steps(10)), jax.random.key(2))
    return built(request.param, frozen(moving.form)), state


# ---------------------------------------------------------------------------------- experience


@cache
def network() -> AgentNetwork:
    return AgentNetwork(AgentConfig(width=W), PARTS, Categorical(A), key=jax.random.key(0))


def steps(seed: int, first: Any = None) -> Trajectories:
    """An unroll of random steps; episodes begin where `first` says, the same in all streams, or anywhere."""
    rng = np.random.default_rng(seed)
    begins = (
        rng.random((B, S)) < 0.25 if first is None else np.broadcast_to(np.isin(np.arange(S), first), (B, S))
    )
    actions = np.eye(A, dtype=np.float32)[rng.integers(0, A, (B, S))] * ~begins[..., None]
    observation = {"place": rng.normal(size=(B, S, 5)), "room": rng.normal(size=(B, S, 2))}
    observation = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), observation)
    return Trajectories(observation, jnp.asarray(actions), jnp.asarray(begins), jnp.ones((B, S), bool))


def mixed(trajectories: Trajectories, other: Trajectories, changed: Any) -> Trajectories:
    """The first, with observations and actions of the other at the changed steps."""

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(jnp.asarray(changed).reshape(1, S, *[1] * (a.ndim - 2)), b, a)

    observation = jax.tree.map(choose, trajectories.observation, other.observation)
    previous = choose(trajectories.previous_action, other.previous_action)
    return trajectories._replace(
        observation=observation, previous_action=previous * ~trajectories.first[..., None]
    )


def view_of(trajectories: Trajectories, memory: Any = None, agent: AgentNetwork | None = None) -> RolloutView:
    agent = network() if agent is None else agent
    return seen_by(agent, trajectories, agent.core.initial(B) if memory is None else memory).view


@eqx.filter_jit
def seen_by(agent: AgentNetwork, trajectories: Trajectories, memory: Any) -> Any:
    return agent(trajectories, memory)


def cut(trajectories: Trajectories, start: int, stop: int) -> Trajectories:
    return jax.tree.map(lambda leaf: leaf[:, start:stop], trajectories)


def arrays(tree: Any) -> list[Array]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def assert_same(a: Any, b: Any, tolerance: float = 0.0) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def assert_same_outcome(method: Built, a: RepresentationState, b: RepresentationState) -> None:
    """Equal up to the order of sums, in all that does not depend on a bias before a standardisation.

    The gradient of such a bias is rounding error alone, and Adam makes full steps of it.
    """
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in ((a, b),):
        assert_same(one.memory, other.memory, 2e-3)
        assert_same(method.representation.report(one), method.representation.report(other), 2e-3)


def differs(a: Any, b: Any) -> bool:
    return any(not np.array_equal(one, other) for one, other in zip(arrays(a), arrays(b), strict=True))


# ----------------------------------------------------------------------------------- the record


def test_a_form_is_plain_data(method: Built) -> None:
    again = replace(method.form)
    assert isinstance(again, RepresentationConfig)
    assert again == method.form
    assert hash(again) == hash(method.form)


def test_the_record_begins_with_the_declared_state(method: Built) -> None:
    state = method.init(jax.random.key(0))
    assert isinstance(method.representation, Representation)
    assert isinstance(state, RepresentationState)
    assert (state.joint is not None) == (method.name in JOINT)
    assert all(leaf.shape[0] == B for leaf in arrays(state.memory))
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays(state))
    assert_same(state, method.init(jax.random.key(0)))
    if state.joint is not None or state.own is not None:
        assert differs((state.joint, state.own), tuple(method.init(jax.random.key(1)))[:2])


def test_a_users_class_is_found_by_its_path() -> None:
    found = find_representation(f"{__name__}:Hashing")
    assert found == Hashing()
    assert found.build().use == BonusUse(0.5)


# ------------------------------------------------------------------------------------ `observe`


def test_observing_gives_a_finite_bonus_for_every_step(method: Built) -> None:
    state = method.init(jax.random.key(0))
    for seed in range(2):
        state, bonus = method.observe(state, view_of(steps(seed)), jax.random.key(seed))
        assert bonus.shape == (B, S)
        assert bonus.dtype == jnp.float32
        assert np.all(np.isfinite(bonus))
        assert all(np.all(np.isfinite(leaf)) for leaf in arrays(state))
        assert np.any(bonus != 0.0) == (method.name != "vmpo")


def test_the_state_keeps_its_structure_shapes_and_types(method: Built) -> None:
    """Weak types too: it is carried through loops."""
    state = jax.eval_shape(method.init, jax.random.key(0))
    after, _ = jax.eval_shape(method.representation.observe, state, view_of(steps(0)), jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)
    weak = [[leaf.weak_type for leaf in jax.tree.leaves(tree)] for tree in (state, after)]
    assert weak[0] == weak[1]
    assert not any(weak[0])


def test_equal_keys_give_equal_results(method: Built) -> None:
    state, view = method.init(jax.random.key(0)), view_of(steps(0))
    once, again, other = (method.observe(state, view, jax.random.key(seed)) for seed in (3, 3, 4))
    assert_same(once, again)
    draws_streams = hasattr(method.form, "training")
    draws_tests = isinstance(getattr(method.form, "tests", None), int) and not method.form.decomposition.tied
    assert differs(once, other) == (draws_streams or draws_tests)  # nothing else is decided by the key


def test_in_a_scan_as_step_by_step(method: Built) -> None:
    views = [view_of(steps(seed)) for seed in range(3)]
    keys = jax.random.split(jax.random.key(5), 3)
    state, bonuses = method.init(jax.random.key(0)), []
    for view, key in zip(views, keys, strict=True):
        state, bonus = method.observe(state, view, key)
        bonuses.append(bonus)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *views)

    @jax.jit
    def scanned(state: Any, views: Any, keys: Any) -> Any:
        return jax.lax.scan(
            lambda state, given: method.representation.observe(state, *given), state, (views, keys)
        )

    after, together = scanned(method.init(jax.random.key(0)), stacked, keys)
    assert_same_outcome(method, after, state)
    np.testing.assert_allclose(together, jnp.stack(bonuses), rtol=2e-3, atol=2e-3)


@pytest.mark.slow
def test_seeds_side_by_side_as_one_by_one(method: Built) -> None:
    seeds = jax.random.split(jax.random.key(6), 2)
    views = [view_of(steps(seed)) for seed in range(2)]
    states = jax.vmap(method.init)(seeds)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *views)
    together = jax.jit(jax.vmap(method.representation.observe))(states, stacked, seeds)
    for place in range(2):
        alone, wanted = method.observe(method.init(seeds[place]), views[place], seeds[place])
        state, bonus = jax.tree.map(lambda leaf, i=place: leaf[i], together)
        assert_same_outcome(method, state, alone)
        np.testing.assert_allclose(bonus, wanted, rtol=2e-3, atol=2e-3)


def test_numbers_to_watch_are_scalars_and_a_spectrum(method: Built) -> None:
    state, _ = method.observe(method.init(jax.random.key(0)), view_of(steps(0)), jax.random.key(0))
    report = method.representation.report(state)
    for name, value in report.items():
        assert value.shape == ((method.form.decomposition.k,) if name == "spectrum" else ())
        assert np.all(np.isfinite(value))
    assert ("spectrum" in report) == (method.name in DECOMPOSED)


# ----------------------------------------------------------------------------- trained jointly


def auxiliary_gradients(method: Built, trajectories: Trajectories) -> tuple[Array, Any, Any]:
    """The loss and its gradients with respect to the joint networks and to the agent's."""
    joint, agent = method.init(jax.random.key(0)).joint, network()
    trained, rest = eqx.partition((joint, agent), eqx.is_inexact_array)

    @jax.jit
    def differentiate(trained: Any) -> Any:
        def loss(trained: Any) -> Any:
            joint, agent = eqx.combine(trained, rest)
            return method.representation.auxiliary(
                joint, view_of(trajectories, agent=agent), jax.random.key(1)
            )

        return jax.value_and_grad(loss, has_aux=True)(trained)

    (loss, seen), (of_joint, of_agent) = differentiate(trained)
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays(seen))
    return loss, of_joint, of_agent


def test_the_auxiliary_loss_moves_what_is_declared_and_nothing_else(method: Built) -> None:
    loss, of_joint, of_agent = auxiliary_gradients(method, steps(0))
    joint = method.name in JOINT
    assert loss.shape == ()
    assert np.isfinite(loss)
    assert all(np.all(np.isfinite(leaf)) for leaf in arrays((of_joint, of_agent)))
    for part in (of_agent.embedding, of_agent.core):
        assert any(np.any(leaf != 0.0) for leaf in arrays(part)) == joint
    assert any(np.any(leaf != 0.0) for leaf in arrays(of_joint)) == joint
    for head in (of_agent.policy, of_agent.value):
        assert not any(np.any(leaf != 0.0) for leaf in arrays(head))


def test_tracking_changes_statistics_alone(method: Built) -> None:
    state = method.init(jax.random.key(0))
    _, seen = method.representation.auxiliary(state.joint, view_of(steps(0)), jax.random.key(1))
    after = method.representation.track(state, seen)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert_same(after._replace(tracked=None), state._replace(tracked=None))


@pytest.mark.parametrize("name", often(JOINT))
def test_observing_trains_no_joint_form(name: str) -> None:
    method = built(name, FORMS[name])
    state = method.init(jax.random.key(0))
    after, _ = method.observe(state, view_of(steps(0)), jax.random.key(0))
    assert_same((after.joint, after.own), (state.joint, state.own))
    assert differs(after.tracked, state.tracked)


# ----------------------------------------------------------------------------------- the reward


def test_without_weight_a_bonus_never_changes_the_reward(method: Built) -> None:
    form = replace(method.form, lambda_b=0.0) if hasattr(method.form, "lambda_b") else method.form
    use = form.build().use
    assert use.lambda_b == 0.0
    trajectories = steps(0)
    _, bonus = method.observe(method.init(jax.random.key(0)), view_of(trajectories), jax.random.key(0))
    rng = np.random.default_rng(0)
    transitions = jnp.asarray(rng.normal(size=(B, S - 1)), jnp.float32)
    ends = jnp.asarray(rng.random((B, S - 1)) < 0.2)
    rollout = Rollout(
        trajectories,
        None,
        jnp.zeros((B, S - 1), jnp.int32),
        jnp.zeros((B, S - 1, A)),
        jnp.zeros((B, S, 1)),
        transitions,
        jnp.ones((B, S - 1)),
        ends,
        ~trajectories.first[:, 1:],
        None,
    )
    learner = init_learner(AgentConfig(), Categorical(A), network(), None)
    for two_values in (False, True):
        config = AgentConfig(two_values=two_values)
        _, with_bonus = combine_rewards(config, learner, rollout, bonus, use)
        _, without = combine_rewards(config, learner, rollout, jnp.zeros_like(bonus), use)
        totals = [streams.rewards @ streams.weights for streams in (with_bonus, without)]
        np.testing.assert_array_equal(totals[0], totals[1])
        assert np.any(totals[0] != 0.0)


def test_the_presets_use_the_bonus_as_the_paper_does() -> None:
    """V-MPO, graph drawing and De-Rex as a representation without one; RND and De-Rex with one."""
    weights = {m: {form.build().use.lambda_b > 0 for form in forms.values()} for m, forms in METHODS.items()}
    assert weights == {
        "vmpo": {False},
        "laplacian": {False},
        "rnd": {True},
        "derex-rep": {False},
        "derex": {True},
    }


# -------------------------------------------------------------------------- episodes and time


def learnt_from(name: str, trajectories: Trajectories, memory: Any = None) -> Any:
    """All that a decomposition takes from an unroll: statistics, networks, the loss and its gradients."""
    method = built(name, FORMS[name])
    if name in JOINT:
        state, view = method.init(jax.random.key(0)), view_of(trajectories, memory)
        return auxiliary_of(method)(state.joint, view, jax.random.key(2))
    state, _ = method.observe(
        method.init(jax.random.key(0)), view_of(trajectories, memory), jax.random.key(2)
    )
    return state.own, state.tracked


@cache
def auxiliary_of(method: Built) -> Any:
    """The loss with what it saw, and its gradient with respect to the joint networks."""
    return jax.jit(jax.value_and_grad(method.representation.auxiliary, has_aux=True))


ALONE_LATE = [0, 6, 7, 8]  # the last three steps are episodes of one step each: they are in no pair
ALONE_EARLY = [0, 1, 2, 3]


@pytest.mark.parametrize("name", often(DECOMPOSED))
@pytest.mark.parametrize(("first", "changed"), [(ALONE_LATE, range(6, 9)), (ALONE_EARLY, range(3))])
def test_no_pair_straddles_an_episode_boundary(name: str, first: list[int], changed: range) -> None:
    """Whatever is on the other side, what is learnt is the same to the last bit."""
    trajectories, other = steps(0, first), steps(1, first)
    changes = np.isin(np.arange(S), changed)
    wanted = learnt_from(name, trajectories)
    assert_same(learnt_from(name, mixed(trajectories, other, changes)), wanted)
    inside = np.isin(np.arange(S), [4])
    assert differs(learnt_from(name, mixed(trajectories, other, inside)), wanted)


@pytest.mark.parametrize(
    "name", often(name for name in DECOMPOSED if FORMS[name].__dict__.get("tests") == LONGEST)
)
def test_a_history_too_close_to_its_end_counts_nowhere(name: str) -> None:
    """An episode of as many steps as the longest test has no history that every test fits."""
    if FORMS[name].decomposition.tied:
        pytest.skip("paired with the next history, not with tests")
    trajectories, other = steps(0, [0, 6]), steps(1, [0, 6])
    changes = np.arange(S) >= 6
    assert_same(learnt_from(name, mixed(trajectories, other, changes)), learnt_from(name, trajectories))


@pytest.mark.parametrize("name", often(JOINT))
def test_the_loss_is_that_of_pairs_collected_one_by_one(name: str) -> None:
    """Every history with its future, step by step in plain loops, on unrolls with episodes of all lengths."""
    form: BeliefConfig = FORMS[name]
    method = built(name, form)
    joint = method.init(jax.random.key(0)).joint
    trajectories, key = steps(3), jax.random.key(4)
    view = view_of(trajectories)
    future = form.future()
    phase = np.asarray(future.draw(key, B, S))
    tests = np.asarray(view.embedded.history if form.test_actions else view.embedded.test)
    first = np.asarray(trajectories.first)
    f_of, g_of = (eqx.filter_jit(head) for head in (joint.f, joint.f if joint.g is None else joint.g))

    def end_of_episode(b: int, t: int) -> int:
        while t + 1 < S and not first[b, t + 1]:
            t += 1
        return t

    def end_of_test(b: int, t: int, end: int) -> int:
        if form.tests == "to-end":
            return end
        return next(e for e in range(t + 1, t + LONGEST + 1) if (e - phase[b]) % LONGEST == 0)

    @jax.jit
    def read_on(x: Array, memory: Any) -> Any:
        return joint.reverse(x[None, None], jnp.ones((1, 1)), memory)

    def read(b: int, start: int, stop: int) -> Array:
        memory, out = joint.reverse.initial(1), jnp.zeros((1, 1, W))
        for t in range(stop, start - 1, -1):
            out, memory = read_on(tests[b, t], memory)
        return out[0, 0]

    halves: list[list[tuple[Array, Array]]] = [[], []]
    for b in range(B):
        for t in range(S):
            end = end_of_episode(b, t)
            if end - t < future.needs:
                continue
            if form.decomposition.tied:
                g = g_of(view.beliefs[b, t + 1])
            else:
                stop = end_of_test(b, t, end)
                assert stop <= end
                g = g_of(read(b, t + 1, stop))
            halves[b // (B // 2)].append((f_of(view.beliefs[b, t]), g))
    assert all(len(pairs) >= 2 for pairs in halves)
    pairs = [Half(*map(jnp.stack, zip(*half, strict=True))) for half in halves]
    wanted = form.decomposition.loss(*pairs)
    (loss, _), _ = auxiliary_of(method)(joint, view, key)
    np.testing.assert_allclose(loss, form.weight * wanted.loss, rtol=1e-3, atol=1e-6)
    after, _ = method.observe(method.init(jax.random.key(0)), view, key)
    f, g = (np.concatenate(outputs) for outputs in zip(*((half.f, half.g) for half in pairs), strict=True))
    f, g = ((outputs - outputs.mean(axis=0)) / outputs.std(axis=0) for outputs in (f, g))
    np.testing.assert_allclose(after.tracked.running.total.sigma, f.T @ g / len(f), atol=2e-3)
    np.testing.assert_allclose(after.tracked.correlations.f, f.T @ f / len(f), atol=2e-3)


def test_the_bonus_of_a_step_knows_nothing_of_later_ones(still: tuple[Built, RepresentationState]) -> None:
    method, state = still
    trajectories, other = steps(0), steps(1)
    _, bonus = method.observe(state, view_of(trajectories), jax.random.key(7))
    for t in (2, 5):
        later = mixed(trajectories, other, np.arange(S) > t)
        _, changed = method.observe(state, view_of(later), jax.random.key(7))
        np.testing.assert_allclose(changed[:, : t + 1], bonus[:, : t + 1], rtol=1e-5)
        if method.name != "vmpo":
            assert np.all(np.any(np.asarray(changed != bonus)[:, t + 1 :], axis=1))


def test_the_bonus_of_an_episode_knows_nothing_of_the_one_before(
    still: tuple[Built, RepresentationState],
) -> None:
    method, state = still
    trajectories, other = steps(0, [0, 4]), steps(1, [0, 4])
    forgotten = mixed(trajectories, other, np.arange(S) < 4)
    bonuses = [
        method.observe(state, view_of(each), jax.random.key(7))[1] for each in (trajectories, forgotten)
    ]
    np.testing.assert_allclose(bonuses[0][:, 4:], bonuses[1][:, 4:], rtol=1e-5)


@pytest.mark.parametrize("middle", [3, 5])
def test_an_unroll_in_two_pieces_is_the_unroll_in_one(
    still: tuple[Built, RepresentationState], middle: int
) -> None:
    """Step `middle` is the last of the first piece and the first of the second; memory goes from one to the other."""
    method, state = still
    trajectories, agent = steps(0), network()
    assert np.any(trajectories.first[:, middle])
    assert not np.all(trajectories.first[:, middle])
    _, whole = method.observe(state, view_of(trajectories), jax.random.key(8))
    memory = seen_by(agent, cut(trajectories, 0, middle), agent.core.initial(B)).memory
    between, early = method.observe(state, view_of(cut(trajectories, 0, middle + 1)), jax.random.key(9))
    after, late = method.observe(between, view_of(cut(trajectories, middle, S), memory), jax.random.key(10))
    np.testing.assert_allclose(early, whole[:, : middle + 1], rtol=1e-4)
    np.testing.assert_allclose(late, whole[:, middle:], rtol=1e-4)
    end, _ = method.observe(state, view_of(trajectories), jax.random.key(8))
    assert_same(after.memory, end.memory, 1e-5)


def test_histories_remember_across_unrolls() -> None:
    """The control to the test before: with another history behind it, the same piece has another bonus."""
    moving = built("histories", small(HistoriesConfig()))
    state, _ = moving.observe(moving.init(jax.random.key(1)), view_of(steps(10)), jax.random.key(2))
    method, bonuses = built("histories", frozen(moving.form)), []
    for seed in (11, 12):
        between, _ = method.observe(state, view_of(steps(seed, [0])), jax.random.key(0))
        bonuses.append(method.observe(between, view_of(steps(13, [4])), jax.random.key(0))[1])
    assert np.all(bonuses[0][:, :4] != bonuses[1][:, :4])
    np.testing.assert_array_equal(bonuses[0][:, 4:], bonuses[1][:, 4:])
