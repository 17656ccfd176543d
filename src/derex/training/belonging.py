"""Whether a checkpoint belongs to the config.json of its folder: one may have been edited, the other copied there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from derex.training.config import TrainConfig, to_plain
from derex.training.folder import SAVING, WORKERS

MAY_CHANGE = ("steps", "log_every", "loggers", *SAVING, *WORKERS)


def foreign_options(saved: dict[str, Any], stated: dict[str, Any]) -> str:
    """Options of a checkpoint that are not those of config.json, in words; empty where it belongs to it.

    Args:
        saved: options in the checkpoint's manifest.
        stated: those in config.json. Either may be of an older derex, without fields that were added since.
    """
    saved, stated = completed(saved), completed(stated)
    return that_may_not_change(differences(_merged(stated, saved), _merged(saved, stated)))


def completed(options: dict[str, Any]) -> dict[str, Any]:
    """The options with this version's defaults for those they lack: an older derex trained as these defaults do.

    Those of somebody's own method stay as they are, since to know its defaults would be to import it; what only one
    side has of them is not compared.
    """
    method, form = str(options.get("method", "")), str(options.get("form", ""))
    defaults = to_plain(TrainConfig(str(options.get("env", "")), Path()))
    defaults["representation"] = _form_defaults(method, form)
    return _merged(
        {name: value for name, value in defaults.items() if name not in ("out", "overwrite")}, options
    )


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options with other values, by dotted name: [before, now], as JSON has them."""
    found = {}
    for name in sorted(before.keys() | now.keys()):
        old, new = (json.loads(json.dumps(options.get(name))) for options in (before, now))
        if isinstance(old, dict) and isinstance(new, dict):
            found |= differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found[f"{prefix}{name}"] = [old, new]
    return found


def that_may_not_change(changed: dict[str, Any]) -> str:
    """In words."""
    fixed = {name: values for name, values in changed.items() if name.split(".")[0] not in MAY_CHANGE}
    return "; ".join(f"{name} was {old}, now {new}" for name, (old, new) in fixed.items())


def _form_defaults(method: str, form: str) -> Any:
    from derex.representations.methods import METHODS

    return to_plain(METHODS.get(method, {}).get(form))


def _merged(defaults: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    parts = {
        name: _merged(defaults[name], value)
        for name, value in options.items()
        if isinstance(value, dict) and isinstance(defaults.get(name), dict)
    }
    return defaults | options | parts
