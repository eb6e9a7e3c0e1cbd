import pandas as pd
import pytest
from matplotlib.figure import Figure

from mkbench.core.errors import UsageError
from mkbench.figures import fig7, style
from mkbench.figures.frame import to_frame

PAPER = 32768


def prepared(records):
    return fig7.prepare(to_frame(records))


def drawn(records) -> Figure:
    fig = Figure()
    with style.applied(salt="test"):
        fig7.draw(fig, prepared(records))
        fig.canvas.draw()
    return fig


def words(fig):
    return " | ".join(text.get_text() for text in fig.texts)


def test_the_shape_of_the_paper_is_chosen(make):
    tidy = prepared([make.adaptive(2048), make.adaptive(PAPER), make.adaptive(2 * PAPER)])
    assert set(tidy["shape_label"]) == {"M=N=32K, K=4K"}
    assert set(tidy["note"]) == {""}


def routed(entry, tokens=131072, **more):
    """`entry` as one of MoE dispatch, with the extents of the paper's shape sorted as in a record."""
    shape = {"experts": 256, "hidden": 7168, "inter": 2048, **more, "t": tokens, "topk": 8}
    return entry | {"kernel": "moe_dispatch_gemm", "size": tokens, "shape": shape}


def paper(make):
    """Records that hold both shapes of the paper, and others."""
    return [
        *(make.record(PAPER, c, latency=us) for c, us in ((8, 30.0), (16, 20.0))),
        *(make.adaptive(size) for size in (2048, PAPER)),
        *(routed(make.record(comm_sms=c, latency=us)) for c, us in ((16, 30.0), (44, 20.0))),
        *(routed(make.record(comm_sms=c, latency=us), skew=50) for c, us in ((2, 10.0), (44, 20.0))),
        *(routed(make.adaptive(), tokens) for tokens in (131072, 8192)),
        routed(make.adaptive(), skew=50),
    ]


def test_both_shapes_of_the_paper_have_a_panel_with_their_own_best_partition(make):
    tidy = prepared(paper(make))
    panels = tidy[["panel", "kernel", "shape_label", "note", "best_comm_sms"]].drop_duplicates()
    moe = "tokens=128K, hidden=7K, inter=2K, experts=256, top-k=8"
    assert panels.to_numpy().tolist() == [
        ["a", "gemm_ar", "M=N=32K, K=4K", "", 16],
        ["b", "moe_dispatch_gemm", moe, "", 44],
    ]


def smaller(make):
    """Records of other shapes only, of which panels have more to say."""
    return [make.adaptive(8192), routed(make.adaptive(), 8192)]


@pytest.mark.parametrize("records", [paper, smaller])
def test_panels_stay_apart_and_inside(make, records):
    fig = drawn([entry | {"check": None} for entry in records(make)])
    boxes = [axes.get_tightbbox() for axes in fig.axes] + [text.get_window_extent() for text in fig.texts]
    assert len(fig.axes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    assert all(
        box.x0 >= 0 and box.y0 >= 0 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1
        for box in boxes
        if box.width
    )


def test_every_sample_of_the_controller_is_a_row(make):
    history = make.history(900.0, best=24, samples=50)
    tidy = prepared([make.adaptive(PAPER, controller=history)])
    for name in fig7.SERIES:
        assert tidy[name].tolist() == history[name]


def test_the_best_fixed_partition_is_that_of_the_same_shape(make):
    static = [make.record(PAPER, c, latency=us) for c, us in ((8, 30.0), (16, 20.0), (32, 25.0))]
    other = [make.record(2048, c, latency=us) for c, us in ((8, 1.0), (16, 2.0))]
    assert set(prepared([*static, *other, make.adaptive(PAPER)])["best_comm_sms"]) == {16}


def test_no_fixed_partition_no_line(make):
    fig = drawn([make.adaptive(PAPER)])
    assert not [line for line in fig.axes[0].get_lines() if line.get_linestyle() == "--"]


def test_else_the_largest_is_taken_and_the_picture_says_so(make):
    fig = drawn([make.adaptive(2048), make.adaptive(4096), *smaller(make)])
    assert "(a) GEMM + AllReduce |" in words(fig)
    assert "top-k=8\nlargest adaptive record; tokens=128K is not among the records" in words(fig)
    assert "M=N=8K, K=1K\nlargest adaptive record; M=N=32K, K=4K is not among the records" in words(fig)


def test_a_skew_is_shown_only_if_there_is_nothing_else(make):
    plain, skewed = routed(make.adaptive(), 8192), routed(make.adaptive(), 16384, skew=50)
    assert set(prepared([plain, skewed])["shape_label"]) == {
        "tokens=8K, hidden=7K, inter=2K, experts=256, top-k=8"
    }
    assert set(prepared([skewed])["shape_label"]) == {
        "tokens=16K, hidden=7K, inter=2K, experts=256, top-k=8, skew 0.5"
    }


def test_a_failed_one_is_a_red_mark_and_a_row(make):
    records = [make.adaptive(8192), make.adaptive(PAPER, status="hang", message="rank 0 waits")]
    tidy = prepared(records)
    last = tidy.iloc[-1]
    assert (last["status"], last["reason"], last["shape_label"]) == ("hang", "rank 0 waits", "M=N=32K, K=4K")
    assert pd.isna(last["t_us"])
    assert tidy["t_us"].isna().sum() == 1
    fig = drawn(records)
    assert "M=N=32K, K=4K: hang" in words(fig)
    assert [line.get_color() for line in fig.axes[0].get_lines() if line.get_marker() == "x"] == [
        style.FAILED
    ]


@pytest.mark.parametrize(("status", "said"), [(None, "there is none"), ("oom", "there are only 1 oom")])
def test_nothing_to_draw_is_refused(make, status, said):
    records = make.sweep(sizes=(2048,), comm_sms=(8, 16))[:-1]
    if status:
        records.append(make.adaptive(2048, status=status))
    with pytest.raises(UsageError, match=said):
        prepared(records)


def test_lines(make):
    static = [make.record(PAPER, c) for c in (8, 16, 32)]
    upper, lower = drawn([*static, make.adaptive(PAPER)]).axes
    assert [line.get_label() for line in upper.get_lines()] == [
        "controller target", "blocks in that role", "best fixed: 16 SMs",
    ]  # fmt: skip
    assert upper.get_lines()[0].get_color() == style.OURS
    # The target may be at the best partition all the time.
    assert upper.get_lines()[2].get_zorder() > upper.get_lines()[0].get_zorder()
    assert [line.get_label() for line in lower.get_lines()] == ["compute", "communication"]


@pytest.mark.parametrize(("last", "unit", "end"), [(800.0, "us", 800), (12_000.0, "ms", 12)])
def test_time_is_in_the_unit_that_fits(make, last, unit, end):
    lower = drawn([make.adaptive(PAPER, controller=make.history(last, best=16))]).axes[1]
    assert lower.get_xlabel() == f"time since launch ({unit})"
    assert lower.get_lines()[0].get_xdata()[-1] == pytest.approx(end)


def test_text_stays_inside(make):
    records = [make.adaptive(8192), make.record(8192, 16), make.adaptive(PAPER, status="hang")]
    fig = drawn(records)
    boxes = [axes.get_tightbbox() for axes in fig.axes] + [text.get_window_extent() for text in fig.texts]
    assert all(
        box.x0 >= 0 and box.y0 >= 0 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1 for box in boxes
    )
    assert not fig.axes[0].get_tightbbox().overlaps(fig.axes[1].get_tightbbox())


@pytest.mark.parametrize("seen", [1.0, 0.5])
def test_a_history_that_filled_up_says_so(make, seen):
    history = make.history(1000.0, best=16)
    history["communication_progress"] = [seen * p for p in history["communication_progress"]]
    record = make.adaptive(PAPER, controller=history)
    record["latency_us"]["median"] = 4000.0
    upper, lower = drawn([record]).axes
    assert any("not recorded" in text.get_text() for text in lower.texts) == (seen < 1)
    assert upper.get_xlim()[1] == pytest.approx(4.04 if seen < 1 else 1.01)


def test_a_pace_is_said_beside_the_other_notes(make):
    record = make.adaptive(PAPER, platform="cuda") | {"pace": {"nvlink_gbps": None, "network_gbps": 50.0}}
    assert "paced to 50 GB/s of network a GPU" in words(drawn([record]))


def test_blocks_off_the_target_are_explained(make):
    fig = drawn([make.adaptive(PAPER, checked=False)])
    notes = [text for text in fig.texts if "nothing left" in text.get_text()]
    (unverified,) = (text for text in fig.texts if "not verified" in text.get_text())
    assert len(notes) == 1
    assert not notes[0].get_window_extent().overlaps(unverified.get_window_extent())
