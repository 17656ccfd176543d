"""The persistent compilation cache: programs that were compiled once are loaded by later processes.

JAX keys each entry by the program, the compiler's options and version, and the device, so a cached program is the
program that would have been compiled. This module only chooses the folder and bounds its size. It imports JAX only
where JAX is imported already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SWITCH = "DEREX_COMPILATION_CACHE"
"""environment variable: a folder, or off"""
JAX_FOLDER = "JAX_COMPILATION_CACHE_DIR"
MAX_BYTES = 2 << 30
OPTIONS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0.5,
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",  # whole programs are cached, which holds tuned kernels too
}


def find_cache_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder that derex chooses for compiled programs; None where the user has chosen, or wants none.

    Args:
        environment: environment variables. `JAX_COMPILATION_CACHE_DIR` is left to JAX; `DEREX_COMPILATION_CACHE` is a
            folder, or off; otherwise it is derex/jax in the user's cache folder.
    """
    if JAX_FOLDER in environment:
        return None
    choice = environment.get(SWITCH, "")
    if choice.lower() in ("off", "0", "no", "false"):
        return None
    if choice:
        return Path(choice).expanduser().absolute()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(caches), "derex", "jax")
    return folder if folder.is_absolute() else None  # as XDG has it; "~" stays where there is no home


def enable_compilation_cache() -> Path | None:
    """Lets JAX keep compiled programs in the user's cache folder, for this process and those that it starts.

    Returns:
        The folder; None where derex does not set one, also without a word where it cannot be written.
    """
    folder = find_cache_folder(os.environ)
    jax = sys.modules.get("jax")
    if folder is None or (jax is not None and jax.config.jax_compilation_cache_dir):
        return None
    with suppress(OSError):
        folder.mkdir(
            mode=0o700, parents=True, exist_ok=True
        )  # programs from it are run: only the user may write
    if not os.access(folder, os.W_OK | os.X_OK):
        return None
    remove_oldest(folder, MAX_BYTES)
    for name, value in {JAX_FOLDER: str(folder), **OPTIONS}.items():
        if name not in os.environ:
            os.environ[name] = str(value)
            if jax is not None:  # it has read its environment variables
                jax.config.update(name.lower(), value)
    return folder


def remove_oldest(folder: Path, most: int) -> None:
    """Removes the entries that were not used for longest until `most` bytes are left.

    JAX's own bound (`jax_compilation_cache_max_size`) needs another package and locks the folder at each access.
    """
    entries = []
    for path in folder.glob("*-cache"):
        with suppress(OSError):  # another process removes some too
            found = path.stat()
            entries.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= most:
            return
        with suppress(OSError):
            path.unlink()
        total -= size
