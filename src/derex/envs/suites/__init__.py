"""Environments of other packages: one module for each, imported when it is first asked for."""
