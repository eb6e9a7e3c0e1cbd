"""Colours, type, marks and words that all figures share.

Colours tell apart under the common forms of colour blindness, and no meaning rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
import matplotlib.style
import pandas as pd
from matplotlib.figure import Figure

from mkbench.core.pace import Pace, parse_pace
from mkbench.core.units import format_size, format_skew

OURS = "#E8780A"  # the adaptive controller, in every figure
FAILED = "#C00020"
REFERENCE = "#7A7A7A"  # dashed lines to compare with
COMPUTE = "#0072B2"
COMMUNICATION = "#3B3B3B"
INK = "#222222"
MUTED = "#555555"
SMALL = 8.5  # points: the smallest type in any figure

MARKERS = ("o", "s", "^", "D", "v", "P", "p", "h")

#: Marks, as properties of a line: the best fixed partition, the adaptive controller, a point that failed.
RING: Mapping[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 9.5, "markerfacecolor": "none", "markeredgewidth": 1.4,
}  # fmt: skip
STAR: Mapping[str, Any] = {"linestyle": "none", "marker": "*", "markersize": 10, "color": OURS}
CROSS: Mapping[str, Any] = {
    "linestyle": "none", "marker": "x", "markersize": 6, "color": FAILED, "markeredgewidth": 1.8,
}  # fmt: skip

#: In the order of the paper, which is the order of panels.
KERNEL_TITLES = {
    "ag_gemm": "AllGather + GEMM",
    "gemm_rs": "GEMM + ReduceScatter",
    "gemm_ar": "GEMM + AllReduce",
    "moe_dispatch_gemm": "MoE dispatch + GEMM",
    "ring_attention": "Ring attention",
}

#: Extents of all kernels in the order in which people give them, with what they are called.
EXTENTS = {
    **{name: name.upper() for name in "mnk"},
    **{"t": "tokens", "hidden": "hidden", "inter": "inter", "experts": "experts", "topk": "top-k"},
    **{"s": "sequence", "b": "B", "h": "H", "g": "G", "d": "D", "causal": "causal"},
}

RC: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same glyphs, so the same bytes, everywhere
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "savefig.dpi": 200,
}


def applied(salt: str) -> AbstractContextManager[None]:
    """Draw and save in this style alone, whatever a matplotlibrc says; `salt` fixes the ids in SVG."""
    return matplotlib.style.context([{**RC, "svg.hashsalt": salt}], after_reset=True)


def size_colors(count: int) -> list[str]:
    """Colours for `count` ordered sizes: light for the smallest to dark for the largest."""
    ramp = matplotlib.colormaps["YlGnBu"]
    step = 0.6 / max(count - 1, 1)
    return [matplotlib.colors.to_hex(ramp(1.0 - step * (count - 1 - i))) for i in range(count)]


def kernel_title(kernel: str) -> str:
    """The name of a kernel as people write it; a kernel that is not known keeps its own."""
    return KERNEL_TITLES.get(kernel, kernel)


def in_order(shape: Mapping[str, int]) -> dict[str, int]:
    """`shape` in the order in which people give its extents, however the record sorted it."""
    known = {name: place for place, name in enumerate(EXTENTS)}
    return {name: shape[name] for name in sorted(shape, key=lambda name: (known.get(name, len(known)), name))}


def shape_label(shape: Mapping[str, int]) -> str:
    """{"m": 32768, "n": 32768, "k": 4096} -> "M=N=32K, K=4K": equal neighbours share their value."""
    groups: list[tuple[list[str], int]] = []
    for name, value in in_order(shape).items():
        if name == "skew":
            continue
        label = EXTENTS.get(name, name)
        if groups and groups[-1][1] == value:
            groups[-1][0].append(label)
        else:
            groups.append(([label], value))
    words = [f"{'='.join(names)}={format_size(value)}" for names, value in groups]
    return ", ".join(words + ([format_skew(shape["skew"])] if "skew" in shape else []))


def machine_label(row: Mapping[str, Any]) -> str:
    """Title words for the machine that a row of a tidy table was taken on."""
    nodes, per_node = int(row["nodes"]), int(row["ranks_per_node"])
    ranks = f"{nodes} {'node' if nodes == 1 else 'nodes'} x {per_node} {'rank' if per_node == 1 else 'ranks'}"
    transport = "" if nodes == 1 else f", transport {row['transport']}"
    return f"{row['cluster']}  ({ranks}, platform {row['platform']}{transport})"


def measured_label(row: Mapping[str, Any]) -> str:
    """What measured records were measured on; empty for simulated ones, which have their own mark."""
    if row["simulated"]:
        return ""
    if row["platform"] == "host":
        return "measured on a CPU: every block is a thread, no time here is a GPU's"
    per_gpu = row.get("ranks_per_gpu")
    if pd.isna(per_gpu) or int(per_gpu) == 1:
        return "measured, one rank a GPU"
    ranks, gpu = int(row["nodes"]) * int(row["ranks_per_node"]), str(row.get("hardware") or "GPU").upper()
    gpus = -(-ranks // int(per_gpu))
    return f"measured on a virtual cluster, {ranks} ranks on {'one' if gpus == 1 else gpus} {gpu}"


def sms(count: int) -> str:
    """1 -> "1 SM", 2 -> "2 SMs"."""
    return f"{count} {'SM' if count == 1 else 'SMs'}"


def header(fig: Figure, title: str, row: Mapping[str, Any], *, margin: float) -> None:
    """Title, machine, and whether it was simulated or what it was measured on; `margin` is in inches."""
    width, height = fig.get_size_inches()
    left, right = margin / width, 1 - margin / width
    fig.text(left, 1 - 0.14 / height, title, fontsize=11.5, fontweight="bold", va="top")
    fig.text(left, 1 - 0.38 / height, machine_label(row), fontsize=9, color=MUTED, va="top")
    fig.text(left, 1 - 0.55 / height, measured_label(row), fontsize=9, color=MUTED, va="top")
    if row["simulated"]:
        box = {"boxstyle": "square,pad=0.35", "facecolor": INK, "edgecolor": INK}
        fig.text(
            right, 1 - 0.19 / height, "SIMULATED", fontsize=11, fontweight="bold", color="white",
            ha="right", va="top", bbox=box,
        )  # fmt: skip


def footnote(df: pd.DataFrame) -> str:
    """What a reader must know of the results in a tidy table and would not expect; may be empty."""
    first = df.iloc[0]
    words = [] if df.loc[df["status"] == "ok", "verified"].all() else ["results not verified (data off)"]
    if not pd.isna(first["pace"]):
        words.append(Pace.of(parse_pace(first["pace"])).words)
    if first["network_memory"] == "device":
        words.append("network buffers in GPU memory")
    if first["reduction"] == "atomic":
        words.append("partial sums added atomically, in any order")
    return "; ".join(words)


def draw_footnote(fig: Figure, words: str, *, margin: float, bottom: float) -> None:
    """Write `words` in the bottom left corner; distances in inches."""
    width, height = fig.get_size_inches()
    fig.text(margin / width, bottom / height, words, va="bottom", fontsize=SMALL, color=MUTED)
