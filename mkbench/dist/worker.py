"""Entry point of one rank: `python -m mkbench.dist.worker JOBDIR`, started by mpiexec.

Nothing heavy is imported before the first heartbeat is written, so a rank that cannot start MPI is still
named.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mkbench.core.errors import EnvironmentProblem, HangError, MkbenchError
from mkbench.dist import mpi
from mkbench.dist.heartbeat import FINISHED, HeartbeatFile
from mkbench.dist.job import REPORT_PREFIX, JobDirectory
from mkbench.dist.launcher import foreign_launcher
from mkbench.dist.supervisor import supervise

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

START_DEADLINE_S = 60.0
MPI_INIT_DEADLINE_S = 60.0

#: What a rank does once MPI is up.
Work = Callable[["Intracomm", JobDirectory, HeartbeatFile], None]


def main(work: Work | None = None) -> None:
    """Run one rank under its supervisor. By default it measures the points of the job."""
    job = JobDirectory(Path(sys.argv[1]))
    launcher = foreign_launcher()
    rank = launcher.rank if launcher else 0
    supervise(rank, job.heartbeats, lambda: run_rank(rank, job, work or measure))


def run_rank(rank: int, job: JobDirectory, work: Work) -> None:
    """Bring up MPI and do the rank's work; any exception is noted in the heartbeat and ends all ranks."""
    sees_job = job.heartbeats.is_dir()
    beats = HeartbeatFile(rank, job.heartbeats if sees_job else None)
    try:
        beats.enter("start", deadline_s=START_DEADLINE_S)
        # SIGALRM comes first; the watchdog's deadline is for a process that even SIGALRM does not reach.
        beats.enter("mpi_init", deadline_s=MPI_INIT_DEADLINE_S + 5)
        world = mpi.start_mpi(foreign_launcher(), MPI_INIT_DEADLINE_S)
        require_shared(world, job, sees_job)
        work(world, job, beats)
        beats.enter("finalize", deadline_s=MPI_INIT_DEADLINE_S)
        mpi.finish_mpi()
        beats.enter(FINISHED, deadline_s=0.0)
    except BaseException as error:
        code = error.exit_code if isinstance(error, MkbenchError) else HangError.exit_code
        beats.fail(error, code)
        traceback.print_exc()
        mpi.abort(code)


def require_shared(world: Intracomm, job: JobDirectory, sees_job: bool) -> None:
    """Raise EnvironmentProblem on the ranks that see the job directory unless all do. Collective."""
    places = world.allgather(None if sees_job else socket.gethostname())
    blind = next((rank for rank, host in enumerate(places) if host is not None), None)
    if blind is None:
        return
    if not sees_job:
        # It cannot say so. Who can ends this rank too, but not before it has written it down.
        world.Barrier()
    raise EnvironmentProblem(
        f"rank {blind} on {places[blind]} does not see the job directory {job.path}",
        "set TMPDIR to a folder that all hosts share",
    )


def measure(world: Intracomm, job: JobDirectory, beats: HeartbeatFile) -> None:
    """Measure the points of the job; rank 0 reports each on stdout."""
    from mkbench.dist.execution import measure_points

    for measurement in measure_points(world, job.read_points(), beats):
        if world.rank == 0:
            print(REPORT_PREFIX + json.dumps(measurement.to_json()), flush=True)


if __name__ == "__main__":
    main()
