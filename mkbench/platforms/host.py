"""Platform `host`: every rank is a process of this machine (or of a launcher's), every block a thread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mkbench.build.cpu import find_compiler
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.memory import heap_bytes
from mkbench.core.plan import Plan, Point
from mkbench.core.units import format_bytes
from mkbench.dist import mpi
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.job import REPORT_PREFIX, job_directory
from mkbench.dist.launcher import DEFAULT_WORKER, Launched, find_mpiexec, foreign_launcher
from mkbench.dist.watchdog import follow

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_MPI_INIT_DEADLINE_S = 60.0


class HostPlatform:
    """Starts the ranks of a plan with mpiexec, or is one of them when a launcher has started this process.

    Under a launcher MPI starts at once: a rank that fails later then ends the others, which would wait for it.
    `worker` is the module that mpiexec runs.
    """

    name = "host"

    def __init__(self, worker: str = DEFAULT_WORKER) -> None:
        self._worker = worker
        self._launcher = foreign_launcher()
        self._world: Intracomm | None = None
        if self._launcher is not None:
            self._world = mpi.start_mpi(self._launcher, _MPI_INIT_DEADLINE_S)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that lacks a compiler, MPI, ranks or shared memory. Raises EnvironmentProblem or UsageError."""
        find_compiler()
        if find_spec("mpi4py") is None:
            raise EnvironmentProblem("mpi4py is not installed", "run `pip install mpi4py mpich`")
        if self._launcher is None:
            find_mpiexec()
            _check_shared_memory(plan.points)
            return
        for point in plan.points:
            if point.ranks != self._launcher.size:
                raise UsageError(
                    f"{self._launcher.name} started {self._launcher.size} ranks, but the plan has {point.nodes} "
                    f"nodes of {point.ranks_per_node} ranks",
                    f"set --nodes and --ranks-per-node, or start {point.ranks} ranks",
                )

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Measurements of `points`, in order, as each finishes. The last one comes when all ranks have ended.

        Raises HangError or EnvironmentProblem, naming the rank and where it was, when a rank is lost.
        """
        if self._world is not None:
            return self._take_part(self._world, points)
        return self._start_ranks(points)

    def follow(self, plan: Plan) -> None:
        """Take part in what rank 0 runs, as another rank of a launcher; `plan` is what this rank was asked."""
        assert self._world is not None
        for _ in self._take_part(self._world, plan.points):
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
            held: Measurement | None = None
            count = 0
            for line in follow(launched, job.heartbeats, ranks):
                if not line.startswith(REPORT_PREFIX):
                    continue
                count += 1
                measurement = Measurement.from_json(json.loads(line.removeprefix(REPORT_PREFIX)))
                if count < len(points):
                    yield measurement
                else:
                    # Who gets the last one asks for no more, so the ranks must be gone by then.
                    held = measurement
        if held is not None:
            yield held

    def _take_part(self, world: Intracomm, points: Sequence[Point]) -> Iterator[Measurement]:
        """Rank 0 knows which points are left; all measure those. MPI is over when the last is handed out."""
        from mkbench.dist.execution import measure_points

        todo: Sequence[Point] = world.bcast(list(points) if world.rank == 0 else None)
        *first, last = [*measure_points(world, todo, HeartbeatFile(world.rank, None))] or [None]
        mpi.finish_mpi()
        yield from filter(None, first)
        if last is not None:
            yield last


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
                f"{point.kernel} {point.shape.label} needs {format_bytes(need)} of shared memory for {point.ranks} "
                f"ranks, /dev/shm has {format_bytes(free)}",
                "choose a smaller size or fewer ranks, or make /dev/shm larger (in a container: --shm-size)",
            )
