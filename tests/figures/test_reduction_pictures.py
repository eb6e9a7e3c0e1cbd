"""Ordered and atomic sums share no picture."""

from __future__ import annotations

from matplotlib.figure import Figure

from mkbench.figures import fig3
from mkbench.figures.frame import by_machine, to_frame


def test_ordered_and_atomic_records_share_no_picture(make) -> None:
    records = [
        make.record(kernel="ag_gemm") | {"reduction": None},
        make.record() | {"reduction": "ordered"},
        make.record(suffix="/atomic") | {"reduction": "atomic"},
    ]
    parts = by_machine(to_frame(records))
    assert [suffix for suffix, _ in parts] == ["-atomic", "-ordered"]
    # A kernel that sums nothing, and records from before the choice, belong to the usual ones.
    assert [sorted(rows["kernel"]) for _, rows in parts] == [["gemm_ar"], ["ag_gemm", "gemm_ar"]]
    assert [suffix for suffix, _ in by_machine(to_frame([make.record(), *records[:2]]))] == [""]


def test_atomic_is_said_at_the_bottom(make) -> None:
    def notes(reduction: str | None) -> list[str]:
        fig = Figure()
        fig3.draw(fig, fig3.prepare(to_frame(record | {"reduction": reduction} for record in make.sweep())))
        return [text.get_text() for text in fig.texts]

    assert [note for note in notes("atomic") if "partial sums added atomically, in any order" in note]
    assert not [note for note in notes("ordered") if "atomically" in note]
