"""Figure 7: what the controller did during one launch: its target, and how far each role had come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from mkbench.core.errors import UsageError
from mkbench.figures import fig7_panel, points, style
from mkbench.figures.frame import MACHINE, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The shape that the paper shows, by kernel, in the order of the panels.
WANTED: Mapping[str, Mapping[str, int]] = {
    "gemm_ar": {"m": 32768, "n": 32768, "k": 4096},
    "moe_dispatch_gemm": {"t": 131072, "hidden": 7168, "inter": 2048, "experts": 256, "topk": 8},
}

SERIES = ("t_us", "target", "communication_blocks", "compute_progress", "communication_progress")
COLUMNS = (
    "panel", "kernel", "shape_label", "note", "status", "reason", *SERIES, "best_comm_sms", "latency_us",
    "blocks", "verified", *MACHINE, "hardware", "ranks_per_gpu", "simulated", "key",
)  # fmt: skip

TITLE = "The adaptive controller during one launch"

# Inches.
HEADER, FOOTER, MARGIN, PANEL_WIDTH = 0.8, 0.48, 0.15, 6.4


@dataclass(frozen=True, slots=True)
class Choice:
    """The record that a panel shows, why it is not the wanted one, and the wanted one if it failed."""

    shown: Mapping[str, Any]
    note: str = ""
    failed: Mapping[str, Any] | None = None


def prepare(df: pd.DataFrame) -> pd.DataFrame:
    """One row a sample: time in us, target and actual communication blocks, progress of both roles (0..1).

    If the wanted shape has no adaptive record that is ok, the largest shape that has one is taken and
    ``note`` says so; if it is there but failed, a row with its status and reason and no sample comes along.
    Raises UsageError if no adaptive record can be drawn.
    """
    rows = points.drawable(df)
    rows = rows[rows["kernel"].isin(list(WANTED))]
    panels: list[pd.DataFrame] = []
    for kernel, wanted in WANTED.items():
        of_kernel = rows[rows["kernel"] == kernel]
        choice = _choose(rows_of(of_kernel[of_kernel["is_adaptive"]]), wanted)
        if choice:
            panels.append(_panel("abcdef"[len(panels)], choice, of_kernel))
    if not panels:
        adaptive = rows[rows["is_adaptive"]]
        have = f"there are only {points.describe_statuses(adaptive)}" if len(adaptive) else "there is none"
        raise UsageError(
            f"fig7 needs an adaptive record of {' or '.join(WANTED)} with its controller history; {have}",
            hint="sweep with --policy static,adaptive",
        )
    return pd.concat(panels, ignore_index=True)[list(COLUMNS)]


def _choose(records: list[dict[str, Any]], wanted: Mapping[str, int]) -> Choice | None:
    """`records` are the adaptive ones of a kernel, the largest last."""
    usable = [r for r in records if r["status"] == "ok" and (r["controller"] or {}).get("t_us")]
    if not usable:
        return None
    # Who is not asked for a skew is shown none.
    largest = ([r for r in usable if "skew" not in r["shape"]] or usable)[-1]
    other = {name: extent for name, extent in wanted.items() if largest["shape"].get(name) != extent}
    label = style.shape_label(other or wanted)
    exact = next((r for r in records if r["shape"] == wanted), None)
    if exact is None:
        return Choice(largest, f"largest adaptive record; {label} is not among the records")
    if exact["status"] != "ok":
        return Choice(largest, f"largest adaptive record; {label}: {exact['status']}", failed=exact)
    if exact not in usable:
        return Choice(largest, f"largest adaptive record; {label} has no controller history")
    return Choice(exact)


def _panel(letter: str, choice: Choice, of_kernel: pd.DataFrame) -> pd.DataFrame:
    history = choice.shown["controller"]
    samples = pd.DataFrame({name: pd.Series(history.get(name), dtype=float) for name in SERIES})
    best = points.best_partition(of_kernel[of_kernel["shape_label"] == choice.shown["shape_label"]])
    parts = [_with_record(samples, choice.shown, best)]
    if choice.failed:
        no_sample = pd.DataFrame(float("nan"), index=[0], columns=list(SERIES))
        parts.append(_with_record(no_sample, choice.failed, None))
    return pd.concat(parts, ignore_index=True).assign(panel=letter, note=choice.note)


def _with_record(samples: pd.DataFrame, record: Mapping[str, Any], best: int | None) -> pd.DataFrame:
    """`samples` with the record's own columns, and the best fixed partition of its shape, on every row."""
    own = {name: record[name] for name in COLUMNS if name in record}
    return samples.assign(**own, best_comm_sms=pd.array([best] * len(samples), dtype="Int64"))


def draw(fig: Figure, df: pd.DataFrame) -> None:
    """Draw what `prepare` returned: a column a panel, the target above, progress below."""
    panels = [panel for _, panel in df.groupby("panel", sort=True)]
    words = style.footnote(df)
    note = 0.2 if words else 0.0
    height = HEADER + fig7_panel.HEIGHT + FOOTER + note
    fig.set_size_inches(2 * MARGIN + PANEL_WIDTH * len(panels), height)
    style.header(fig, TITLE, rows_of(df)[0], margin=MARGIN + 0.1)
    for i, panel in enumerate(panels):
        fig7_panel.draw_panel(fig, panel, x=MARGIN + i * PANEL_WIDTH, y=HEADER, width=PANEL_WIDTH)
    fig7_panel.sides_note(fig, margin=MARGIN + 0.1, bottom=0.12 + note)
    style.draw_footnote(fig, words, margin=MARGIN + 0.1, bottom=0.1)
