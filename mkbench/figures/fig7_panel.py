"""One panel of figure 7: the controller's target over the progress of both roles, on one time axis."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from mkbench.figures import style

# Inches.
TITLE, LEGEND, TARGET, BETWEEN, PROGRESS, XLABEL = 0.62, 0.24, 1.75, 0.12, 1.45, 0.5
YLABEL, EDGE = 0.62, 0.15
HEIGHT = TITLE + LEGEND + TARGET + BETWEEN + LEGEND + PROGRESS + XLABEL


def draw_panel(fig: Figure, df: pd.DataFrame, *, x: float, y: float, width: float) -> None:
    """Draw the rows of one panel at `x` from the left and `y` from the top, in inches."""
    w, h = fig.get_size_inches()
    left, inner = (x + YLABEL) / w, (width - YLABEL - EDGE) / w
    top = y + TITLE + LEGEND
    below = top + TARGET + BETWEEN + LEGEND
    upper = fig.add_axes((left, 1 - (top + TARGET) / h, inner, TARGET / h))
    lower = fig.add_axes((left, 1 - (below + PROGRESS) / h, inner, PROGRESS / h), sharex=upper)
    first = df.iloc[0]
    title = f"({first['panel']}) {style.kernel_title(first['kernel'])}"
    words = "\n".join(filter(None, (first["shape_label"], first["note"])))
    fig.text(left, 1 - (y + 0.04) / h, title, fontsize=10, fontweight="bold", va="top")
    fig.text(left, 1 - (y + 0.25) / h, words, fontsize=style.SMALL, color=style.MUTED, va="top")

    samples = df[df["t_us"].notna()]
    last = float(samples["t_us"].max())
    per_unit, unit = (1000.0, "ms") if last >= 1000 else (1.0, "us")
    time = samples["t_us"].to_numpy(float) / per_unit
    _target(upper, samples, time)
    _progress(lower, samples, time)
    end = _end(samples)
    lower.set_xlim(0, end / per_unit * 1.01 if end > 0 else 1)
    if end > last:
        for axes in (upper, lower):
            axes.axvspan(last / per_unit, end / per_unit, color="#EFEFEF", linewidth=0, zorder=1)
        words = "history full: not recorded\n(up to the median latency)"
        place = (0.985 * end / per_unit, 0.2)  # low: progress is high there
        lower.text(*place, words, ha="right", va="center", fontsize=style.SMALL, color=style.MUTED)
    lower.set_xlabel(f"time since launch ({unit})")
    upper.tick_params(labelbottom=False)
    if (df["status"] != "ok").any():
        upper.plot([0.985], [0.95], **style.CROSS, transform=upper.transAxes, clip_on=False, label="failed")
    for axes in (upper, lower):
        _legend(axes)
    fig.align_ylabels([upper, lower])


def _end(samples: pd.DataFrame) -> float:
    """Where time ends in us: at the last sample, or at the median latency if the history filled up before."""
    last, latency = float(samples["t_us"].max()), float(samples["latency_us"].iloc[0])
    is_whole = samples["communication_progress"].max() > 0.98 or last > 0.95 * latency
    return last if is_whole else latency


def sides_note(fig: Figure, *, margin: float, bottom: float) -> None:
    """Say in the bottom left corner why blocks are not at the target; distances in inches."""
    width, height = fig.get_size_inches()
    words = (
        "Blocks above the target: released by compute, which has nothing left or nothing ready; below it:\n"
        "lent to compute while no communication is ready. A block changes sides only between two tasks."
    )
    place = (margin / width, bottom / height)
    fig.text(*place, words, va="bottom", fontsize=style.SMALL, color=style.MUTED, linespacing=1.3)


def _target(ax: Axes, samples: pd.DataFrame, time: NDArray[np.float64]) -> None:
    target, blocks = samples["target"].to_numpy(float), samples["communication_blocks"].to_numpy(float)
    tops = [1.0, float(np.nanmax(target))]
    # The target holds until the next sample, so a step is what happened; a slope is not.
    ax.step(time, target, where="post", color=style.OURS, linewidth=1.8, label="controller target", zorder=3)
    if np.isfinite(blocks).any():
        ax.step(time, blocks, where="post", color="#9DB6C9", linewidth=1.1, label="blocks in that role")
        tops.append(float(np.nanmax(blocks)))
    best = samples["best_comm_sms"].iloc[0]
    if not pd.isna(best):
        label = f"best fixed: {style.sms(best)}"
        # Above the target, which may be as high for most of the time.
        ax.axhline(float(best), color=style.REFERENCE, linestyle="--", linewidth=1.2, label=label, zorder=4)
        tops.append(float(best))
    ax.set_ylim(0, max(tops) * 1.15)
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set_ylabel("communication SMs")


def _progress(ax: Axes, samples: pd.DataFrame, time: NDArray[np.float64]) -> None:
    compute, communication = samples["compute_progress"], samples["communication_progress"]
    ax.plot(time, compute, color=style.COMPUTE, linewidth=1.8, label="compute")
    ax.plot(time, communication, color=style.COMMUNICATION, linestyle=(0, (4, 1.6)), label="communication")
    ax.set_ylim(0, 1.04)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    ax.set_ylabel("progress")


def _legend(ax: Axes) -> None:
    """Above the axes, where there is no data to cover."""
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles, labels, ncols=len(labels), loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2,
        borderpad=0, handlelength=1.8, columnspacing=1.4,
    )  # fmt: skip
