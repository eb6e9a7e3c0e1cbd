"""A thin parent around each rank's process that notes how it ended.

mpiexec kills the other ranks as soon as one is gone, and which one was first is then lost. The supervisor is
the only one who knows: it writes the ending into the rank's heartbeat before mpiexec can notice it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import NoReturn

from mkbench.core.errors import EnvironmentProblem, HangError
from mkbench.dist import heartbeat
from mkbench.dist.processes import die_with_parent

_LAST_WORDS_S = 0.3


def supervise(rank: int, heartbeats: Path, run: Callable[[], None]) -> NoReturn:
    """Run `run` as this rank in a forked process and exit: with 0 only if the rank finished."""
    die_with_parent()
    child = os.fork()
    if child == 0:
        die_with_parent()
        run()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    message, exit_code = describe_ending(code, heartbeat.read(heartbeats / f"{rank}.json"))
    if message is not None:
        heartbeat.record_ending(heartbeats, rank, message, exit_code)
        beat = heartbeat.read(heartbeats / f"{rank}.json")
        if beat is not None and beat.has_crashed_in_mpi:
            # mpiexec kills the others as soon as this process ends, and who caused it may yet have to write.
            sleep(_LAST_WORDS_S)
    # os._exit: the libraries that the child shares with us must not clean up twice.
    os._exit(exit_code)


def describe_ending(code: int, beat: heartbeat.Heartbeat | None) -> tuple[str | None, int]:
    """What to note for a rank that ended with `code` (negative: a signal), and the exit code for mpiexec."""
    if beat is not None and beat.is_finished and code == 0:
        return None, 0
    before_mpi = beat is None or beat.phase in {"start", "mpi_init"}
    if code == -signal.SIGALRM:
        return f"was stuck in MPI_Init for {beat.deadline_s if beat else 0:g} s", EnvironmentProblem.exit_code
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}", HangError.exit_code
    kind = EnvironmentProblem if before_mpi else HangError
    return f"exited with code {code} before it had finished", kind.exit_code
