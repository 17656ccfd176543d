"""DeepMind Lab adapter: `dmlab:rooms_watermaze` with 15 actions, `dmlab:rooms_watermaze@9` with 9; DMLab-30 scores.

`deepmind_lab` is not on package indexes and must be built from source. This adapter was tested against a stand-in for
the published interface, not against the real simulator.

Observations are {"image": 72 x 96 x 3, "instruction": words}. Each action is repeated for 4 frames. Levels have their
own clocks, and the interface does not distinguish a timeout from a termination, so every end counts as a termination.

Environment variables: `DEREX_DMLAB_CACHE`, a folder for compiled levels (default `derex/dmlab` in the user's cache);
`DEREX_DMLAB_DATASET`, the folder of images that some psychlab levels need (`datasetPath`).
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import uuid
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Shaped, UInt8

from derex.envs.interface import HostStep
from derex.envs.suites.common import ClosingOnce, NotInstalled, check_name, choice, encode, split_number
from derex.types import Discrete, EnvironmentSpec, Words

FOLDER = "contributed/dmlab30"


class Scores(NamedTuple):
    """Mean episode returns of a random policy and of humans on one level."""

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
"""levels with separate `_train` and `_test` variants"""


def training_levels() -> list[str]:
    """Returns the file names of the 30 training levels."""
    return [f"{level}_train" if level in SPLIT else level for level in LEVELS]


def held_out_levels() -> list[str]:
    """Returns the file names of the 30 test levels."""
    return [f"{level}_test" if level in SPLIT else level for level in LEVELS]


def plain(level: str) -> str:
    """Returns the level's key in `LEVELS`: without suite, number of actions, `_train` and `_test`."""
    name = level.rpartition(":")[2].partition("@")[0].rpartition("/")[2]
    stem = name.removesuffix("_train").removesuffix("_test")
    return stem if stem in SPLIT else name


def human_normalised(level: str, score: float) -> float:
    """Returns 100 (z - random) / (human - random): 0 for a random policy, 100 for humans."""
    name = plain(level)
    if name not in LEVELS:
        raise ValueError(f"level: {level!r} is none of DMLab-30; expected one of {', '.join(LEVELS)}.")
    scores = LEVELS[name]
    return 100.0 * (float(score) - scores.random) / (scores.human - scores.random)


HEIGHT, WIDTH = 72, 96
REPEATS = 4
HORIZON = 9_000
"""ten minutes at 60 frames per second; the levels' own clocks are shorter"""
OBSERVATION = {"image": jax.ShapeDtypeStruct((HEIGHT, WIDTH, 3), np.uint8), "instruction": Words()}
_SEEDS = 2**31 - 1

ACTION_NAMES = (
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME",
    "LOOK_DOWN_UP_PIXELS_PER_FRAME",
    "STRAFE_LEFT_RIGHT",
    "MOVE_BACK_FORWARD",
    "FIRE",
    "JUMP",
    "CROUCH",
)
"""names of the action components, in the order that `Lab.step` takes them"""


def _action(look: int = 0, tilt: int = 0, strafe: int = 0, move: int = 0, fire: int = 0) -> tuple[int, ...]:
    """Returns an action in the order of `ACTION_NAMES`; jump and crouch are not used."""
    return (look, tilt, strafe, move, fire, 0, 0)


def _actions(looks: tuple[int, ...], tilts: tuple[int, ...] = ()) -> tuple[tuple[int, ...], ...]:
    return (
        *(_action(move=1), _action(move=-1), _action(strafe=-1), _action(strafe=1)),
        *(_action(look=look) for look in looks),
        *(_action(tilt=tilt) for tilt in tilts),
        *(_action(look=look, move=1) for look in looks),
        _action(fire=1),
    )


ACTIONS = {9: _actions((-20, 20)), 15: _actions((-10, 10, -60, 60), (10, -10))}


@dataclass(frozen=True)
class LevelCache:
    """Cache of compiled levels on disk; compiling a level takes seconds.

    If the disk cannot be used, levels are compiled again and episodes still run.
    """

    folder: Path

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copies the cached level to `pk3_path`; returns False if it is not cached or cannot be copied."""
        try:
            shutil.copyfile(self._place(key), pk3_path)
        except OSError:
            Path(pk3_path).unlink(missing_ok=True)  # leave no partial copy
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Caches the level at `pk3_path` atomically; warns if the disk cannot be written."""
        part = self.folder / f"{uuid.uuid4().hex}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pk3_path, part)
            os.replace(part, self._place(key))
        except OSError as error:
            warnings.warn(
                f"compiled levels of DeepMind Lab are not kept in {self.folder}: {error.strerror or error}. Every "
                "episode may compile its level anew; DEREX_DMLAB_CACHE names another folder.",
                RuntimeWarning,
                stacklevel=2,
            )
        finally:
            with suppress(OSError):
                part.unlink()

    def _place(self, key: str) -> Path:
        # keys may contain characters that file names may not
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.pk3"


class DmLab(ClosingOnce):
    """One DeepMind Lab level."""

    def __init__(self, lab: Any, name: str, n_actions: int):
        """Wraps a `deepmind_lab.Lab` that observes RGB_INTERLEAVED and INSTR; with 9 or 15 actions."""
        self._env = lab
        # actions of another version, or in another order, would turn where ours walk
        listed = getattr(lab, "action_spec", None)
        found = ACTION_NAMES if listed is None else tuple(str(each["name"]) for each in listed())
        if found != ACTION_NAMES:
            raise ValueError(
                f"name: an action of '{name}' is {', '.join(found)} in the deepmind_lab that is installed; expected "
                f"{', '.join(ACTION_NAMES)}, in this order. Build a version with these actions."
            )
        self._actions = [np.asarray(action, np.intc) for action in ACTIONS[n_actions]]
        self.spec = EnvironmentSpec(name, OBSERVATION, Discrete(n_actions), HORIZON)

    def begin(self, seed: int) -> Any:
        """Starts a new episode with this seed."""
        self._env.reset(seed=seed % _SEEDS)
        self._last = self._look()
        return self._last

    def act(self, action: Shaped[Any, "*action"]) -> HostStep:
        """Repeats the action for four frames; after the end, when there is no new frame, returns the last one."""
        chosen = self._actions[choice(action, len(self._actions))]
        reward = float(self._env.step(chosen, num_steps=REPEATS))
        ended = not self._env.is_running()
        if not ended:
            self._last = self._look()
        return HostStep(self._last, reward, ended, False)

    def picture(self) -> UInt8[np.ndarray, "H W 3"]:
        """Returns the agent's current view."""
        return self._last["image"]

    def _look(self) -> dict[str, np.ndarray]:
        seen = self._env.observations()
        # copy: the lab writes the next frame into the same array
        image = np.array(seen["RGB_INTERLEAVED"], np.uint8)
        return {"image": image, "instruction": encode(str(seen["INSTR"]), OBSERVATION["instruction"])}


def make(name: str) -> DmLab:
    """Makes the level with this name; a split level without a suffix means its `_train` variant."""
    base, n_actions = split_number("dmlab", name, 15, ACTIONS)
    check_name("dmlab", base, [*LEVELS, *names()])
    level = f"{base}_train" if base in SPLIT else base
    try:
        deepmind_lab: Any = importlib.import_module("deepmind_lab")
    except ModuleNotFoundError as error:
        raise NotInstalled(
            "deepmind_lab is not installed. It is not on package indexes: build it from its source, "
            "https://github.com/google-deepmind/lab, and install the wheel."
        ) from error
    config = {"width": str(WIDTH), "height": str(HEIGHT)}  # the interface takes strings only
    if level.endswith("_test"):
        config["allowHoldOutLevels"] = "true"
    dataset = os.environ.get("DEREX_DMLAB_DATASET", "")
    if level.startswith("psychlab") and dataset:
        config["datasetPath"] = dataset
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "derex" / "dmlab"
    lab = deepmind_lab.Lab(
        f"{FOLDER}/{level}",
        ["RGB_INTERLEAVED", "INSTR"],
        config=config,
        renderer="software",
        level_cache=LevelCache(Path(os.environ.get("DEREX_DMLAB_CACHE") or cache)),
    )
    try:
        return DmLab(lab, f"dmlab:{name}", n_actions)
    except BaseException:
        lab.close()
        raise


def names() -> list[str]:
    """Returns the training and test levels of DMLab-30."""
    return [*training_levels(), *(level for level in held_out_levels() if level not in LEVELS)]
