"""One panel of figure 3: the curves, and at their right the strip with the stars."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from mkbench.figures import fig3_table, style
from mkbench.figures.frame import rows_of

# Inches inside one cell.
TITLE, PLOT, XLABEL, TABLE_ROW, GAP = 0.32, 2.75, 0.5, 0.2, 0.2
YLABEL, STRIP, STRIP_GAP, EDGE = 0.62, 0.8, 0.05, 0.12

LOG_FROM = 3.0  # spread at which a linear axis would press the neighbourhood of 1 flat
LOG_TICKS = (1, 10, 100, 1000, 2, 5, 20, 50, 200, 500, 3, 1.5, 7, 4, 30, 15, 1.2, 0.5, 0.8)  # first ones win
LOG_TICK_SPACE = 0.055  # of the axis: labels nearer than that would touch
FAILED_TOP, FAILED_STEP = 0.97, 0.055  # axes fractions


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of a panel: `x` from the left and `y` from the top of the figure, in inches."""

    fig: Figure
    x: float
    y: float
    width: float

    def axes(self, left: float, top: float, width: float, height: float, sharey: Axes | None = None) -> Axes:
        """Axes at an offset from the cell's top left corner, all in inches."""
        w, h = self.fig.get_size_inches()
        box = ((self.x + left) / w, 1 - (self.y + top + height) / h, width / w, height / h)
        return self.fig.add_axes(box, sharey=sharey)


def height(sizes: int) -> float:
    """Height in inches of a cell whose table has a row for each of `sizes`."""
    return TITLE + PLOT + XLABEL + TABLE_ROW * (sizes + 1) + GAP


def draw_panel(cell: Cell, df: pd.DataFrame) -> None:
    """Draw the rows of one kernel."""
    plot_width = cell.width - YLABEL - STRIP_GAP - STRIP - EDGE
    ax = cell.axes(YLABEL, TITLE, plot_width, PLOT)
    strip = cell.axes(YLABEL + plot_width + STRIP_GAP, TITLE, STRIP, PLOT, sharey=ax)
    groups = [group for _, group in df.groupby("shape_label", sort=False)]
    colors = style.size_colors(len(groups))
    _scale(ax, df)
    for axes in (ax, strip):
        axes.axhline(1.0, color=style.REFERENCE, linestyle="--", linewidth=1.1, zorder=1.5)
    for i, (group, color) in enumerate(zip(groups, colors, strict=True)):
        _curve(ax, group, color, style.MARKERS[i % len(style.MARKERS)])
        _star(strip, group, color, (i + 0.75) / (len(groups) + 0.5))
    _failed(ax, df[(df["policy"] == "static") & (df["status"] != "ok")])
    _dress(ax, df)
    _dress_strip(strip)
    strip.set_visible(bool((df["policy"] == "adaptive").any()))
    width, rows = cell.width - YLABEL - EDGE, len(groups) + 1
    table = cell.axes(YLABEL, TITLE + PLOT + XLABEL, width, TABLE_ROW * rows)
    fig3_table.draw_table(table, groups, colors, width)


def _scale(ax: Axes, df: pd.DataFrame) -> None:
    """Limits that hold every value, with room at the top for the red marks; logarithmic for a wide spread."""
    shown = df[["relative", "relative_low", "relative_high"]].to_numpy(float)
    finite = shown[np.isfinite(shown)]
    values = np.append(finite, 1.0) if finite.size else np.array([0.5, 1.5])
    low, high = float(values.min()), float(values.max())
    failed = df[df["status"] != "ok"]
    stacked = max(failed.groupby(["policy", "comm_sms"], dropna=False).size(), default=0)
    room = 0.05 + (FAILED_STEP * stacked + 0.03 if stacked else 0)
    room = min(room, 0.6) / (1 - min(room, 0.6))  # of the axis -> of the span of the values
    if high / low >= LOG_FROM:
        span = math.log(high / low)
        low, high = low * math.exp(-0.06 * span), high * math.exp(room * span)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(FixedLocator(_log_ticks(low, high)))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        span = max(high - low, 0.1)
        low, high = low - 0.06 * span, high + room * span
        ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.set_ylim(low, high)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values between `low` and `high` whose labels do not touch on a logarithmic axis."""
    space = LOG_TICK_SPACE * math.log(high / low)
    ticks: list[float] = []
    for tick in LOG_TICKS:
        if low <= tick <= high and all(abs(math.log(tick / other)) >= space for other in ticks):
            ticks.append(tick)
    return sorted(ticks)


def _curve(ax: Axes, group: pd.DataFrame, color: str, marker: str) -> None:
    ok = group[(group["policy"] == "static") & group["relative"].notna()]
    x, y = ok["comm_sms"].to_numpy(float), ok["relative"].to_numpy(float)
    ax.plot(x, y, color=color, marker=marker, markeredgecolor="white", markeredgewidth=0.4, zorder=3)
    if (ok["n"] > 1).any():
        low, high = ok["relative_low"].to_numpy(float), ok["relative_high"].to_numpy(float)
        ax.vlines(x, low, high, color=color, alpha=0.45, linewidth=3.2, zorder=2)
    best = ok["is_best"].to_numpy(bool)
    ax.plot(x[best], y[best], **{**style.RING, "markeredgecolor": color}, zorder=4, clip_on=False)


def _star(strip: Axes, group: pd.DataFrame, color: str, x: float) -> None:
    for row in rows_of(group[group["policy"] == "adaptive"]):
        if row["status"] != "ok":
            _cross(strip, x, FAILED_TOP)
        elif math.isfinite(row["relative"]):
            if row["n"] > 1:
                interval = [row["relative_low"], row["relative_high"]]
                strip.plot([x, x], interval, color=style.OURS, linewidth=1.2, zorder=3)
            star = {**style.STAR, "markeredgecolor": color, "markeredgewidth": 0.7}
            strip.plot([x], [row["relative"]], **star, zorder=4, clip_on=False)


def _failed(ax: Axes, failed: pd.DataFrame) -> None:
    """A red x at the top edge for each failed partition; several sizes at one partition are stacked."""
    level: dict[int, int] = {}
    for sms in failed["comm_sms"].astype(int):
        _cross(ax, sms, FAILED_TOP - FAILED_STEP * level.get(sms, 0))
        level[sms] = level.get(sms, 0) + 1


def _cross(ax: Axes, x: float, y: float) -> None:
    """A red x at data position `x`, at the axes fraction `y`."""
    ax.plot([x], [y], **style.CROSS, transform=ax.get_xaxis_transform(), zorder=5, clip_on=False)


def _dress(ax: Axes, df: pd.DataFrame) -> None:
    ax.set_title(style.kernel_title(df["kernel"].iloc[0]), loc="left", fontweight="bold")
    blocks = df["blocks"].dropna()
    of = f" (of {int(blocks.iloc[0])})" if blocks.nunique() == 1 else ""
    ax.set_xlabel(f"communication SMs{of}")
    scale = " (log)" if ax.get_yscale() == "log" else ""
    ax.set_ylabel(f"latency / lowest fixed partition{scale}")
    sms = df["comm_sms"].dropna().to_numpy(float)
    if sms.size:
        pad = max(0.04 * float(np.ptp(sms)), 0.5)
        ax.set_xlim(float(sms.min()) - pad, float(sms.max()) + pad)
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=2))


def _dress_strip(strip: Axes) -> None:
    strip.set_xlim(0, 1)
    strip.set_xticks([0.5], ["adaptive"])
    strip.tick_params(axis="x", length=0)
    strip.tick_params(axis="y", left=False, labelleft=False)
    strip.grid(visible=False, axis="x")
    strip.spines["left"].set_visible(False)
    strip.set_facecolor("#FFF6EC")
