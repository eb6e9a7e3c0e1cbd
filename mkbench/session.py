"""The driver loop: plan -> platform -> records. `sweep` and `run` differ only in their plan."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from mkbench.core.errors import HangError, MkbenchError, PartialResults, WrongResult
from mkbench.core.plan import Plan
from mkbench.core.record import make_record
from mkbench.core.store import RunDirectory
from mkbench.platforms.base import Platform

Record = dict[str, Any]


def run_plan(
    plan: Plan,
    run_dir: RunDirectory,
    platform: Platform,
    on_record: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Run what `run_dir` has not got yet and return the records of the whole plan, in its order.

    `on_record` is called after each record is on disk. The caller has asked `platform.check(plan)`. Raises
    what the platform raises, and PartialResults if it stops early; what was appended until then stays.
    """
    done = run_dir.done_keys()
    todo = [point for point in plan.points if point.key not in done]
    measured = 0
    measurements = platform.run(todo)
    try:
        for point, measurement in zip(todo, measurements, strict=False):
            record = make_record(point, measurement, run_dir.env)
            run_dir.append(record)
            measured += 1
            on_record(record)
    finally:
        # At once, whatever was raised here: else the platform goes on with points that nobody will record.
        if isinstance(measurements, Generator):
            measurements.close()
    if measured < len(todo):
        raise PartialResults(
            f"platform {platform.name} stopped after {measured} of {len(todo)} points",
            hint="continue with --resume",
        )
    latest = {record["key"]: record for record in run_dir.records()}
    return [latest[point.key] for point in plan.points]


def verdict(records: Iterable[Mapping[str, Any]]) -> MkbenchError | None:
    """Return the error that the records amount to, the gravest first, or None if all are ok."""
    bad = [record for record in records if record["status"] != "ok"]
    if not bad:
        return None
    for status, error in (("wrong", WrongResult), ("hang", HangError)):
        found = [record for record in bad if record["status"] == status]
        if found:
            return error(_say(found), hint="the record holds the whole report")
    return PartialResults(_say(bad), hint="the record holds the whole report")


def _say(records: list[Mapping[str, Any]]) -> str:
    first = records[0]
    check = first["check"] or {}
    reason = check.get("first") or first["message"] or "no message"
    more = f" (and {len(records) - 1} more)" if len(records) > 1 else ""
    return f"{first['key']} {first['status']}: {reason}{more}"
