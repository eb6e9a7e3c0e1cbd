"""The controller's history of one launch in the form that records keep."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SAMPLES = 256
_COLUMNS = {
    "target": "target",
    "compute_progress": "compute_done",
    "communication_progress": "communication_done",
    "compute_blocks": "computing",
    "communication_blocks": "communicating",
}


def controller_history(rows: NDArray[Any], start_ns: int) -> dict[str, list[float]]:
    """Columns over t_us since `start_ns`, at most MOST_SAMPLES of them, the first and the last included.

    Progress is a fraction of the tasks that were done in the end.
    """
    if len(rows) > MOST_SAMPLES:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_SAMPLES).round().astype(int)]
    columns = {"t_us": (rows["time_ns"].astype(np.int64) - start_ns) / 1e3}
    for name, field in _COLUMNS.items():
        column = rows[field].astype(float)
        if name.endswith("progress") and len(column):
            column /= max(column[-1], 1.0)
        columns[name] = column
    return {name: column.tolist() for name, column in columns.items()}
