"""A study's folder: claimed once, written at the end, never half."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from derex._version import __version__
from derex.report.files import write_atomically

METRICS = "metrics.json"
UNFINISHED = "cases/study.json"  # whose finished parts are kept, before there are metrics
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")


def claim_folder(folder: Path, study: str) -> None:
    """Create the folder, or take it over from an earlier run of the same study; refuse anybody else's."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--out: {folder} is a file; give a folder.")
    claims = [folder / name for name in (METRICS, UNFINISHED) if (folder / name).exists()]
    if claims:
        owner = _owner(claims[0])
        if owner != study:
            raise FileExistsError(
                f"--out: {folder} holds {'another study' if owner is None else repr(owner)}; choose another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"--out: {folder} is not empty and not of this study; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)


def write_metrics(folder: Path, study: str, config: Any, body: dict[str, Any]) -> Path:
    """metrics.json with what is needed to run it again: resolved config and versions."""
    content = {
        "study": study,
        "config": {key: _plain(value) for key, value in asdict(config).items()},
        "versions": {"derex": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "device": _device(),
        **body,
    }
    text = json.dumps(content, indent=1, allow_nan=False, default=_plain) + "\n"
    return write_atomically(folder / METRICS, text.encode())


def _owner(metrics: Path) -> str | None:
    try:
        return json.loads(metrics.read_text()).get("study")
    except (ValueError, AttributeError):
        return None


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _device() -> str:
    import jax

    device = jax.local_devices()[0]
    return f"{device.platform}: {device.device_kind}"
