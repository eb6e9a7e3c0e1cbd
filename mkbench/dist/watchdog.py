"""The watchdog decides from heartbeats whether a job goes on, has ended, or has failed, and who is to blame.

`Watchdog.observe` is pure: snapshots and a clock go in, a verdict comes out. `take_snapshot` looks at the
machine, and `follow` is the loop around both.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from mkbench.core.errors import EnvironmentProblem, HangError, MkbenchError, UsageError
from mkbench.dist import heartbeat
from mkbench.dist.heartbeat import Failure, Heartbeat
from mkbench.dist.launcher import Launched
from mkbench.dist.processes import is_running

#: How long the watchdog collects evidence after the first sign of a failure: a rank that lost its peer may be
#: quicker to say so than the supervisor of that peer.
SETTLE_S = 0.5
#: A rank must write its first heartbeat this soon after the launch.
START_DEADLINE_S = 60.0
#: mpiexec must end this soon after the last rank has finished.
END_S = 10.0
#: How often the parent looks.
PERIOD_S = 0.05
#: Errors that another rank's failure causes ("Exception" is what mpi4py raises). They are named only if there
#: is nothing better to name.
CONSEQUENCES = frozenset({"PeerLost", "PeerUnreachable", "Exception"})
#: Classes that keep their exit code when a rank's error becomes the parent's. All else is a lost rank.
_BY_EXIT_CODE: dict[int, type[MkbenchError]] = {
    kind.exit_code: kind for kind in (UsageError, EnvironmentProblem)
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What can be seen of a job at one moment."""

    beats: Mapping[int, Heartbeat]
    """By rank."""
    gone: frozenset[int]
    """Ranks whose process has ended."""
    exit_code: int | None
    """That of mpiexec, once it has ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job failed. `rank` is None if no single rank can be named."""

    what: str
    hint: str
    exit_code: int
    rank: int | None = None
    beat: Heartbeat | None = None
    seen_s: float = 0.0

    def error(self, last_words: str = "") -> MkbenchError:
        """The exception that the parent raises. `last_words`: what mpiexec said, for when no rank spoke."""
        return _BY_EXIT_CODE.get(self.exit_code, HangError)(self._message(last_words), self.hint)

    def _message(self, last_words: str) -> str:
        if self.beat is None:
            return f"{self.what}: {last_words}" if last_words else self.what
        where = f"in phase '{self.beat.phase}'"
        if self.beat.point is not None:
            where += f" of {self.beat.point}"
        return (
            f"rank {self.beat.rank} on {self.beat.host} (pid {self.beat.pid}) {self.what} {where}, "
            f"which began {self.seen_s:.1f} s before"
        )


class Watchdog:
    """Feeds on snapshots. All times are seconds of one clock."""

    def __init__(self, ranks: int, started: float) -> None:
        self._ranks = ranks
        self._started = started
        # Age is measured by our own clock since a change was seen: clocks of other machines may differ.
        self._changed: dict[int, tuple[int, float]] = {}
        self._first_sign: float | None = None

    def observe(self, now: float, snapshot: Snapshot) -> Verdict | None:
        """Return a verdict once the job has failed, else None."""
        for rank, beat in snapshot.beats.items():
            if rank not in self._changed or self._changed[rank][0] != beat.sequence:
                self._changed[rank] = (beat.sequence, now)
        failed = self._failed(snapshot.beats.values())
        vanished = [r for r in sorted(snapshot.gone) if not _is_over(snapshot.beats[r])]
        if self.is_over(snapshot):
            return None
        if failed or vanished or snapshot.exit_code is not None:
            self._first_sign = now if self._first_sign is None else self._first_sign
            if now - self._first_sign < SETTLE_S:
                return None
            return self._blame(now, snapshot, failed, vanished)
        # A rank that finished between two looks at it seemed to have vanished for one of them.
        self._first_sign = None
        return self._overdue(now, snapshot)

    def is_over(self, snapshot: Snapshot) -> bool:
        """True once mpiexec has ended and every rank has finished."""
        finished = sum(beat.is_finished for beat in snapshot.beats.values())
        return snapshot.exit_code == 0 and finished == self._ranks

    @staticmethod
    def _failed(beats: Iterable[Heartbeat]) -> list[Heartbeat]:
        failed = {beat: beat.error for beat in beats if beat.error is not None}
        share_clock = len({beat.host for beat in failed}) == 1

        def blame(beat: Heartbeat) -> tuple[bool, float]:
            at = failed[beat].at if share_clock else failed[beat].time
            return beat.has_crashed_in_mpi or failed[beat].type in CONSEQUENCES, at

        return sorted(failed, key=blame)

    def _blame(
        self, now: float, snapshot: Snapshot, failed: list[Heartbeat], vanished: Collection[int]
    ) -> Verdict:
        if failed and failed[0].error is not None:
            beat, error = failed[0], failed[0].error
            said = error.message if error.type == "ended" else f"failed with {error.type}: {error.message}"
            return self._about(beat, now, said, error.hint or _hint(beat, error), error.exit_code)
        # mpiexec names no rank and kills the rest: of the ranks that vanished, the one furthest behind is
        # the best guess.
        candidates = [snapshot.beats[rank] for rank in vanished]
        if candidates:
            beat = min(candidates, key=lambda b: (b.sequence, b.since))
            return self._about(beat, now, "disappeared without a word", _hint(beat), HangError.exit_code)
        missing = [rank for rank in range(self._ranks) if rank not in snapshot.beats]
        if missing:
            return Verdict(
                f"mpiexec ended with code {snapshot.exit_code} before rank {missing[0]} had started",
                "run `mkbench doctor` to check MPI and the Python packages",
                EnvironmentProblem.exit_code,
                missing[0],
            )
        return Verdict(
            f"mpiexec ended with code {snapshot.exit_code} although no rank reported a failure",
            "run `mkbench doctor` to check MPI",
            EnvironmentProblem.exit_code,
        )

    def _overdue(self, now: float, snapshot: Snapshot) -> Verdict | None:
        unfinished = [beat for beat in snapshot.beats.values() if not beat.is_finished]
        if any(now - self._changed[beat.rank][1] > beat.deadline_s for beat in unfinished):
            # Who is late may only be waiting: the rank that holds the others up is the one furthest behind.
            beat = min(unfinished, key=lambda b: (b.sequence, self._changed[b.rank][1]))
            code = EnvironmentProblem.exit_code if beat.phase == "mpi_init" else HangError.exit_code
            return self._about(beat, now, "made no progress", _hint(beat), code)
        missing = [rank for rank in range(self._ranks) if rank not in snapshot.beats]
        if not missing and not unfinished and now - max(at for _, at in self._changed.values()) > END_S:
            return Verdict(
                f"mpiexec did not end within {END_S:g} s after all ranks had finished",
                "run `mkbench doctor` to check MPI",
                HangError.exit_code,
            )
        if missing and now - self._started > START_DEADLINE_S:
            return Verdict(
                f"rank {missing[0]} did not start within {START_DEADLINE_S:g} s",
                "run `mkbench doctor` to check MPI",
                EnvironmentProblem.exit_code,
                missing[0],
            )
        return None

    def _about(self, beat: Heartbeat, now: float, said: str, hint: str, exit_code: int) -> Verdict:
        return Verdict(said, hint, exit_code, beat.rank, beat, now - self._changed[beat.rank][1])


def take_snapshot(heartbeats: Path, exit_code: int | None) -> Snapshot:
    """Read the heartbeats and look which of this machine's ranks still have a process."""
    beats = heartbeat.read_all(heartbeats)
    here = socket.gethostname()
    gone = frozenset(r for r, b in beats.items() if b.host == here and not is_running(b.pid))
    return Snapshot(beats, gone, exit_code)


def _is_over(beat: Heartbeat) -> bool:
    return beat.is_finished or beat.error is not None


def _hint(beat: Heartbeat, error: Failure | None = None) -> str:
    if beat.phase in {"start", "mpi_init"}:
        return "run `mkbench doctor` to check MPI, then continue with --resume"
    resume = "finished points are kept: continue with the same command and --resume"
    if error is not None and "SIGKILL" in error.message:
        fix = "if nobody killed it, memory ran out (see `dmesg`): use fewer ranks or a smaller size"
        return f"{fix}; {resume}"
    return resume


def follow(job: Launched, heartbeats: Path, ranks: int) -> Generator[str, None, None]:
    """Yield the job's lines on stdout as they come, until it has ended well.

    Ends the whole job and raises when the watchdog finds a failure, and ends it when the caller stops
    listening.
    """
    watchdog = Watchdog(ranks, monotonic())
    try:
        while True:
            yield from job.lines(timeout_s=PERIOD_S)
            snapshot = take_snapshot(heartbeats, job.exit_code())
            verdict = watchdog.observe(monotonic(), snapshot)
            if verdict is not None:
                yield from job.lines(timeout_s=0.0)
                raise verdict.error(job.last_words())
            if watchdog.is_over(snapshot):
                yield from job.lines(timeout_s=0.0)
                return
    finally:
        job.end()
