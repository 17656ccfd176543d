"""Figures 2 and 3: the learnt decomposition against the exact one."""
