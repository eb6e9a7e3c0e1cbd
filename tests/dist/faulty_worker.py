"""A worker with a planted fault, run by mpiexec in place of `mkbench.dist.worker`.

MKBENCH_TEST_FAULT is "kind:rank:phase" or "kind:rank:phase:part of the point's key": the rank fails on
entering the phase.
Kinds: kill, raise, exit, stop, stall. MKBENCH_TEST_KERNELS is a folder of kernels to build from. With
MKBENCH_TEST_STAND_IN set the ranks only meet at barriers; otherwise they measure the job's points.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from mkbench.dist import worker
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.job import JobDirectory

STAND_IN_DEADLINE_S = 1.5


class Boom(Exception):
    pass


def fail(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise Boom("planted")
    if kind == "exit":
        os._exit(0)
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "stall":
        while True:
            signal.pause()


def plant(fault: str) -> None:
    kind, rank, phase, *rest = fault.split(":", maxsplit=3)
    point = rest[0] if rest else ""
    enter = HeartbeatFile.enter

    def entering(self: HeartbeatFile, name: str, **details: Any) -> None:
        enter(self, name, **details)
        if (self.state.rank, name) == (int(rank), phase) and point in (self.state.point or ""):
            fail(kind)

    HeartbeatFile.enter = entering  # type: ignore[method-assign]


def build_from(kernels: str) -> None:
    from mkbench.dist import execution

    execution.build_library = partial(execution.build_library, sources=Path(kernels))


def stand_in(world: Any, job: JobDirectory, beats: HeartbeatFile) -> None:
    for launch in range(3):
        beats.enter(f"launch {launch}", deadline_s=STAND_IN_DEADLINE_S, point="some/point")
        beats.enter(f"gather {launch}", deadline_s=STAND_IN_DEADLINE_S, point="some/point")
        world.Barrier()
        if world.rank == 0:
            print(f"launch {launch}", flush=True)


if __name__ == "__main__":
    if deadline := os.environ.get("MKBENCH_TEST_INIT_DEADLINE_S"):
        worker.MPI_INIT_DEADLINE_S = float(deadline)
    if fault := os.environ.get("MKBENCH_TEST_FAULT"):
        plant(fault)
    if kernels := os.environ.get("MKBENCH_TEST_KERNELS"):
        build_from(kernels)
    worker.main(stand_in if "MKBENCH_TEST_STAND_IN" in os.environ else None)
