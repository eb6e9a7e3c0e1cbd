"""From a plan to records on disk while a person watches: what `sweep` and `run` share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkbench import platforms
from mkbench.cli.console import print_line, reporter
from mkbench.cli.failures import Interrupted
from mkbench.cli.ranks import is_speaker
from mkbench.cli.signals import ended_in_order
from mkbench.cli.tables import plan_header
from mkbench.core.errors import EnvironmentProblem, PartialResults, UsageError
from mkbench.core.plan import Plan
from mkbench.core.store import RunDirectory, refuse_occupied
from mkbench.session import run_plan, verdict

Record = dict[str, Any]


def measure(plan: Plan, path: Path, *, resume: bool = False) -> list[Record] | None:
    """Measure what `path` has not got yet and return all records of `plan`, in its order.

    Returns None on the other ranks of a launcher, which only take part. Nothing is written unless the plan
    can run. Raises what the platform raises, and Interrupted.
    """
    chosen = platforms.platform(plan.config.platform)
    if not is_speaker():
        follow = getattr(chosen, "follow", None)
        if follow is not None:
            follow(plan)
        return None
    refuse_occupied(path, plan, resume=resume)
    chosen.check(plan)
    run = RunDirectory.create(path, plan, resume=resume)
    done = len(run.done_keys() & {point.key for point in plan.points})
    print_line(plan_header(plan))
    if done:
        print_line(f"resuming: {done} of {len(plan.points)} points are there already")
    try:
        with ended_in_order(), reporter(len(plan.points), done) as watcher:
            return run_plan(plan, run, chosen, watcher.on_record)
    except KeyboardInterrupt:
        kept = len(run.done_keys())
        raise Interrupted(
            f"interrupted: {kept} of {len(plan.points)} points are kept in {path}",
            hint=f"continue with: {_resume_command(path)}",
        ) from None


def measure_one(plan: Plan, path: Path | None) -> Record | None:
    """Measure a plan of one point; without `path` its record is not kept.

    Returns None on the other ranks of a launcher. Raises UsageError for a plan of more points.
    """
    if len(plan.points) != 1:
        raise UsageError(
            f"run measures one configuration, and this is {len(plan.points)}",
            hint="give one value of every option, or use mkbench sweep",
        )
    if not is_speaker():
        # The others write nothing, and one that is killed would leave its folder behind.
        measure(plan, Path())
        return None
    with TemporaryDirectory(prefix="mkbench-run-") as scratch:
        records = measure(plan, path or Path(scratch) / "run")
    return records[0] if records else None


def conclude(records: Sequence[Record], *, kept: bool = True) -> None:
    """Raise the error that `records` amount to, if they do: the exit code of a command that measured them.

    `kept`: whether the records are on disk, where the whole report can be read.
    """
    error = verdict(records)
    if error is not None and not kept:
        error.hint = "keep the record, which holds the whole report, with --out"
    if isinstance(error, PartialResults) and not any(record["status"] == "ok" for record in records):
        # Nothing is partial about no result at all: what was tried cannot run here.
        raise EnvironmentProblem(error.message, error.hint)
    if error is not None:
        raise error


def _resume_command(path: Path) -> str:
    words = ["mkbench", *sys.argv[1:]]
    words += [] if "--out" in words else ["--out", str(path)]
    words += [] if "--resume" in words else ["--resume"]
    return shlex.join(words)
