"""What figures 3 and 7 share: which records are drawn, and which fixed partition of a series is the best."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from mkbench.core.errors import UsageError
from mkbench.core.selection import best_static
from mkbench.figures.style import KERNEL_TITLES, shape_label


def drawable(df: pd.DataFrame) -> pd.DataFrame:
    """The static and adaptive records of the machine itself, with a ``shape_label``, in the order of drawing.

    That order is kernel (as in the paper), work, skew, policy (static first), communication SMs. Records
    taken with injected faults are left out. Raises UsageError if two records are of one point.
    """
    rows = df[df["policy"].isin(["static", "adaptive"]) & ~df["faulted"]]
    rows = rows.assign(
        shape_label=[shape_label(shape) for shape in rows["shape"]],
        work=[work(shape) for shape in rows["shape"]],
        skew=[shape.get("skew", 0) for shape in rows["shape"]],
        panel_order=rows["kernel"].map({kernel: i for i, kernel in enumerate(KERNEL_TITLES)}),
        is_adaptive=rows["policy"] == "adaptive",
    ).sort_values(
        ["panel_order", "kernel", "work", "skew", "shape_label", "is_adaptive", "comm_sms"], kind="stable"
    )
    twice = rows[rows.duplicated(["kernel", "shape_label", "policy", "comm_sms"], keep=False)]
    if not twice.empty:
        first, second = twice["key"].iloc[:2]
        raise UsageError(
            f"two records of one point: {first} and {second}", hint="draw one run directory at a time"
        )
    return rows


def work(shape: Mapping[str, int]) -> int:
    """A number that orders the shapes of one kernel: the product of their extents.

    What is zero, as `causal` may be, is no extent, nor is a skew.
    """
    return math.prod(extent for name, extent in shape.items() if extent and name != "skew")


def best_partition(rows: pd.DataFrame) -> int | None:
    """Communication SMs of the best fixed partition among the `rows` of one series; None if none is ok."""
    ok = rows[(rows["policy"] == "static") & (rows["status"] == "ok")]
    if ok.empty:
        return None
    return best_static(
        {int(sms): float(us) for sms, us in zip(ok["comm_sms"], ok["latency_us"], strict=True)}
    )


def describe_statuses(rows: pd.DataFrame) -> str:
    """What became of records that cannot be drawn, as in "4 hang, 1 oom"."""
    counts = rows["status"].value_counts().sort_index()
    return ", ".join(f"{count} {status}" for status, count in counts.items())
