"""A run is a directory: plan.toml (what was asked), env.json (where), records.jsonl (what came out)."""

import errno
import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from mkbench.core import environment
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.plan import Plan
from mkbench.core.record import SCHEMA_VERSION
from mkbench.core.toml import dump_toml

SETTLED = ("ok", "wrong", "oom", "unsupported", "build_failed")
"""Statuses that a second try would not change; `hang` and `failed` are tried again on resume."""


LOCK = ".lock"


def default_run_dir(cluster: str) -> Path:
    """Return results/runs/<UTC time>-<cluster> under the current folder."""
    return Path("results") / "runs" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{cluster}"


class RunDirectory:
    """The records of one plan, appended a line at a time and safe against a kill between any two bytes."""

    def __init__(self, path: Path, env: Mapping[str, Any]) -> None:
        self.path = path
        self.env = env
        self.records_path = path / "records.jsonl"
        self._recovered = False
        self._lock_file: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, plan: Plan, *, resume: bool = False) -> "RunDirectory":
        """Return the directory of `plan`, new, or with `resume` the one that an interrupted run left.

        Raises UsageError, with nothing written, if there are results and `resume` is off, if `path` holds
        something else, if another process writes to it, or if it holds another plan (naming the first setting
        that differs).
        """
        refuse_occupied(path, plan, resume=resume)
        run = cls(path, environment.stamp())
        try:
            path.mkdir(parents=True, exist_ok=True)
            run._lock()
            # Once more: another run may have started here since.
            refuse_occupied(path, plan, resume=resume)
            run._write_headers(plan)
        except OSError as error:
            message = f"cannot write {path}: {error.strerror}"
            raise EnvironmentProblem(message, hint="choose another --out") from error
        run.recover()
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Return an existing run, to read.

        Raises UsageError if `path` is none, EnvironmentProblem if its files are damaged.
        """
        if not (path / "plan.toml").is_file():
            raise UsageError(f"{path} is not a run directory", hint="give a folder that --out named")
        return cls(path, _parsed(path / "env.json", json.loads))

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record durably.

        Raises EnvironmentProblem if it cannot be written; the next append first cuts off what was.
        """
        if not self._recovered:
            self.recover()
        line = json.dumps(record, sort_keys=True, allow_nan=False) + "\n"
        try:
            with self.records_path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._recovered = False
            raise EnvironmentProblem(
                f"cannot append to {self.records_path}: {error.strerror}", hint="make room, then use --resume"
            ) from error

    def records(self) -> list[dict[str, Any]]:
        """Return one record a key, in plan order; a point that was tried again counts once, as last seen."""
        latest: dict[str, dict[str, Any]] = {}
        for record in self._lines():
            latest[record["key"]] = record
        return list(latest.values())

    def done_keys(self) -> set[str]:
        """Return the keys that need no further run."""
        return {record["key"] for record in self.records() if record["status"] in SETTLED}

    def recover(self) -> None:
        """Cut a torn last line off, so that the next record starts its own line."""
        if self.records_path.exists():
            whole = self.records_path.read_bytes().rpartition(b"\n")
            kept = len(whole[0]) + len(whole[1])
            if whole[2]:
                with self.records_path.open("r+b") as file:
                    file.truncate(kept)
                    os.fsync(file.fileno())
        self._recovered = True

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.records_path.exists():
            return
        whole, _, _ = self.records_path.read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record: dict[str, Any] = json.loads(line)
                record["key"], record["status"]
                schema = record.get("schema", SCHEMA_VERSION)
            except (ValueError, TypeError, KeyError) as error:
                raise EnvironmentProblem(
                    f"{self.records_path} line {number} is not a record", hint="remove that line"
                ) from error
            if schema != SCHEMA_VERSION:
                raise EnvironmentProblem(
                    f"{self.records_path} line {number} has schema {schema}, this mkbench reads "
                    f"{SCHEMA_VERSION}",
                    hint="use the mkbench that wrote it, or measure again in another --out",
                )
            yield record

    def _lock(self) -> None:
        """Keep other processes out until this one ends, however it ends. Forked workers do not hold it."""
        file = (self.path / LOCK).open("w")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise UsageError(
                    f"another mkbench is writing to {self.path}", hint="wait for it, or choose another --out"
                ) from error
            # Some network file systems have no locks: then it is up to the user.
        self._lock_file = file

    def _write_headers(self, plan: Plan) -> None:
        text = json.dumps(dict(self.env), indent=2, sort_keys=True) + "\n"
        env_path = self.path / "env.json"
        if env_path.exists() and _parsed(env_path, json.loads) != self.env:
            env_path = self.path / f"env-{environment.digest(self.env)}.json"
        _replace(env_path, text)
        # Last, since it is what makes the folder a run.
        _replace(self.path / "plan.toml", dump_toml(plan.config.model_dump(mode="json")))


def refuse_occupied(path: Path, plan: Plan, *, resume: bool) -> None:
    """Raise UsageError if `plan` must not write to `path`; touches nothing."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="choose another --out")
    if not path.exists() or not {entry.name for entry in path.iterdir()} - {"env.json", LOCK}:
        return
    plan_path = path / "plan.toml"
    if not plan_path.is_file():
        raise UsageError(f"{path} is not empty and holds no run", hint="choose another --out")
    if not resume:
        raise UsageError(f"{path} holds a run", hint="continue it with --resume, or choose another --out")
    asked = _parsed(plan_path, tomllib.loads)
    wanted = tomllib.loads(dump_toml(plan.config.model_dump(mode="json")))
    for key in type(plan.config).model_fields:
        if asked.get(key) != wanted.get(key):
            raise UsageError(
                f"{path} was asked for another plan: {key} is {asked.get(key, 'not set')} there, "
                f"{wanted.get(key, 'not set')} now",
                hint="repeat the first command with --resume, or choose another --out",
            )


def _parsed(path: Path, parse: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return what a file of a run holds. Raises EnvironmentProblem if it is missing or damaged."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EnvironmentProblem(
            f"cannot read {path}: {reason}", hint="restore that file, or measure again in another --out"
        ) from error


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
