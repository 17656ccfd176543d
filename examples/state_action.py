"""P over (state, action) rows: the decomposition of what an action does, from ids s·4 + a to next states.

Any pair of inputs works, so nothing extra is needed (Section 5 of the paper mentions it). Run:

    python examples/state_action.py
"""

import jax
import numpy as np

from derex import DeRex, exact
from derex.envs import FOUR_ROOMS, GridWorld

K = 8


def main(n: int = 100_000, steps: int = 3000) -> dict[str, float]:
    """Fit on random walks in four rooms and compare with the exact decomposition of the same dynamics."""
    world = GridWorld(
        FOUR_ROOMS, slip=0.5
    )  # without slips the next state is a function of the pair, and all σ are 1
    walk = world.sample_transitions(jax.random.key(0), n, horizon=100)
    pairs = np.asarray(walk.state) * world.n_actions + np.asarray(walk.action)
    model = DeRex(K, objective="nested", encoder="tabular", steps=steps, random_state=0)
    model.fit(pairs, np.asarray(walk.next_state))

    d = np.bincount(pairs, minlength=world.n_states * world.n_actions) / n
    dynamics = exact.state_action_matrix(world.transition_tensor())
    truth = exact.decompose(exact.joint_matrix(d, dynamics), K)
    bonus, exact_bonus = model.bonus(np.arange(len(d))), truth.bonus()
    visited = d > 0
    agreement = float(np.corrcoef(bonus[visited], exact_bonus[visited])[0, 1])

    print(
        f"{world.n_states} states x {world.n_actions} actions, {n} transitions, {visited.sum()} pairs visited\n"
    )
    print("component   learnt σ   exact σ")
    for i, (learnt, wanted) in enumerate(zip(model.singular_values_, truth.singular_values, strict=True)):
        print(f"{i + 1:9d}   {learnt:8.4f}   {wanted:7.4f}")
    print(f"\ncorrelation of the learnt bonus with the exact one over visited pairs: {agreement:.3f}")
    largest_error = float(np.abs(model.singular_values_ - truth.singular_values).max())
    return {"largest_error": largest_error, "agreement": agreement}


if __name__ == "__main__":
    main()
