"""Your own gymnasium environment: register it, and put its module before its id. With this folder on PYTHONPATH:

    derex train --env gymnasium:own_gymnasium:Hallway-v0 --method derex --steps 1e5 --out runs/hallway

Observations may be a Box, Discrete, MultiDiscrete, MultiBinary, Text, or a Dict or Tuple of them; text is read as
words. Run the file itself to walk through one episode as an agent's worker does:

    python examples/own_gymnasium.py
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text


class Hallway(gymnasium.Env):
    """An instruction names the end of a hallway to go to, and only that end is rewarded."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as gymnasium has it)
    observation_space = Dict({"place": Box(-1.0, 1.0, (1,)), "told": Text(20)})
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = 0, int(self.np_random.choice([-5, 5]))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += 2 * int(action) - 1
        return self._seen(), float(self.place == self.goal), abs(self.place) == 5, False, {}

    def render(self) -> Any:
        picture = np.full((60, 220, 3), 255, np.uint8)
        picture[20:40, 20 * self.place + 100 :][:, :20] = (200, 0, 0)
        return picture

    def _seen(self) -> dict[str, Any]:
        told = "go left" if self.goal < 0 else "go right"
        return {"place": np.asarray([self.place / 5], np.float32), "told": told}


if "Hallway-v0" not in gymnasium.registry:
    # episodes of more than 50 steps are cut, and count as truncated
    gymnasium.register("Hallway-v0", "own_gymnasium:Hallway", max_episode_steps=50)


def main(seed: int = 0) -> float:
    """Walks to the right; the return."""
    from derex.envs.registry import make_host

    env = make_host("gymnasium:own_gymnasium:Hallway-v0")
    print("observation:", env.begin(seed))
    total, over = 0.0, False
    while not over:
        step = env.act(np.asarray(1))
        total, over = total + step.reward, step.terminated or step.truncated
    print("return:", total)
    env.close()
    return total


if __name__ == "__main__":
    main()
