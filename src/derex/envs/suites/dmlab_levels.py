"""DMLab-30: its levels, how a random policy and people score on them, and scores relative to these."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

FOLDER = "contributed/dmlab30"


class Scores(NamedTuple):
    """Mean returns of an episode."""

    random: float
    human: float


LEVELS: dict[str, Scores] = {
    "rooms_collect_good_objects": Scores(0.073, 10.0),
    "rooms_exploit_deferred_effects": Scores(8.501, 85.65),
    "rooms_select_nonmatching_object": Scores(0.312, 65.9),
    "rooms_watermaze": Scores(4.065, 54.0),
    "rooms_keys_doors_puzzle": Scores(4.135, 53.8),
    "language_select_described_object": Scores(-0.07, 389.5),
    "language_select_located_object": Scores(1.929, 280.7),
    "language_execute_random_task": Scores(-5.913, 254.05),
    "language_answer_quantitative_question": Scores(-0.33, 184.5),
    "lasertag_one_opponent_small": Scores(-0.224, 12.65),
    "lasertag_three_opponents_small": Scores(-0.214, 18.55),
    "lasertag_one_opponent_large": Scores(-0.083, 18.6),
    "lasertag_three_opponents_large": Scores(-0.102, 31.5),
    "natlab_fixed_large_map": Scores(2.173, 36.9),
    "natlab_varying_map_regrowth": Scores(2.989, 24.45),
    "natlab_varying_map_randomized": Scores(7.346, 42.35),
    "skymaze_irreversible_path_hard": Scores(0.1, 100.0),
    "skymaze_irreversible_path_varied": Scores(14.4, 100.0),
    "psychlab_arbitrary_visuomotor_mapping": Scores(0.163, 58.75),
    "psychlab_continuous_recognition": Scores(0.224, 58.3),
    "psychlab_sequential_comparison": Scores(0.129, 39.5),
    "psychlab_visual_search": Scores(0.085, 78.5),
    "explore_object_locations_small": Scores(3.575, 74.45),
    "explore_object_locations_large": Scores(4.673, 65.65),
    "explore_obstructed_goals_small": Scores(6.76, 206.0),
    "explore_obstructed_goals_large": Scores(2.61, 119.5),
    "explore_goal_locations_small": Scores(7.66, 267.5),
    "explore_goal_locations_large": Scores(3.14, 194.5),
    "explore_object_rewards_few": Scores(2.073, 77.7),
    "explore_object_rewards_many": Scores(2.438, 106.7),
}
SPLIT = ("rooms_collect_good_objects", "rooms_exploit_deferred_effects")
"""levels of which there is one to train on and one to be tested on"""


def training_levels() -> list[str]:
    """The 30 levels to train on, by the names of their files."""
    return [f"{level}_train" if level in SPLIT else level for level in LEVELS]


def held_out_levels() -> list[str]:
    """The 30 levels to be tested on, by the names of their files."""
    return [f"{level}_test" if level in SPLIT else level for level in LEVELS]


def plain(level: str) -> str:
    """The name under which a level is scored: without suite, actions, `_train` and `_test`."""
    name = level.rpartition(":")[2].partition("@")[0].rpartition("/")[2]
    stem = name.removesuffix("_train").removesuffix("_test")
    return stem if stem in SPLIT else name


def human_normalised(level: str, score: float) -> float:
    """100 (z - random) / (human - random): 0 for a random policy, 100 for people."""
    name = plain(level)
    if name not in LEVELS:
        raise ValueError(f"level: {level!r} is none of DMLab-30; expected one of {', '.join(LEVELS)}.")
    scores = LEVELS[name]
    return 100.0 * (float(score) - scores.random) / (scores.human - scores.random)


def aggregate(returns: Mapping[str, float], *, cap: float | None = 100.0) -> float:
    """The mean human-normalised score of all 30 levels, each counted up to `cap`.

    Args:
        returns: mean return for each level; a level may stand under its name for training or for the test, not both.
        cap: None counts all; the suite's usual figure is capped at 100.
    """
    scores = {plain(level): human_normalised(level, value) for level, value in returns.items()}
    missing = [level for level in LEVELS if level not in scores]
    if missing or len(scores) != len(returns):
        raise ValueError(
            f"returns: expected one for each of the 30 levels, got {len(returns)} for {len(scores)} levels; missing: "
            f"{', '.join(missing) or 'none'}. Average what is there yourself, and say so."
        )
    values = np.asarray(list(scores.values()))
    return float(np.mean(values if cap is None else np.minimum(values, cap)))
