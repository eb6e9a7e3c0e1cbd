"""Figure 3: latency of every fixed partition, relative to the best one, and of the adaptive controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from mkbench.core.errors import UsageError
from mkbench.core.units import format_size, format_skew
from mkbench.figures import fig3_panel, fig3_table, points, style
from mkbench.figures.frame import MACHINE, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    "kernel", "series", "policy", "comm_sms", "status", "reason", "relative", "relative_low", "relative_high",
    "is_best", "latency_us", "ci_low_us", "ci_high_us", "n", "best_comm_sms", "lowest_latency_us",
    "lower_bound_us", "verified", "blocks", "shape_label", *MACHINE, "hardware", "ranks_per_gpu",
    "simulated", "key",
)  # fmt: skip

TITLE = "Fixed partitions and the adaptive controller"

#: Panels in a row, by number of panels; more than four panels are three in a row.
PANELS_A_ROW = {1: 1, 2: 2, 3: 3, 4: 2}

# Inches; the width of a panel depends on how many share a row.
HEADER, FOOTER, MARGIN = 0.66, 0.34, 0.15
CELL_WIDTH = {1: 5.6, 2: 4.3, 3: 4.0}


def prepare(df: pd.DataFrame) -> pd.DataFrame:
    """One row for each point of the picture, failed points included.

    ``relative`` is the median latency over the lowest of a fixed partition of the same kernel and shape. Of
    the partitions that tie for it, ``is_best`` marks the one with the fewest communication SMs. ``relative``
    is null where the point failed (``reason`` says why) and where no fixed partition is ok. Raises UsageError
    if no fixed partition at all is ok.
    """
    rows = points.drawable(df)
    static = rows[rows["policy"] == "static"]
    if static.empty:
        raise UsageError("fig3 needs records of fixed partitions", hint="sweep with --policy static,adaptive")
    if not (static["status"] == "ok").any():
        raise UsageError(
            f"fig3 needs a fixed partition that is ok; there are only {points.describe_statuses(static)}",
            hint="the message of each record says why",
        )
    series = [_normalised(group) for _, group in rows.groupby(["kernel", "shape_label"], sort=False)]
    return pd.concat(series, ignore_index=True)[list(COLUMNS)]


def _normalised(group: pd.DataFrame) -> pd.DataFrame:
    best = points.best_partition(group)
    is_best = (group["policy"] == "static") & (group["comm_sms"] == best).fillna(False).astype(bool)
    is_fixed = (group["policy"] == "static") & (group["status"] == "ok")
    reference = group.loc[is_fixed, "latency_us"].min()
    return group.assign(
        series=_series(group["size"].iloc[0], group["shape"].iloc[0]),
        relative=group["latency_us"] / reference,
        relative_low=group["ci_low_us"] / reference,
        relative_high=group["ci_high_us"] / reference,
        is_best=is_best,
        best_comm_sms=pd.array([best] * len(group), dtype="Int64"),
        lowest_latency_us=reference,
    )


def _series(size: int | None, shape: Mapping[str, int]) -> str:
    """ "32K", "32K, skew 0.5", or "1000x2Kx64" for a shape given in full."""
    skew = [format_skew(shape["skew"])] if "skew" in shape else []
    extents = {name: extent for name, extent in style.in_order(shape).items() if name != "skew"}
    name = "x".join(map(format_size, extents.values())) if pd.isna(size) else format_size(int(size))
    return ", ".join([name, *skew])


def draw(fig: Figure, df: pd.DataFrame) -> None:
    """Draw what `prepare` returned: a panel a kernel, with the table of its sizes below it."""
    panels = [panel for _, panel in df.groupby("kernel", sort=False)]
    across = PANELS_A_ROW.get(len(panels), 3)
    down = -(-len(panels) // across)
    width = CELL_WIDTH[across] + fig3_table.extra_width(df["series"])
    height = fig3_panel.height(max(panel["shape_label"].nunique() for panel in panels))
    footer = FOOTER + fig3_table.note_height(df)
    fig.set_size_inches(2 * MARGIN + across * width, HEADER + down * height + footer)
    style.header(fig, TITLE, rows_of(df)[0], margin=MARGIN + 0.1)
    for i, panel in enumerate(panels):
        x, y = MARGIN + (i % across) * width, HEADER + (i // across) * height
        fig3_panel.draw_panel(fig3_panel.Cell(fig, x, y, width), panel)
    fig3_table.draw_key(fig, df, margin=MARGIN + 0.1, bottom=0.12)
