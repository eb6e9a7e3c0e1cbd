"""The points of a job on one rank: build, set up, launch, verify, time. Every rank runs the same steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mkbench.build.cpu import build_library
from mkbench.build.errors import BuildFailed
from mkbench.build.source_hash import source_hash
from mkbench.core.measurement import Check, Measurement
from mkbench.core.partition import Partition
from mkbench.core.point import Point
from mkbench.core.workloads.base import Family
from mkbench.dist.engine import engine_for
from mkbench.dist.errors import OutOfDeviceMemory
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.library import KernelLibrary
from mkbench.dist.place import Place
from mkbench.dist.point_run import PointRun, Round
from mkbench.platforms.timeline import timeline

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

Rows = NDArray[Any]

#: Launches before the timed ones; the first is a check.
WARM_UP = 2
_BUILD_DEADLINE_S = 300.0


def measure_points(world: Intracomm, points: Sequence[Point], beats: HeartbeatFile) -> Iterator[Measurement]:
    """Yield one measurement a point, in order; the controller's history is each rank's own. Collective."""
    place: Place | None = None
    for point in points:
        if place is None or place.topology.ranks_per_node != point.ranks_per_node:
            if place is not None:
                place.free()
            place = Place(world, point.ranks_per_node)
        place.require(point.nodes, point.ranks_per_node)
        yield _measure(place, point, beats)
    if place is not None:
        place.free()


def _measure(place: Place, point: Point, beats: HeartbeatFile) -> Measurement:
    started = time.perf_counter()
    beats.enter("build", deadline_s=_BUILD_DEADLINE_S, point=point.key)
    library = _build(place, point.kernel)
    if isinstance(library, str):
        return Measurement("build_failed", source_hash=source_hash(point.kernel), message=library)
    try:
        run = PointRun(place, point, beats, library, engine_for(point.platform))
    except OutOfDeviceMemory as error:
        return Measurement("oom", source_hash=source_hash(point.kernel), message=str(error))
    return _conclude(run, *_launches(run), started)


def _build(place: Place, kernel: str) -> KernelLibrary | str:
    """Build on one rank of each node while the others wait, who find it in the cache; or say what failed."""
    path: Path | None = None
    failure: str | None = None
    for builds in (place.local_rank == 0, place.local_rank != 0):
        if builds:
            path, failure = _try_build(kernel)
        failures: list[str | None] = place.world.allgather(failure)
        failure = next(filter(None, failures), None)
        if failure is not None:
            return failure
    assert path is not None
    return KernelLibrary(path)


def _try_build(kernel: str) -> tuple[Path | None, str | None]:
    try:
        return build_library(kernel), None
    except BuildFailed as error:
        return None, f"{error}; {error.hint}"


def _launches(run: PointRun) -> tuple[list[Round], Check | None, Rows | None]:
    """Check with exact inputs, warm up, time, check the last timed launch and the exact inputs again.

    Stops at the first launch that hangs or is wrong. The timed launches are `rounds[WARM_UP:-1]`; the rows are
    the controller's history of the last of them.
    """
    point, rounds = run.point, list[Round]()
    timed_family: Family = "normal" if point.family == "normal" else "exact"
    last_timed = WARM_UP + point.samples - 1
    check: Check | None = None
    rows: Rows | None = None
    for index in range(last_timed + 2):
        if index in (0, last_timed + 1):
            run.fill(point.seed, "exact")
        elif index == 1:
            run.fill(point.seed, timed_family)
        is_verified = index in (0, last_timed, last_timed + 1)
        if is_verified:
            run.poison()
        rounds.append(run.launch(index))
        if rounds[-1].has_hung:
            return rounds, None, None
        if index == last_timed:
            rows = run.history()
        if is_verified:
            check = run.verify()
            if check.mismatches:
                break
    return rounds, check, rows


def _verdict(run: PointRun, last: Round, check: Check | None) -> tuple[str, str | None]:
    if last.has_hung:
        return "hang", last.why(run.library)
    if check is not None and check.mismatches:
        return "wrong", f"{check.mismatches} of {check.elements} elements are wrong, first {check.first}"
    return "ok", None


def _conclude(
    run: PointRun, rounds: Sequence[Round], check: Check | None, rows: Rows | None, started: float
) -> Measurement:
    point, last = run.point, rounds[-1]
    status, message = _verdict(run, last, check)
    machine = run.machine()
    traffic = run.close(drain=not last.has_hung)
    timed = rounds[WARM_UP:-1] if status == "ok" else []
    return Measurement(
        status,
        samples_us=tuple(round_.slowest_us for round_ in timed),
        check=check,
        network_bytes=traffic.bytes // len(rounds),
        commands=traffic.commands // len(rounds),
        partition=Partition.of(point.blocks, point.start_comm_sms).to_json(),
        controller=timeline(rows, point) if status == "ok" and rows is not None else None,
        source_hash=source_hash(point.kernel),
        message=message,
        details={"launches": len(rounds), "start_skew_us": run.skews_us(timed), **machine},
        meta={"wall_s": time.perf_counter() - started, "hosts": run.hosts},
    )
