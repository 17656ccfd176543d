"""Adapters for environments of other packages: one module for each, imported on first use."""
