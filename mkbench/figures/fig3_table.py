"""The words of figure 3: the table below a panel, which is its legend too, and the key of marks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mkbench.core.selection import TIE
from mkbench.core.units import format_us
from mkbench.figures import style
from mkbench.figures.frame import rows_of

# Inches: the piece of line before a size, where sizes begin, a letter of theirs, the column after them.
SAMPLE, SIZE, LETTER, COLUMN = (0.0, 0.15, 0.3), 0.4, 0.08, 0.75
SHORT = 5  # letters of a size that fit without more room; a shape given in full takes more


def extra_width(series: Iterable[str]) -> float:
    """Inches that a panel must be wider than usual for the longest name of a size."""
    return LETTER * max(0, max(map(len, series)) - SHORT)


def draw_table(ax: Axes, groups: Sequence[pd.DataFrame], colors: Sequence[str], width: float) -> None:
    """Sizes with their line and their results, a row for each group; `width` is that of `ax` in inches."""
    lines = [_line(group) for group in groups]
    titles = [title for title in lines[0] if any(line[title] for line in lines)]
    longest = max(len(group["series"].iloc[0]) for group in groups)
    right = np.linspace(max(0.46 * width, SIZE + LETTER * longest + COLUMN), width, len(titles)).tolist()
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(len(groups) + 1, 0)
    _write(ax, 0.5, "size", right, titles, style.MUTED)
    ax.plot([0, width], [1, 1], color="#C8C8C8", linewidth=0.7)
    for i, (group, line, color) in enumerate(zip(groups, lines, colors, strict=True)):
        y, marker = i + 1.5, style.MARKERS[i % len(style.MARKERS)]
        ax.plot(SAMPLE, [y] * len(SAMPLE), color=color, marker=marker, markevery=[1])
        _write(ax, y, group["series"].iloc[0], right, [line[title] for title in titles], style.INK)


def _write(ax: Axes, y: float, size: str, right: Sequence[float], cells: Sequence[str], color: str) -> None:
    ax.text(SIZE, y, size, va="center", fontsize=style.SMALL, color=color)
    for x, text in zip(right, cells, strict=True):
        ax.text(x, y, text, ha="right", va="center", fontsize=style.SMALL, color=color)


def _line(group: pd.DataFrame) -> dict[str, str]:
    """What the table says about one size, by column; a column that is empty for every size is left out."""
    failed = int((group["status"] != "ok").sum())
    line = {"best fixed": "-", "lowest": "-", "adaptive": "", "failed": str(failed) if failed else ""}
    for row in rows_of(group[group["is_best"]]):
        line["best fixed"] = style.sms(row["comm_sms"])
        line["lowest"] = format_us(row["lowest_latency_us"])
    for row in rows_of(group[group["policy"] == "adaptive"]):
        if row["status"] != "ok":
            line["adaptive"] = row["status"]
        elif math.isfinite(row["relative"]):
            line["adaptive"] = f"{row['relative']:.3f}x"
        else:
            line["adaptive"] = format_us(row["latency_us"])
    return line


def note_height(df: pd.DataFrame) -> float:
    """Inches below the key for the footnote."""
    return 0.22 if style.footnote(df) else 0.0


def draw_key(fig: Figure, df: pd.DataFrame, *, margin: float, bottom: float) -> None:
    """What the marks mean, in one line at the bottom (distances in inches); only marks that occur."""
    width, height = fig.get_size_inches()
    ok = df[df["status"] == "ok"]
    ring = Line2D([], [], **style.RING, color=style.INK)
    entries = [
        (ring, f"best fixed: fewest SMs within {100 * TIE:g} % of the lowest", True),
        (Line2D([], [], **style.STAR), "adaptive", bool((ok["policy"] == "adaptive").any())),
        (Patch(facecolor=style.MUTED, alpha=0.25, linewidth=0), "95 % CI", bool((ok["n"] > 1).any())),
        (Line2D([], [], **style.CROSS), "failed", bool((df["status"] != "ok").any())),
    ]
    shown = [(handle, label) for handle, label, occurs in entries if occurs]
    fig.legend(
        [handle for handle, _ in shown], [label for _, label in shown], ncols=len(shown), loc="lower left",
        bbox_to_anchor=(margin / width, (bottom + note_height(df)) / height), borderaxespad=0, borderpad=0,
        handletextpad=0.5, columnspacing=1.4,
    )  # fmt: skip
    style.draw_footnote(fig, style.footnote(df), margin=margin, bottom=bottom)
