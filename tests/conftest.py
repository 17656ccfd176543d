"""Shapes and types of every annotated function of derex are checked while the tests run."""

from jaxtyping import install_import_hook

install_import_hook("derex", "beartype.beartype")
