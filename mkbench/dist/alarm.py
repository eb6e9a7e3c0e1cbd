"""Under a launcher that is not ours nobody watches the heartbeats, so each rank watches its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic

from mkbench.core.errors import HangError
from mkbench.dist.heartbeat import HeartbeatFile

_PERIOD_S = 0.5


@contextmanager
def exit_when_overdue(beats: HeartbeatFile) -> Iterator[None]:
    """End this process with exit code 4, and with it the whole job, if a phase outlasts its deadline.

    For code that waits in MPI or in the kernel, which no exception could reach.
    """
    over = Event()
    watcher = Thread(target=_watch, args=(beats, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(beats: HeartbeatFile, over: Event) -> None:
    seen, since = beats.state, monotonic()
    while not over.wait(_PERIOD_S):
        if beats.state.sequence != seen.sequence:
            seen, since = beats.state, monotonic()
        elif beats.state.sequence > 0 and monotonic() - since > seen.deadline_s:
            _give_up(beats)


def _give_up(beats: HeartbeatFile) -> None:
    state = beats.state
    where = f" of {state.point}" if state.point else ""
    print(
        f"rank {state.rank} on {state.host} made no progress in phase '{state.phase}'{where} for "
        f"{state.deadline_s:g} s; a rank in an earlier phase, or one that says nothing, holds it up",
        file=sys.stderr,
        flush=True,
    )
    # Not sys.exit: the main thread cannot be interrupted. To leave without MPI_Finalize ends the whole job.
    os._exit(HangError.exit_code)
