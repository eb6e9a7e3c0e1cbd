"""This process as one rank of a job that a launcher other than mkbench has started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from mkbench.core.errors import HangError
from mkbench.core.point import Point
from mkbench.dist import mpi
from mkbench.dist.alarm import FINALIZE, Alarm
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.launcher import ForeignLauncher

_DEADLINE_S = 60.0


class ForeignRank:
    """A rank that takes the others along however it ends, since not every launcher does.

    MPI starts at once. Collective to create, to `agree` and to `finish`.
    """

    def __init__(self, launcher: ForeignLauncher) -> None:
        self.launcher = launcher
        self.world = mpi.start_mpi(launcher, _DEADLINE_S)
        self.beats = HeartbeatFile(self.world.rank, None)
        self._alarm = Alarm(self.beats)
        self._has_agreed = False
        self._pid = os.getpid()
        self.beats.enter("start", deadline_s=_DEADLINE_S)
        self._alarm.watch_neighbours(self.world)
        self.beats.enter("plan", deadline_s=_DEADLINE_S)
        atexit.register(self._leave)

    def agree(self, points: Sequence[Point]) -> list[Point]:
        """The points of rank 0, which alone knows what is left to do."""
        self._has_agreed = True
        agreed: list[Point] = self.world.bcast(list(points) if self.world.rank == 0 else None)
        return agreed

    def finish(self) -> None:
        """End MPI in good order, so that the launcher returns this process's exit code."""
        self.beats.enter(FINALIZE, deadline_s=_DEADLINE_S)
        mpi.finish_mpi()
        self._alarm.stop()

    def _leave(self) -> None:
        """The interpreter ends. If MPI has not, an error ended this rank alone."""
        if mpi.is_finished() or os.getpid() != self._pid:
            return
        if self.world.rank == 0 and not self._has_agreed:
            # The others still wait to hear what to do: there is nothing.
            self.agree([])
            self.finish()
        elif self.launcher.outlives_ranks:
            mpi.abort(HangError.exit_code)
