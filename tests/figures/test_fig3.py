import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mkbench.core.errors import UsageError
from mkbench.core.selection import TIE
from mkbench.figures import fig3, style
from mkbench.figures.frame import to_frame

latencies = st.dictionaries(
    st.integers(1, 100), st.floats(1.0, 1e6, allow_nan=False), min_size=1, max_size=12
)


def prepared(records):
    return fig3.prepare(to_frame(records))


def lines_of(fig, **properties):
    """Lines in all axes with these properties, the table's samples left out."""
    plots = [axes for axes in fig.axes if axes.axison and axes.get_visible()]
    lines = [line for axes in plots for line in axes.get_lines()]
    return [line for line in lines if all(getattr(line, f"get_{k}")() == v for k, v in properties.items())]


def drawn(records) -> Figure:
    fig = Figure()
    with style.applied(salt="test"):
        fig3.draw(fig, prepared(records))
        fig.canvas.draw()
    return fig


def test_latency_is_relative_to_the_best_fixed_partition(make):
    records = [make.record(comm_sms=c, latency=us) for c, us in ((4, 300.0), (8, 150.0), (16, 200.0))]
    tidy = prepared([*records, make.record(policy="adaptive", latency=165.0)])
    assert tidy["relative"].tolist() == pytest.approx([2.0, 1.0, 4 / 3, 1.1])
    assert tidy["best_comm_sms"].tolist() == [8] * 4
    assert tidy["lowest_latency_us"].tolist() == [150.0] * 4


def test_a_tie_goes_to_fewer_communication_sms(make):
    tie = 100 * (1 + 0.9 * TIE)
    slow, tied, lowest = (8, 110.0), (16, tie), (32, 100.0)
    tidy = prepared([make.record(comm_sms=c, latency=us) for c, us in (slow, tied, lowest)])
    assert tidy["is_best"].tolist() == [False, True, False]
    assert tidy["relative"].tolist() == pytest.approx([slow[1] / 100, tie / 100, 1.0])


def test_the_interval_is_scaled_like_the_median(make):
    tidy = prepared([make.record(comm_sms=c, latency=us, n=9) for c, us in ((8, 200.0), (16, 100.0))])
    assert tidy["relative_low"].tolist() == pytest.approx([1.96, 0.98])
    assert tidy["relative_high"].tolist() == pytest.approx([2.04, 1.02])


def test_every_size_has_its_own_reference(make):
    tidy = prepared(make.sweep(sizes=(8192, 2048)))
    assert tidy["series"].drop_duplicates().tolist() == ["2K", "8K"]
    static = tidy[tidy["policy"] == "static"]
    assert static.groupby("series")["relative"].min().tolist() == [1.0, 1.0]
    stars = tidy[tidy["policy"] == "adaptive"]
    assert (stars["relative"] == stars["latency_us"] / stars["lowest_latency_us"]).all()


def test_a_failed_point_stays_with_its_reason(make):
    failed = make.record(comm_sms=4, status="hang", message="rank 3 waits for flag ready")
    tidy = prepared([failed, make.record(comm_sms=8, latency=10.0)])
    row = tidy[tidy["comm_sms"] == 4].iloc[0]
    assert (row["status"], row["reason"]) == ("hang", "rank 3 waits for flag ready")
    assert tidy["relative"].isna().tolist() == [True, False]
    assert tidy["is_best"].tolist() == [False, True]


def test_an_explicit_shape_names_its_series(make):
    record = make.record() | {"size": None, "shape": {"m": 1000, "n": 2048, "k": 64}}
    assert prepared([record])["series"].tolist() == ["1000x2Kx64"]


def of_shape(entry, **shape):
    """`entry` of that shape, as a record has it: its extents sorted by name."""
    return entry | {"shape": dict(sorted(shape.items()))}


def routed(entry, tokens, skew=0):
    shape = {"t": tokens, "hidden": 7168, "inter": 2048, "experts": 256, "topk": 8}
    return of_shape(entry | {"size": tokens}, **shape, **({"skew": skew} if skew else {}))


def test_a_skew_is_a_series_of_its_own_after_the_uniform_one(make):
    cases = [(131072, 0), (32768, 1000), (32768, 0), (32768, 50), (32768, 200)]
    records = [
        routed(make.record(kernel="moe_dispatch_gemm", comm_sms=c, latency=us + skew), tokens, skew)
        for tokens, skew in cases
        for c, us in ((8, 300.0), (16, 150.0))
    ]
    tidy = prepared(records)
    assert tidy["series"].drop_duplicates().tolist() == [
        "32K", "32K, skew 0.5", "32K, skew 2", "32K, skew 10", "128K",
    ]  # fmt: skip
    assert tidy.groupby("series", sort=False)["lowest_latency_us"].unique().explode().tolist() == [
        150.0, 200.0, 350.0, 1150.0, 150.0,
    ]  # fmt: skip
    assert len(lines_of(drawn(records), linestyle="-")) == len(cases)


def test_a_skewed_shape_in_full_names_its_skew(make):
    entry = routed(make.record(kernel="moe_dispatch_gemm"), 32768, 50) | {"size": None}
    assert prepared([entry])["series"].tolist() == ["32Kx7Kx2Kx256x8, skew 0.5"]


def test_sequences_ascend_though_causal_is_zero(make):
    rest = {"b": 4, "h": 16, "g": 16, "d": 128, "causal": 0}
    sizes = (196608, 24576, 98304, 12288)
    records = [
        of_shape(make.record(size, kernel="ring_attention"), s=size, **rest) | {"size": size}
        for size in sizes
    ]
    assert prepared(records)["series"].tolist() == ["12K", "24K", "96K", "192K"]


def test_a_kernel_without_fixed_partitions_keeps_its_panel(make):
    fig = drawn([*make.sweep(), make.adaptive(kernel="ag_gemm")])
    assert [axes.get_title(loc="left") for axes in fig.axes if axes.get_title(loc="left")] == [
        "AllGather + GEMM", "GEMM + AllReduce",
    ]  # fmt: skip


def test_panels_follow_the_paper(make):
    records = [make.record(kernel=kernel) for kernel in ("ring_attention", "gemm_ar", "mine", "ag_gemm")]
    assert prepared(records)["kernel"].tolist() == ["ag_gemm", "gemm_ar", "ring_attention", "mine"]


def test_injected_faults_are_not_drawn(make):
    slowed = make.record(comm_sms=8, latency=1.0, faults=["network_slow@5usx2"])
    assert prepared([make.record(comm_sms=8, latency=9.0), slowed])["latency_us"].tolist() == [9.0]


def test_two_records_of_one_point_are_refused(make):
    with pytest.raises(UsageError, match=r"^two records of one point: gemm_ar/\S+ and gemm_ar/\S+$"):
        prepared([make.record(), make.record(suffix="/chunk2")])


def test_adaptive_alone_is_refused(make):
    with pytest.raises(UsageError, match="needs records of fixed partitions"):
        prepared([make.adaptive()])


def test_only_failures_are_refused_with_their_statuses(make):
    statuses = ("hang", "oom", "hang")
    with pytest.raises(UsageError, match="only 2 hang, 1 oom"):
        prepared([make.record(comm_sms=i + 1, status=status) for i, status in enumerate(statuses)])


@settings(max_examples=30, deadline=None)
@given(latencies)
def test_normalisation(make, by_partition):
    tidy = prepared([make.record(comm_sms=c, latency=us) for c, us in by_partition.items()])
    best = tidy[tidy["is_best"]]
    lowest = min(by_partition.values())
    assert len(best) == 1
    assert best["latency_us"].iloc[0] <= (1 + TIE) * lowest
    assert all(us > (1 + TIE) * lowest for c, us in by_partition.items() if c < best["comm_sms"].iloc[0])
    assert tidy["relative"].min() == 1.0
    latency = (tidy["relative"] * tidy["lowest_latency_us"]).tolist()
    assert latency == pytest.approx(tidy["latency_us"].tolist())


@settings(max_examples=30, deadline=None)
@given(latencies, st.sampled_from([0.25, 2.0, 1024.0]))
def test_a_slower_clock_changes_nothing(make, by_partition, factor):
    once = prepared([make.record(comm_sms=c, latency=us) for c, us in by_partition.items()])
    scaled = prepared([make.record(comm_sms=c, latency=us * factor) for c, us in by_partition.items()])
    assert scaled["relative"].tolist() == once["relative"].tolist()  # powers of two: exact
    assert scaled["is_best"].tolist() == once["is_best"].tolist()


def test_every_size_has_a_curve_a_ring_and_a_star(make):
    fig = drawn(make.sweep(sizes=(2048, 4096, 8192)))
    assert len(lines_of(fig, marker="*")) == 3
    assert {line.get_color() for line in lines_of(fig, marker="*")} == {style.OURS}
    assert len(lines_of(fig, markerfacecolor="none")) == 3
    assert [len(line.get_xdata()) for line in lines_of(fig, linestyle="-")] == [16, 16, 16]
    assert len(lines_of(fig, marker="x")) == 0
    assert [line.get_ydata()[0] for line in lines_of(fig, linestyle="--")] == [1.0, 1.0]


def test_failures_are_red_marks_that_do_not_cover_each_other(make):
    records = make.sweep(sizes=(2048, 8192))
    for record in records:
        if record["comm_sms"] == 4 or (record["policy"] == "adaptive" and record["size"] == 8192):
            record.update(status="hang", latency_us=None)
    crosses = lines_of(drawn(records), marker="x")
    places = [(line.axes, line.get_xdata()[0], line.get_ydata()[0]) for line in crosses]
    assert len(set(places)) == 3
    assert {line.get_color() for line in crosses} == {style.FAILED}
    assert all(0.85 < y < 1 for _, _, y in places)


def test_intervals_appear_with_more_than_one_sample(make):
    assert sum(len(axes.collections) for axes in drawn(make.sweep(n=1)).axes) == 0
    assert sum(len(axes.collections) for axes in drawn(make.sweep(n=5)).axes) == 2


@pytest.mark.parametrize(("lowest", "scale"), [(4, "log"), (48, "linear")])
def test_the_scale_follows_the_spread(make, lowest, scale):
    fig = drawn(make.sweep(sizes=(4096,), comm_sms=range(lowest, 65, 4)))
    assert fig.axes[0].get_yscale() == scale


def test_the_mark_of_simulated_records(make):
    words = {platform: [text.get_text() for text in drawn(make.sweep(platform=platform)).texts]
             for platform in ("sim", "host")}  # fmt: skip
    assert "SIMULATED" in words["sim"]
    assert "SIMULATED" not in words["host"]
    assert any("1x8-h100" in text and "platform host" in text for text in words["host"])


def test_one_sm_is_not_plural(make):
    fig = drawn([make.record(comm_sms=1, latency=1.0), make.record(2048 * 2, 2, latency=1.0)])
    cells = [text.get_text() for axes in fig.axes if not axes.axison for text in axes.texts]
    assert [cell for cell in cells if cell.split()[-1:] in (["SM"], ["SMs"])] == ["1 SM", "2 SMs"]


def test_an_unverified_result_is_said_beside_nothing_else(make):
    assert not [text for text in drawn(make.sweep()).texts if "not verified" in text.get_text()]
    fig = drawn(make.sweep(checked=False))
    (note,) = (text.get_window_extent() for text in fig.texts if "not verified" in text.get_text())
    assert not note.overlaps(fig.legends[0].get_window_extent())
    assert note.y0 >= 0


def test_a_pace_and_buffers_in_gpu_memory_are_said_at_the_bottom(make):
    pace = {"nvlink_gbps": 450.0, "network_gbps": 50.0}
    records = [r | {"pace": pace, "network_memory": "device"} for r in make.sweep(platform="cuda")]
    fig = drawn(records)
    (note,) = (text for text in fig.texts if "paced to 450 GB/s of NVLink" in text.get_text())
    assert "network buffers in GPU memory" in note.get_text()
    box = note.get_window_extent()
    assert not box.overlaps(fig.legends[0].get_window_extent())
    assert box.y0 >= 0
    assert box.x1 <= fig.bbox.x1
    assert not [text for text in drawn(make.sweep(platform="cuda")).texts if "pace" in text.get_text()]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_panels_do_not_overlap_and_stay_inside(make, count):
    kernels = list(style.KERNEL_TITLES)[:count]
    fig = drawn([r for kernel in kernels for r in make.sweep(kernel=kernel, comm_sms=(8, 16, 32))])
    boxes = [axes.get_tightbbox() for axes in fig.axes]
    assert len(boxes) == 3 * count
    plots = [axes.get_tightbbox() for axes in fig.axes if axes.axison]
    tables = [axes.get_window_extent() for axes in fig.axes if not axes.axison]
    mains = plots[::2]
    assert not any(a.overlaps(b) for i, a in enumerate(mains) for b in mains[i + 1 :])
    assert not any(a.overlaps(b) for a in plots for b in tables)
    assert all(
        box.x0 >= 0 and box.y0 >= 0 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1 for box in boxes
    )


def test_five_panels_are_three_in_a_row_and_two_below(make):
    fig = drawn([r for kernel in style.KERNEL_TITLES for r in make.sweep(kernel=kernel, comm_sms=(8, 16))])
    mains = [axes.get_window_extent() for axes in fig.axes if axes.get_title(loc="left")]
    titles = [axes.get_title(loc="left") for axes in fig.axes if axes.get_title(loc="left")]
    assert titles == list(style.KERNEL_TITLES.values())
    upper, lower = mains[:3], mains[3:]
    assert len({round(box.y0) for box in upper}) == len({round(box.y0) for box in lower}) == 1
    assert upper[0].y0 > lower[0].y1
    assert [round(box.x0) for box in lower] == [round(box.x0) for box in upper[:2]]
    assert upper[0].x1 < upper[1].x0 < upper[1].x1 < upper[2].x0


def test_long_names_of_skewed_sizes_have_room(make):
    records = []
    for skew in (0, 50, 100):
        for c in (8, 16):
            records.append(routed(make.record(kernel="moe_dispatch_gemm", comm_sms=c), 131072, skew))
        records.append(routed(make.adaptive(kernel="moe_dispatch_gemm"), 131072, skew))
    for kernel in ("gemm_ar", "gemm_rs"):
        records += make.sweep(kernel=kernel, comm_sms=(8, 16))
    fig = drawn(records)
    for table in (axes for axes in fig.axes if not axes.axison):
        boxes = [text.get_window_extent() for text in table.texts if text.get_text()]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.parametrize("shape", [{"m": 32768, "n": 32768, "k": 4096}, {"m": 20001, "n": 20001, "k": 12289}])
@pytest.mark.parametrize("count", [1, 3])
def test_words_of_the_table_do_not_touch(make, shape, count):
    records = []
    for kernel in list(style.KERNEL_TITLES)[:count]:
        broken = make.record(kernel=kernel, comm_sms=2, status="hang")
        measured = [make.record(kernel=kernel, comm_sms=c, n=2) for c in (8, 16)]
        records += [record | {"size": None, "shape": shape} for record in (broken, *measured)]
        records.append(make.adaptive(kernel=kernel) | {"size": None, "shape": shape})
    fig = drawn(records)
    tables = [axes for axes in fig.axes if not axes.axison]
    assert len(tables) == count
    for table in tables:
        boxes = [text.get_window_extent() for text in table.texts if text.get_text()]
        assert len(boxes) == 10
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
