"""What an agent sees, from its options to its exported card."""

import json

import jax
import numpy as np
import pytest

from derex.agents.config import AgentConfig
from derex.agents.network import describe_parts
from derex.envs.wrappers import PreviousReward
from derex.training.export import observation_from_plain, observation_to_plain
from derex.training.learner import make_environment
from derex.types import Amount, Symbols, Words


@pytest.mark.parametrize("shown", [False, True])
def test_the_previous_reward_is_shown_where_it_is_asked_for(shown: bool) -> None:
    environment = make_environment("catch", AgentConfig(previous_reward=shown))
    assert isinstance(environment, PreviousReward) == shown
    assert len(describe_parts(environment.spec.observation)) == 1 + shown


def test_a_card_keeps_what_each_part_is() -> None:
    """By way of JSON, so that the network is built again as it was."""
    observation = {
        "grid": Symbols((5, 5, 2), (3, 4)),
        "text": Words(7, 50),
        "reward": Amount(),
        "more": (Symbols((), (9,), np.int32), jax.ShapeDtypeStruct((8, 8, 3), np.uint8)),
    }
    again = observation_from_plain(json.loads(json.dumps(observation_to_plain(observation))))
    assert describe_parts(again) == describe_parts(observation)
    assert again["text"] == observation["text"]
    assert jax.tree.map(lambda part: np.dtype(part.dtype), again) == jax.tree.map(
        lambda part: np.dtype(part.dtype), observation
    )
