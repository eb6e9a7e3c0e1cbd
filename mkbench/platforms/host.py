"""Platform `host`: every rank is a process of this machine (or of a launcher's), every block a thread."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec

from mkbench.build.cpu import find_compiler
from mkbench.core.errors import EnvironmentProblem, MkbenchError, UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.memory import shared_bytes
from mkbench.core.plan import Plan, Point
from mkbench.core.units import format_bytes
from mkbench.dist.foreign import ForeignRank
from mkbench.dist.job import REPORT_PREFIX, job_directory
from mkbench.dist.launcher import DEFAULT_WORKER, Launched, find_mpiexec, foreign_launcher
from mkbench.dist.watchdog import follow


class HostPlatform:
    """Starts the ranks of a plan with mpiexec, or is one of them when a launcher has started this process.

    `worker` is the module that mpiexec runs.
    """

    name = "host"

    def __init__(self, worker: str = DEFAULT_WORKER) -> None:
        self._worker = worker
        launcher = foreign_launcher()
        self._rank = ForeignRank(launcher) if launcher is not None else None

    def check(self, plan: Plan) -> None:
        """Raise EnvironmentProblem or UsageError if compiler, MPI, ranks or shared memory are missing."""
        find_compiler()
        if find_spec("mpi4py") is None:
            raise EnvironmentProblem("mpi4py is not installed", "run `pip install mpi4py mpich`")
        if self._rank is None:
            find_mpiexec()
            _check_shared_memory(plan.points)
            return
        _require_ranks(plan, self._rank)

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Measurements of `points`, in order, as each finishes. The last one comes when all ranks have ended.

        Raises HangError or EnvironmentProblem, naming the rank and where it was, when a rank is lost.
        """
        if self._rank is not None:
            # Now and not when the first is asked for: the other ranks wait to hear what is left to do.
            todo = self._rank.agree(points)
            if not todo:
                self._rank.finish()
                return iter(())
            return _last_at_the_end(_take_part(self._rank, todo), len(todo))
        return self._start_ranks(points)

    def follow(self, plan: Plan) -> None:
        """Take part in what rank 0 runs, as another rank of a launcher."""
        if self._rank is not None:
            _require_ranks(plan, self._rank)
        for _ in self.run(plan.points):
            pass

    @property
    def is_launched(self) -> bool:
        """Whether a launcher has started this process as one of its ranks."""
        return self._rank is not None

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


def _take_part(rank: ForeignRank, points: Sequence[Point]) -> Iterator[Measurement]:
    from mkbench.dist.execution import measure_points

    try:
        yield from measure_points(rank.world, points, rank.beats)
    except UsageError:
        # The plan does not suit the machines, as every rank finds.
        rank.finish()
        raise
    rank.finish()


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


def _require_ranks(plan: Plan, rank: ForeignRank) -> None:
    launcher = rank.launcher
    point = next((point for point in plan.points if point.ranks != launcher.size), None)
    if point is None:
        return
    # All ranks find the same and leave in good order, so that the launcher returns our exit code.
    rank.finish()
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
        need = point.ranks * shared_bytes(point)
        if need > free:
            raise EnvironmentProblem(
                f"{point.kernel} {point.shape.label} needs {format_bytes(need)} of shared memory for "
                f"{point.ranks} ranks, /dev/shm has {format_bytes(free)}",
                "choose a smaller size or fewer ranks, or make /dev/shm larger (in a container: --shm-size)",
            )
