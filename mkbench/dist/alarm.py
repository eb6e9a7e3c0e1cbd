"""Under a launcher that is not ours nobody watches the ranks, so each rank watches itself and its neighbours.

Main threads wait in MPI or in the kernel, where no exception and no Python signal handler reaches them, and
`srun` goes on when a rank has ended. A thread of each rank therefore ends the job when waiting is useless.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from threading import Thread, current_thread, main_thread
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from mkbench.core.errors import HangError
from mkbench.dist import mpi
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.nodes import machine_communicator

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_PERIOD_S = 0.5
#: What else may end the process gets this long: the launcher, which knows the exit code of a rank that ended,
#: or the handler of a signal.
_SETTLE_S = 2.0
_INTERRUPTED_EXIT_CODE = 130
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: Once a rank is here the others may end before it.
FINALIZE = "finalize"


class Alarm:
    """Watches one rank from a thread, from creation to `stop`. Create it in the main thread.

    Ends the job with exit code 4 if a phase outlasts its deadline or a neighbour ends before `FINALIZE`, and
    with 130 if the main thread does not answer a signal. `srun` reports 137 for each.
    """

    def __init__(self, beats: HeartbeatFile) -> None:
        self._beats = beats
        self._selector = selectors.DefaultSelector()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._hears_signals = current_thread() is main_thread()
        if self._hears_signals:
            # C code writes there as soon as a signal arrives, however long the main thread stays in MPI.
            signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        self._is_over = False
        #: When to give up, with which exit code, and why.
        self._ending: tuple[float, int, str] | None = None
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def watch_neighbours(self, world: Intracomm) -> None:
        """Watch the processes of the other ranks of this machine as well. Collective."""
        machine = machine_communicator(world)
        # A pid says nothing in another container of the machine.
        namespace = os.readlink("/proc/self/ns/pid")
        everybody = machine.allgather((world.rank, os.getpid(), namespace))
        for rank, pid, where in everybody:
            if rank != world.rank and where == namespace:
                # Linux has it since 5.3; without it the ranks that wait for the lost one are overdue later.
                with suppress(OSError, AttributeError):
                    self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (rank, pid))
        machine.Free()

    def stop(self) -> None:
        """Watch no longer. Returns when the thread has ended."""
        if self._hears_signals:
            signal.set_wakeup_fd(-1)
            self._hears_signals = False
        self._is_over = True
        self._mouth.send(b"\0")
        self._thread.join()

    def _watch(self) -> None:
        seen, since = self._beats.state, monotonic()
        while not self._is_over:
            for key, _ in self._selector.select(_PERIOD_S):
                if key.fileobj is self._ear:
                    self._hear(self._ear.recv(64))
                else:
                    self._selector.unregister(key.fileobj)
                    self._lose(*key.data)
            state = self._beats.state
            if state.sequence != seen.sequence:
                seen, since = state, monotonic()
            elif state.sequence > 0 and monotonic() - since > state.deadline_s:
                why = "a rank in an earlier phase, or one that says nothing, holds it up"
                self._give_up(HangError.exit_code, "made no progress", f" for {state.deadline_s:g} s; {why}")
            self._settle()

    def _hear(self, numbers: bytes) -> None:
        signals = _SIGNALS.intersection(numbers)
        if signals and self._ending is None:
            name = signal.Signals(min(signals)).name
            self._ending = (monotonic() + _SETTLE_S, _INTERRUPTED_EXIT_CODE, f": {name} came")

    def _lose(self, rank: int, pid: int) -> None:
        if self._ending is None:
            why = f": rank {rank} (pid {pid}) has ended"
            self._ending = (monotonic() + _SETTLE_S, HangError.exit_code, why)

    def _settle(self) -> None:
        if self._ending is None or monotonic() < self._ending[0] or self._is_over:
            return
        _, code, why = self._ending
        if code == HangError.exit_code and self._beats.state.phase == FINALIZE:
            # It has a deadline of its own, and ranks leave it one by one.
            self._ending = None
            return
        self._give_up(code, "gives up", why)

    def _give_up(self, code: int, what: str, why: str) -> NoReturn:
        state = self._beats.state
        where = f"in phase '{state.phase}'" + (f" of {state.point}" if state.point else "")
        print(f"rank {state.rank} on {state.host} {what} {where}{why}", file=sys.stderr, flush=True)
        # The launcher must end the others too. MPI may be in a state in which not even this returns.
        aborting = Thread(target=mpi.abort, args=(code,), daemon=True)
        aborting.start()
        aborting.join(_SETTLE_S)
        os._exit(code)
