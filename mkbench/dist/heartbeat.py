"""Heartbeats: one small file per rank that says what the rank is doing, and how it ended.

mpiexec kills the survivors before they can speak, so the parent learns from these files which rank failed and
where. Each change of phase replaces the file by an atomic rename: a reader sees the old state or the new one.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

#: The phase of a rank that has done all its work.
FINISHED = "finished"
#: Phases in which a rank is in MPI and nowhere else begin with these.
_IN_MPI = ("ready ", "gather ")


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank failed, and when.

    `at` is CLOCK_MONOTONIC in seconds, which the processes of a machine share, and `time` the time of day in
    seconds since the epoch, on which machines agree more or less.
    """

    type: str
    message: str
    exit_code: int
    at: float
    time: float
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """State of one rank. `sequence` counts its phases: the rank with the smallest is the furthest behind."""

    rank: int
    host: str
    pid: int
    sequence: int
    phase: str
    point: str | None
    since: float
    deadline_s: float
    error: Failure | None = None

    @property
    def is_finished(self) -> bool:
        return self.phase == FINISHED

    @property
    def has_crashed_in_mpi(self) -> bool:
        """Whether the rank died where MPI may crash because a rank on another machine was lost."""
        return self.phase.startswith(_IN_MPI) and self.error is not None and "SIGSEGV" in self.error.message


class HeartbeatFile:
    """The writer's side, owned by one rank. Without a directory (nobody watches) the state is only kept."""

    def __init__(self, rank: int, directory: Path | None) -> None:
        self._path = None if directory is None else directory / f"{rank}.json"
        self.state = Heartbeat(rank, socket.gethostname(), os.getpid(), 0, "start", None, 0.0, 0.0)

    def enter(self, phase: str, *, deadline_s: float, point: str | None = None) -> None:
        """The rank begins `phase`, which should take at most `deadline_s` seconds."""
        self.state = replace(
            self.state,
            sequence=self.state.sequence + 1,
            phase=phase,
            point=point,
            since=time.time(),
            deadline_s=deadline_s,
        )
        self._write()

    def fail(self, error: BaseException, exit_code: int) -> None:
        """The rank ends here. The phase stays: it says where."""
        hint = getattr(error, "hint", None)
        failure = _failure(type(error).__name__, str(error), exit_code, hint)
        self.state = replace(self.state, error=failure)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            _replace(self._path, self.state)


def record_ending(directory: Path, rank: int, message: str, exit_code: int) -> None:
    """Note how a rank ended that can no longer speak; its own error, or its success, stays as it is."""
    beat = read(directory / f"{rank}.json")
    if beat is None or beat.is_finished or beat.error is not None:
        return
    error = _failure("ended", message, exit_code)
    _replace(directory / f"{rank}.json", replace(beat, error=error))


def read(path: Path) -> Heartbeat | None:
    """The heartbeat in `path`, or None before the rank has written one."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    if fields["error"] is not None:
        fields["error"] = Failure(**fields["error"])
    return Heartbeat(**fields)


def read_all(directory: Path) -> dict[int, Heartbeat]:
    """Every rank's heartbeat, by rank."""
    beats = (read(path) for path in directory.glob("*.json"))
    return {beat.rank: beat for beat in sorted((b for b in beats if b is not None), key=lambda b: b.rank)}


def _failure(kind: str, message: str, exit_code: int, hint: str | None = None) -> Failure:
    return Failure(kind, message, exit_code, time.monotonic(), time.time(), hint)


def _replace(path: Path, state: Heartbeat) -> None:
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(asdict(state)))
    scratch.replace(path)
