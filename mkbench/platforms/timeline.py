"""The controller's history of one launch, thinned for a record."""

from __future__ import annotations

import numpy as np

from mkbench.core.plan import Point
from mkbench.core.workloads import workload
from mkbench.platforms.launch_parameters import Record

ROWS = 200


def timeline(rows: Record, point: Point) -> dict[str, list[float]] | None:
    """Return columns of one length: t_us from the start, target, progress (0 to 1), blocks of each side.

    At most ROWS rows, evenly picked, the last one always. None if the controller wrote none, as it does with
    a fixed partition.
    """
    if len(rows) == 0:
        return None
    rows = np.sort(rows, order="time_ns")
    picked = rows[np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).round().astype(int)]
    where = (point.nodes, point.ranks_per_node, point.chunk_tiles)
    compute, communication = workload(point.kernel).tasks(point.shape, *where)
    start = float(rows["time_ns"][0])
    return {
        "t_us": [round((float(t) - start) / 1e3, 3) for t in picked["time_ns"]],
        "target": [float(n) for n in picked["target"]],
        "compute_progress": [round(float(n) / compute, 4) for n in picked["compute_done"]],
        "communication_progress": [
            round(float(n) / max(1, communication), 4) for n in picked["communication_done"]
        ],
        "compute_blocks": [float(n) for n in picked["computing"]],
        "communication_blocks": [float(n) for n in picked["communicating"]],
    }
