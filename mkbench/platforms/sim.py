"""The `sim` platform: points of a plan on the simulator, several processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mkbench.build.cpu import build_library
from mkbench.build.source_hash import source_hash
from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import MkbenchError, UsageError
from mkbench.core.measurement import Check, Measurement
from mkbench.core.partition import Partition
from mkbench.core.plan import Plan, Point
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Matrix, metadata_outputs
from mkbench.dist.processes import die_with_parent
from mkbench.dist.verify import Comparison, compare, compare_metadata, merge
from mkbench.platforms.simulate import Result, Simulation, load
from mkbench.platforms.timeline import timeline

_STATUS = {"ok": "ok", "deadlock": "hang", "time_limit": "hang", "protocol_error": "wrong"}


class SimPlatform:
    """Virtual time on the costs of a cluster's profile; a run is a function of the point and its seed."""

    name = "sim"

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes or max(1, len(os.sched_getaffinity(0)))
        self._cluster: ClusterProfile | None = None
        self._libraries: dict[str, Path] = {}

    def check(self, plan: Plan) -> None:
        """Build the kernels, so that a missing compiler shows before anything is written."""
        # Once: to look for a library in the cache takes as long as to simulate a small point.
        self._libraries = {kernel: build_library(kernel) for kernel in plan.config.kernels}
        if plan.config.transport not in (None, "sim"):
            raise UsageError(
                f"transport {plan.config.transport!r} does not exist on the simulator",
                hint="leave --transport out",
            )
        self._cluster = plan.cluster

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Yield one measurement a point, in order. A process that dies costs only its own point."""
        assert self._cluster is not None, "check() comes first"
        if len(points) == 1:
            yield measure(points[0], self._cluster, self._libraries[points[0].kernel])
            return
        pool = ProcessPoolExecutor(self._processes, initializer=_start_worker)
        try:
            jobs = [(point, self._cluster, self._libraries[point.kernel]) for point in points]
            futures = [pool.submit(measure, *job) for job in jobs]
            for job, future in zip(jobs, futures, strict=True):
                yield _result(job, future)
        finally:
            # Who stops early, with Ctrl-C say, does not wait for points that nobody will look at.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()


def _start_worker() -> None:
    """A worker ends with its parent, however that ends, and leaves Ctrl-C to it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _result(job: tuple[Point, ClusterProfile, Path], future: Future[Measurement]) -> Measurement:
    try:
        return future.result()
    except BrokenProcessPool:
        # One process took the pool down with it: whose fault it was shows when each runs alone.
        with ProcessPoolExecutor(1, initializer=_start_worker) as alone:
            try:
                return alone.submit(measure, *job).result()
            except BrokenProcessPool:
                message = "the simulator's process died; that is a bug in mkbench"
                return Measurement(status="failed", message=message)


def measure(point: Point, cluster: ClusterProfile, built: Path) -> Measurement:
    """Simulate `point` with the library that was built of its kernel.

    Every sample has costs spread by its own seed, and data is checked where it is on.
    """
    began = time.perf_counter()
    hash_ = source_hash(point.kernel)
    try:
        library = load(built)
        samples: list[float] = []
        check: Check | None = None
        for sample in range(point.samples):
            seed = point.seed * 1_000_003 + sample
            with Simulation(library, point, cluster, seed=seed) as simulation:
                if point.data:
                    simulation.fill_inputs()
                result = simulation.run()
                check = verify(simulation) if point.data and result.status == "ok" else check
                status = "wrong" if check and check.mismatches else _STATUS[result.status]
                rows = simulation.history()
            samples += result.latencies_us
            if status != "ok":
                break
    except MkbenchError as error:
        return Measurement(status="failed", source_hash=hash_, message=str(error))
    return Measurement(
        status=status,
        samples_us=tuple(samples) if status == "ok" else (),
        check=check,
        network_bytes=result.payload_bytes,
        commands=result.commands,
        partition=Partition.of(point.blocks, point.start_comm_sms).to_json(),
        controller=timeline(rows, point) if status == "ok" else None,
        source_hash=hash_,
        message=_message(result, check),
        details={"events": result.events},
        meta={"wall_s": round(time.perf_counter() - began, 3)},
    )


def verify(simulation: Simulation) -> Check:
    """Compare every element of every rank, and the metadata beside it, bit for bit with what is exact."""
    point, kernel = simulation.point, workload(simulation.point.kernel)

    def reference(rank: int) -> Matrix:
        return kernel.reference(point.shape, rank, point.ranks, point.seed, "exact")

    first = reference(0)
    comparisons: list[Comparison] = []
    for rank in range(point.ranks):
        wanted = first if kernel.is_replicated else reference(rank)
        comparisons.append(compare(rank, simulation.output(rank), wanted, None))
        for name, values in metadata_outputs(kernel, point.shape, rank, point.ranks).items():
            written = simulation.metadata(rank, name, values.nbytes)
            comparisons.append(compare_metadata(rank, name, written, values))
    return merge(comparisons)


def _message(result: Result, check: Check | None) -> str | None:
    if check and check.mismatches:
        return f"{check.mismatches} of {check.elements} elements are wrong, first {check.first}"
    return result.report or None
