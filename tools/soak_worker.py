"""A rank of the soak: many launches of a point with distinct inputs, all elements checked bit for bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mkbench.build.cpu import build_library
from mkbench.build.source_hash import source_hash
from mkbench.core.measurement import Measurement
from mkbench.core.point import Point
from mkbench.dist.engine import engine_for
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.job import REPORT_PREFIX, JobDirectory
from mkbench.dist.library import KernelLibrary
from mkbench.dist.place import Place
from mkbench.dist.point_run import PointRun
from mkbench.dist.worker import main

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def soak(world: Intracomm, job: JobDirectory, beats: HeartbeatFile) -> None:
    """Launch every point `samples` times; its seed counts up from the point's."""
    for point in job.read_points():
        measurement = soak_point(world, point, beats)
        if world.rank == 0:
            print(REPORT_PREFIX + json.dumps(measurement.to_json()), flush=True)


def soak_point(world: Intracomm, point: Point, beats: HeartbeatFile) -> Measurement:
    """Stop at the first launch that hangs or is wrong."""
    library = KernelLibrary(build_library(point.kernel))
    place = Place(world, point.ranks_per_node)
    run = PointRun(place, point, beats, library, engine_for(point.platform))
    status, message, done = "ok", None, 0
    samples = []
    for index in range(point.samples):
        run.fill(point.seed + index, "exact")
        run.poison()
        launched = run.launch(index)
        if launched.has_hung:
            status, message = "hang", launched.why(library)
            break
        samples.append(launched.slowest_us)
        check = run.verify()
        if check.mismatches:
            status = "wrong"
            message = f"launch {index}: {check.mismatches} of {check.elements}, {check.first}"
            break
        done += 1
    traffic = run.close(drain=status != "hang")
    place.free()
    return Measurement(
        status,
        samples_us=tuple(samples),
        network_bytes=traffic.bytes,
        commands=traffic.commands,
        source_hash=source_hash(point.kernel),
        message=message,
        details={"launches_right": done},
    )


if __name__ == "__main__":
    main(soak)
