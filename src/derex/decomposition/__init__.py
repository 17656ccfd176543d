"""The decomposition of experience: the paper's core, as functions on arrays."""
