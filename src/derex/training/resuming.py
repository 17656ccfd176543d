"""Whether a run begins, goes on from its checkpoint, or is finished; looked at before anything is touched."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from derex.training.belonging import differences, foreign_options, that_may_not_change
from derex.training.checkpoints import Found, find_checkpoint, path_of, steps_saved
from derex.training.config import TrainConfig
from derex.training.folder import (
    CHECKPOINTS,
    METRICS,
    add_event,
    add_resumed,
    check_folder,
    check_metrics,
    claim_folder,
    cut_metrics,
    holds_run,
    load_config,
    plain_options,
    remove_leftovers,
    write_config,
)
from derex.training.saving import is_ours


class OtherRunError(FileExistsError):
    """The folder holds a run with other options."""


class Plan(NamedTuple):
    """What is to be done in a folder."""

    config: TrainConfig
    """resolved; what was left open is as the run had it"""
    found: Found | None
    """the checkpoint to go on from; None: begin"""
    changed: dict[str, Any]
    """options that are not as they were: [before, now]"""
    missing: str = ""
    """lines of metrics that should be there, in words"""

    @property
    def finished(self) -> bool:
        """Whether all that is asked for has been done."""
        return self.done >= self.config.iterations

    @property
    def done(self) -> int:
        """Iterations so far."""
        return 0 if self.found is None else self.found.manifest["progress"]["iterations"]


def plan_run(config: TrainConfig) -> Plan:
    """What `config` comes to in its folder; only reads.

    Raises:
        OtherRunError: it holds a run with other options.
        FileExistsError: it is somebody else's, or its run has no checkpoint to go on from.
        CheckpointError: no checkpoint of the run is good.
    """
    folder = config.out
    check_folder(folder)
    if config.overwrite or not holds_run(folder):
        return Plan(config.resolved(), None, {})
    earlier = load_config(folder, config.method, config.env)
    if config.log_every is None:
        config = replace(config, log_every=earlier.log_every)
    config = config.resolved()
    changed = differences(plain_options(earlier), plain_options(config))
    _refuse_other_options(folder, changed)
    if steps_saved(folder):
        found = find_checkpoint(folder)
        _refuse_edited(folder, found, earlier)
        plan = Plan(config, found, changed)
        return plan if plan.finished else plan._replace(missing=_missing_lines(plan))
    metrics = folder / METRICS
    if metrics.exists() and metrics.stat().st_size:
        raise FileExistsError(
            f"--out: {folder} holds an earlier run without a checkpoint to go on from; choose another folder, or begin "
            "again with --overwrite."
        )
    return Plan(config, None, changed)  # it was stopped before its first step


def carry_out(plan: Plan) -> None:
    """Makes the folder what the plan wants it to be: new, or as it was at the checkpoint."""
    config, folder = plan.config, plan.config.out
    if plan.found is None:
        claim_folder(folder, overwrite=True)  # the plan has been refused where that must not be
        write_config(folder, config)
        return
    step = int(plan.found.path.name)
    for problem in plan.found.problems:
        add_event(folder, "damaged checkpoint", problem=problem, used=step)
    _set_aside_damaged(folder, step)
    remove_leftovers(folder)
    if plan.missing:
        add_event(folder, "missing metrics", problem=plan.missing)
    cut_metrics(folder, _last_line(plan.found, config))
    add_resumed(folder, config, step, plan.changed)
    add_event(folder, "resumed", step=step)


def _missing_lines(plan: Plan) -> str:
    if plan.found is None:
        return ""
    return check_metrics(plan.config.out, _last_line(plan.found, plan.config), plan.config.all_seeds)


def _last_line(found: Found, config: TrainConfig) -> int:
    """The step of the last lines that were written before the checkpoint."""
    return found.manifest["progress"]["logged"] * config.iteration_steps


def _refuse_other_options(folder: Path, changed: dict[str, Any]) -> None:
    if each := that_may_not_change(changed):
        raise OtherRunError(
            f"--out: {folder} holds a run with other options: {each}. Give the same, choose another folder, or begin "
            "again with --overwrite."
        )


def _refuse_edited(folder: Path, found: Found, earlier: TrainConfig) -> None:
    """config.json has to say what the checkpoint was made with; somebody may have changed it."""
    if each := foreign_options(found.manifest["config"], plain_options(earlier)):
        raise OtherRunError(
            f"--out: config.json of {folder} is not what its checkpoint was made with: {each}. Put it back as it was, "
            "or begin again with --overwrite."
        )


def _set_aside_damaged(folder: Path, step: int) -> None:
    """Checkpoints later than the one that is used are damaged: they no longer count. Remains of writing go."""
    for later in steps_saved(folder):
        if later > step:
            place = path_of(folder, later)
            aside = place.with_name(f"{later}.damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(place, aside)
    for remains in (folder / CHECKPOINTS).glob(".*"):
        if is_ours(remains):
            shutil.rmtree(remains, ignore_errors=True)
