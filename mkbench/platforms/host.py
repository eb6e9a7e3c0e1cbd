"""Platform `host`: every rank is a process of this machine (or of a launcher's), every block a thread."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mkbench.build.cpu import find_compiler
from mkbench.core.errors import EnvironmentProblem, MkbenchError, UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.memory import heap_bytes
from mkbench.core.plan import Plan, Point
from mkbench.core.units import format_bytes
from mkbench.dist import mpi
from mkbench.dist.alarm import exit_when_overdue
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.job import REPORT_PREFIX, job_directory
from mkbench.dist.launcher import DEFAULT_WORKER, ForeignLauncher, Launched, find_mpiexec, foreign_launcher
from mkbench.dist.watchdog import follow

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_MPI_DEADLINE_S = 60.0


class HostPlatform:
    """Starts the ranks of a plan with mpiexec, or is one of them when a launcher has started this process.

    Under a launcher MPI starts at once: a rank that fails later then ends the others, which would wait for
    it. `worker` is the module that mpiexec runs.
    """

    name = "host"

    def __init__(self, worker: str = DEFAULT_WORKER) -> None:
        self._worker = worker
        self._launcher = foreign_launcher()
        self._world: Intracomm | None = None
        if self._launcher is not None:
            self._world = mpi.start_mpi(self._launcher, _MPI_DEADLINE_S)

    def check(self, plan: Plan) -> None:
        """Raise EnvironmentProblem or UsageError if compiler, MPI, ranks or shared memory are missing."""
        find_compiler()
        if find_spec("mpi4py") is None:
            raise EnvironmentProblem("mpi4py is not installed", "run `pip install mpi4py mpich`")
        if self._launcher is None:
            find_mpiexec()
            _check_shared_memory(plan.points)
            return
        _require_ranks(plan, self._launcher)

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Measurements of `points`, in order, as each finishes. The last one comes when all ranks have ended.

        Raises HangError or EnvironmentProblem, naming the rank and where it was, when a rank is lost.
        """
        if self._world is not None:
            # Now and not when the first is asked for: the other ranks wait to hear what is left to do.
            todo: list[Point] = self._world.bcast(list(points) if self._world.rank == 0 else None)
            if not todo:
                mpi.finish_mpi()
                return iter(())
            return _take_part(self._world, todo)
        return self._start_ranks(points)

    def follow(self, plan: Plan) -> None:
        """Take part in what rank 0 runs, as another rank of a launcher."""
        if self._launcher is not None:
            _require_ranks(plan, self._launcher)
        for _ in self.run(plan.points):
            pass

    def _start_ranks(self, points: Sequence[Point]) -> Iterator[Measurement]:
        # One job has one number of ranks.
        start = 0
        while start < len(points):
            end = start
            while end < len(points) and points[end].ranks == points[start].ranks:
                end += 1
            yield from self._run_job(points[start:end])
            start = end

    def _run_job(self, points: Sequence[Point]) -> Iterator[Measurement]:
        ranks = points[0].ranks
        with job_directory() as job:
            job.write_points(points)
            launched = Launched(find_mpiexec(), ranks, job.path, job.stderr, self._worker)
            try:
                # Closed before the directory goes, by which the processes are found.
                with closing(follow(launched, job.heartbeats, ranks)) as lines:
                    yield from _last_at_the_end(_reports(lines), len(points))
            except MkbenchError:
                # The reason is one line; where a rank raised it is for those who ask.
                if os.environ.get("MKBENCH_TRACEBACK"):
                    sys.stderr.write(job.stderr.read_text(errors="replace"))
                raise


def _reports(lines: Iterator[str]) -> Iterator[Measurement]:
    """The measurements among what the ranks and mpiexec print."""
    for line in lines:
        if line.startswith(REPORT_PREFIX):
            yield Measurement.from_json(json.loads(line.removeprefix(REPORT_PREFIX)))


def _take_part(world: Intracomm, points: Sequence[Point]) -> Iterator[Measurement]:
    from mkbench.dist.execution import measure_points

    def until_mpi_is_over() -> Iterator[Measurement]:
        beats = HeartbeatFile(world.rank, None)
        with exit_when_overdue(beats):
            yield from measure_points(world, points, beats)
            beats.enter("finalize", deadline_s=_MPI_DEADLINE_S)
            mpi.finish_mpi()

    return _last_at_the_end(until_mpi_is_over(), len(points))


def _last_at_the_end(measurements: Iterator[Measurement], count: int) -> Iterator[Measurement]:
    """Hand out the last of `count` only once `measurements` has ended: who has it asks for no more.

    A rank that is lost after that one costs nothing, so its error is dropped.
    """
    last: Measurement | None = None
    try:
        for index, measurement in enumerate(measurements, start=1):
            if index < count:
                yield measurement
            else:
                last = measurement
    except MkbenchError:
        if last is None:
            raise
    if last is not None:
        yield last


def _require_ranks(plan: Plan, launcher: ForeignLauncher) -> None:
    point = next((point for point in plan.points if point.ranks != launcher.size), None)
    if point is None:
        return
    # All ranks find the same and leave in good order, so that the launcher returns our exit code.
    mpi.finish_mpi()
    raise UsageError(
        f"{launcher.name} started {launcher.size} ranks, but the plan has {point.nodes} nodes of "
        f"{point.ranks_per_node} ranks",
        f"set --nodes and --ranks-per-node, or start {point.ranks} ranks",
    )


def _check_shared_memory(points: Sequence[Point]) -> None:
    """MPI keeps windows that ranks share in /dev/shm; one that is too small kills a rank with SIGBUS."""
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return
    for point in points:
        need = point.ranks * heap_bytes(point, data=True)
        if need > free:
            raise EnvironmentProblem(
                f"{point.kernel} {point.shape.label} needs {format_bytes(need)} of shared memory for "
                f"{point.ranks} ranks, /dev/shm has {format_bytes(free)}",
                "choose a smaller size or fewer ranks, or make /dev/shm larger (in a container: --shm-size)",
            )
