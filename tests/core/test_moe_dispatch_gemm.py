import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.cluster import load_cluster
from mkbench.core.errors import UsageError
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.moe_dispatch_gemm import MoeDispatchGemm
from mkbench.core.workloads.routing import Deal, routing_of

MOE = MoeDispatchGemm()


def shape(t: int, hidden: int, inter: int, experts: int, topk: int, **skew: int) -> Shape:
    return Shape(t=t, hidden=hidden, inter=inter, experts=experts, topk=topk, **skew)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    experts = draw(st.integers(1, 20))
    skew = draw(st.sampled_from(({}, {"skew": 120}, {"skew": 2000})))
    return shape(
        draw(st.integers(1, 300)), draw(st.integers(1, 90)), draw(st.integers(1, 40)), experts,
        draw(st.integers(1, min(6, experts))), **skew,
    )  # fmt: skip


def test_size_is_all_tokens() -> None:
    assert MOE.shape_of(4096, 16) == shape(4096, 7168, 2048, 256, 8)
    assert MOE.shape_of(4096, 16).label == "t4096hidden7168inter2048experts256topk8"
    with pytest.raises(UsageError, match="not positive"):
        MOE.shape_of(0, 16)


def test_a_shape_in_full() -> None:
    dims = {"topk": 2, "experts": 4, "t": 10, "inter": 5, "hidden": 6}
    assert MOE.shape_from(dims) == shape(10, 6, 5, 4, 2)
    assert MOE.shape_from(dims | {"skew": 0}) == shape(10, 6, 5, 4, 2)
    assert MOE.shape_from(dims | {"skew": 120}).label == "t10hidden6inter5experts4topk2skew120"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"m": 1}, "unknown dimension 'm'"),
        ({"t": 0}, "needs a positive t"),
        ({"topk": 5}, "topk 5 is more than the limit of 4"),
        ({"experts": 3000}, "experts 3000 is more than the limit of 2048"),
        ({"hidden": 3 << 20}, "hidden 3145728 is more than the limit of"),
        ({"t": 2**30}, "t 1073741824 is more than the limit of 16777216"),
    ],
)
def test_bad_dimensions(change: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        MOE.shape_from({"t": 10, "hidden": 6, "inter": 5, "experts": 4, "topk": 2} | change)
    assert caught.value.hint


def test_a_chunk_is_16_tokens_or_what_one_command_moves() -> None:
    assert MOE.chunk_tiles_for(MOE.shape_of(4096, 16), 8) == 16
    assert MOE.chunk_tiles_for(shape(9, 32768, 8, 4, 2), 8) == 8
    assert MOE.chunk_tiles_for(shape(9, 1 << 20, 8, 4, 2), 8) == 1
    with pytest.raises(UsageError, match="17 tokens of 262144 bytes are more than a command"):
        MOE.parameters(shape(9, 131072, 8, 4, 2), 2, 2, 17)
    assert MOE.parameters(shape(9, 131072, 8, 4, 2), 2, 2, 15)["chunk_tokens"] == 15


@settings(max_examples=40, deadline=None)
@given(
    shape=shapes(), nodes=st.integers(1, 3), ranks_per_node=st.integers(1, 4), seed=st.integers(0, 2**32 - 1)
)
def test_the_reference_by_definition_in_integers(
    shape: Shape, nodes: int, ranks_per_node: int, seed: int
) -> None:
    ranks, routing = nodes * ranks_per_node, routing_of(shape)
    inputs = [MOE.inputs(shape, rank, ranks, seed) for rank in range(ranks)]
    x = np.concatenate([each["x"] for each in inputs]).astype(np.int64)
    w = (
        np.concatenate([each["w"] for each in inputs])
        .astype(np.int64)
        .reshape(shape.experts, shape.hidden, shape.inter)
    )
    assert x.shape == (shape.t, shape.hidden)
    rows = 0
    for rank in range(ranks):
        expected = [
            x[token] @ w[expert]
            for expert in Deal(shape, nodes, ranks_per_node).experts(rank)
            for token in range(shape.t)
            if expert in routing.experts[token]
        ]
        result = MOE.reference(shape, rank, ranks, seed)
        end = MOE.output(shape, rank, ranks)
        assert result.shape == (end.rows, end.columns) == (len(expected), shape.inter)
        assert np.array_equal(result, np.array(expected).reshape(result.shape))
        assert np.array_equal(round_to_bf16(result), result)
        rows += end.rows
    assert rows == shape.t * shape.topk


@settings(max_examples=30, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**32 - 1))
def test_no_partial_sum_of_the_exact_family_can_be_rounded(shape: Shape, seed: int) -> None:
    """The sum of magnitudes bounds every partial sum."""
    inputs = MOE.inputs(shape, 0, 1, seed)
    weights = np.abs(inputs["w"]).reshape(shape.experts, shape.hidden, shape.inter)
    assert max(float((np.abs(inputs["x"]) @ weight).max()) for weight in weights) <= 256


def test_tokens_and_weights_are_not_the_same_numbers() -> None:
    inputs = MOE.inputs(shape(64, 64, 64, 2, 1), 0, 1, 5, "normal")
    assert not np.isin(inputs["w"], inputs["x"]).all()
    other = MOE.inputs(shape(64, 64, 64, 2, 1), 1, 2, 5, "normal")
    assert not np.isin(other["x"], MOE.inputs(shape(64, 64, 64, 2, 1), 0, 2, 5, "normal")["w"]).all()


@pytest.mark.parametrize("hidden", [1, 64, 700])
def test_the_tolerance_holds_and_catches_a_wrong_expert(hidden: int) -> None:
    problem = shape(96, hidden, 80, 4, 2)
    reference = MOE.reference(problem, 0, 2, 3, "normal")
    assert np.abs(round_to_bf16(reference) - reference).max() <= MOE.tolerance(problem, 2)
    if hidden >= 64:
        wrong = np.abs(np.roll(reference, 1, axis=0) - reference) > MOE.tolerance(problem, 2)
        assert wrong.mean() > 0.5


def test_metadata_is_the_routing_of_the_own_tokens() -> None:
    problem = shape(10, 6, 5, 4, 2)
    parts = [MOE.metadata_inputs(problem, rank, 4) for rank in range(4)]
    assert [len(part["ids"]) for part in parts] == [3, 3, 3, 1]
    assert np.array_equal(np.concatenate([part["ids"] for part in parts]), routing_of(problem).experts)
    assert np.array_equal(np.concatenate([part["weights"] for part in parts]), routing_of(problem).weights)


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), nodes=st.integers(1, 4), ranks_per_node=st.integers(1, 5), chunk=st.integers(1, 20))
def test_buffers_hold_the_worst_and_the_real_routing(
    shape: Shape, nodes: int, ranks_per_node: int, chunk: int
) -> None:
    ranks = nodes * ranks_per_node
    buffers = {buffer.name: buffer for buffer in MOE.buffers(shape, nodes, ranks_per_node, chunk)}
    parameters = MOE.parameters(shape, nodes, ranks_per_node, chunk)
    assert all(buffer.bytes % 128 == 0 for buffer in buffers.values())
    assert parameters["lda"] % 64 == 0 <= parameters["lda"] - shape.hidden < 64
    assert parameters["ldb"] % 8 == 0 <= parameters["ldb"] - shape.inter < 8
    deal = Deal(shape, nodes, ranks_per_node)
    blocks = [
        sum(-(-int(rows) // 128) for rows in deal.expert_rows()[list(deal.experts(rank))])
        for rank in range(ranks)
    ]
    assert max(blocks) <= parameters["most_blocks"]
    assert buffers["gathered"].bytes >= parameters["most_blocks"] * 128 * parameters["lda"] * 2
    assert [MOE.tiles(shape, ranks, rank) for rank in range(ranks)] == [
        count * -(-shape.inter // 256) for count in blocks
    ]
    for rank in range(ranks):
        assert buffers["out"].bytes >= MOE.output(shape, rank, ranks).bytes
    moved = {name for name, buffer in buffers.items() if buffer.network}
    assert moved == {"list_outbox", "list_inbox", "outbox", "receive"}
    assert all((buffers[name].bytes > 0) == (nodes > 1) for name in moved)


def test_a_token_crosses_once_to_a_node_however_many_experts_it_has_there() -> None:
    # Two nodes of one rank; every token has all four experts, two on each node.
    problem = shape(300, 100, 8, 4, 4)
    rows, header, entry = 128 * 2, 16, 8
    # A rank has 150 tokens in one window, each with two entries for the other node.
    assert MOE.network_bytes(problem, 2, 1) == 2 * (150 * rows + header + 300 * entry)
    assert MOE.network_bytes(problem, 1, 2) == 0
    # Four nodes: each has one expert; the header grows with the experts of a node, in steps of 16 bytes.
    assert MOE.network_bytes(problem, 4, 1) == 4 * 3 * (75 * rows + header + 608)


def test_no_token_crosses_to_a_node_without_an_expert_for_it() -> None:
    # All tokens choose the one most popular expert, on one of the nodes.
    problem = shape(512, 64, 8, 2, 1, skew=9000)
    assert sorted(Deal(problem, 2, 1).rows().tolist()) == [0, 512]
    assert MOE.network_bytes(problem, 2, 1) == 256 * 128 + 2 * 16 + 256 * 8


def test_lower_bound_is_the_slowest_tier_of_the_busiest_rank() -> None:
    two = load_cluster("2x8-h200-ib")
    even = MOE.shape_of(32768, 16)
    rows = int(Deal(even, 2, 8).rows().max())
    assert rows > 32768 * 8 / 16
    compute = 2 * rows * 7168 * 2048 / 989.5e12 * 1e6
    # Nearly every token has an expert on the other node.
    network = 2048 * 7168 * 2 / 50e9 * 1e6
    assert MOE.lower_bound_us(even, two) == pytest.approx(max(compute, network), rel=0.01)
    # 8192 of 16 experts of no size: what enters over NVLink counts on one node.
    tiny = shape(8192, 4096, 1, 16, 16)
    one = load_cluster("1x8-h100")
    assert MOE.lower_bound_us(tiny, one) == pytest.approx(8192 * 7 / 8 * 4096 * 2 / 450e9 * 1e6)
    assert MOE.lower_bound_us(tiny, load_cluster("host")) is None


def test_adaptive_starts_with_blocks_for_both() -> None:
    cluster = load_cluster("2x8-h200-ib")
    starts = [MOE.start_comm_sms(MOE.shape_of(size, 16), cluster) for size in (4096, 32768)]
    assert all(5 <= start <= 60 for start in starts)
    assert MOE.start_comm_sms(MOE.shape_of(512, 2), load_cluster("host")) == 2
    assert MOE.tasks(MOE.shape_of(4096, 16), 2, 8, 16) == (
        MOE.tiles(MOE.shape_of(4096, 16), 16, 0),
        2 * 16 + 256,
    )
    assert MOE.flops_per_rank(MOE.shape_of(4096, 16), 16) == 2 * 4096 * 8 * 7168 * 2048 / 16


def test_a_size_has_the_limit_of_a_shape() -> None:
    with pytest.raises(UsageError, match="t 67108864 is more than the limit of 16777216"):
        MOE.shape_of(64 << 20, 8)
