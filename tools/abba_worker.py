"""A rank of abba.py: two points are set up side by side and launched in turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkbench.build.cpu import build_library
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


def interleave(world: Intracomm, job: JobDirectory, beats: HeartbeatFile) -> None:
    """Measure the points of the job two by two."""
    points = job.read_points()
    for index in range(0, len(points), 2):
        for measurement in measure_pair(world, points[index : index + 2], beats):
            if world.rank == 0:
                print(REPORT_PREFIX + json.dumps(measurement.to_json()), flush=True)


def measure_pair(world: Intracomm, pair: Sequence[Point], beats: HeartbeatFile) -> list[Measurement]:
    """Warm both up, then launch A B B A; one that hangs or is wrong ends the pair."""
    library = KernelLibrary(build_library(pair[0].kernel))
    place = Place(world, pair[0].ranks_per_node)
    runs = [PointRun(place, point, beats, library, engine_for(point.platform)) for point in pair]
    samples: list[list[float]] = [[], []]
    messages = [_check(run, 0) for run in runs]
    if not any(messages):
        for run in runs:
            run.fill(run.point.seed, "normal")
        for index in range(2 * pair[0].samples + 4):
            which = (0, 1, 1, 0)[index % 4]
            launched = runs[which].launch(index + 1)
            if launched.has_hung:
                messages[which] = launched.why(library)
                break
            if index >= 4:
                samples[which].append(launched.slowest_us)
        else:
            messages = [_check(run, -1) for run in runs]
    for run, message in zip(runs, messages, strict=True):
        run.close(drain=message is None)
    place.free()
    return [
        Measurement("failed" if message else "ok", samples_us=tuple(times), message=message)
        for times, message in zip(samples, messages, strict=True)
    ]


def _check(run: PointRun, index: int) -> str | None:
    """Say what is wrong with a launch of exact inputs, or None."""
    run.fill(run.point.seed, "exact")
    run.poison()
    launched = run.launch(index)
    if launched.has_hung:
        return launched.why(run.library)
    check = run.verify()
    return f"{check.mismatches} wrong, {check.first}" if check.mismatches else None


if __name__ == "__main__":
    main(interleave)
