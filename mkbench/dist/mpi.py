"""Starting and ending MPI with bounds on both. mpi4py is imported here and nowhere earlier."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from mkbench.core.errors import EnvironmentProblem
from mkbench.dist.launcher import ForeignLauncher, require_agreement

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def start_mpi(launcher: ForeignLauncher | None, deadline_s: float) -> Intracomm:
    """Start MPI and return the communicator of all ranks.

    A rank that is stuck in MPI_Init runs no Python code, so SIGALRM ends the process after `deadline_s` s.
    Raises EnvironmentProblem if MPI cannot be loaded, or sees another number of ranks than the launcher.
    """
    previous = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, deadline_s)
    try:
        import mpi4py

        # A rank that fails must not wait for the others in MPI_Finalize, which would be called at exit.
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        fix = f"install MPI: {sys.executable} -m pip install mpi4py mpich"
        raise EnvironmentProblem(f"cannot load MPI: {error}", fix) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    if launcher is not None:
        require_agreement(launcher, MPI.COMM_WORLD.size)
    return MPI.COMM_WORLD


def finish_mpi() -> None:
    """End MPI in good order. Collective."""
    from mpi4py import MPI

    MPI.Finalize()


def is_finished() -> bool:
    """Whether this process can no longer use MPI."""
    from mpi4py import MPI

    return bool(MPI.Is_finalized())


def abort(code: int) -> NoReturn:
    """End all ranks with `code`: an exception on one rank alone would leave the others waiting for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    if "mpi4py.MPI" in sys.modules:
        from mpi4py import MPI

        if MPI.Is_initialized() and not MPI.Is_finalized():
            MPI.COMM_WORLD.Abort(code)
    os._exit(code)
