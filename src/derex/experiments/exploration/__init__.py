"""The methods on exploration environments: how soon each finds the reward, over seeds."""
