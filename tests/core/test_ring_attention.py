from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.cluster import load_cluster
from mkbench.core.errors import UsageError
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.attention_inputs import pieces
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.ring_attention import RingAttention

RING = RingAttention()
shapes = st.builds(
    Shape,
    b=st.integers(1, 2),
    h=st.just(4),
    g=st.sampled_from((1, 2, 4)),
    s=st.integers(1, 3000),
    d=st.sampled_from((64, 128)),
    causal=st.integers(0, 1),
)


def test_lookup() -> None:
    assert workload("ring_attention") is KERNELS["ring_attention"]


def test_size_is_the_whole_sequence() -> None:
    assert RING.shape_of(4096, 16) == Shape(b=4, h=16, g=16, s=4096, d=128, causal=0)
    assert RING.shape_of(4096, 16).label == "b4h16g16s4096d128causal0"


def test_a_shape_has_defaults() -> None:
    assert RING.shape_from({"s": 100, "h": 8}) == Shape(b=4, h=8, g=8, s=100, d=128, causal=0)
    whole = {"b": 1, "h": 6, "g": 2, "s": 7, "d": 64, "causal": 1}
    assert RING.shape_from(whole).to_json() == whole


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({}, "needs s"),
        ({"s": 0}, "needs s"),
        ({"s": 1 << 31}, "needs s"),
        ({"s": 1, "b": 0}, "needs b"),
        ({"s": 1, "h": 4, "g": 3}, "evenly"),
        ({"s": 1, "d": 96}, "no d = 96"),
        ({"s": 1, "causal": 2}, "no causal = 2"),
        ({"s": 1, "m": 1}, "'m'"),
    ],
)
def test_bad_dimensions(dims: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        RING.shape_from(dims)


def test_flops_are_four_d_a_score() -> None:
    full = Shape(b=2, h=8, g=2, s=100, d=64, causal=0)
    assert RING.flops_per_rank(full, 4) == 4 * 2 * 8 * 100 * 100 * 64 / 4
    causal = Shape(b=2, h=8, g=2, s=100, d=64, causal=1)
    assert RING.flops_per_rank(causal, 4) == 4 * 2 * 8 * (100 * 101 / 2) * 64 / 4


def tiles(shape: Shape, rank: int, ranks: int) -> list[tuple[int, int]]:
    """First and last position of each tile of a rank."""
    return [
        (first, min(first + 128, piece.first + piece.rows) - 1)
        for piece in pieces(shape, rank, ranks)
        for first in range(piece.first, piece.first + piece.rows, 128)
    ]


@settings(deadline=None)
@given(shape=shapes, nodes=st.integers(1, 3), ranks_per_node=st.integers(1, 4))
def test_tasks_are_the_tiles_of_the_rank_that_has_the_most(
    shape: Shape, nodes: int, ranks_per_node: int
) -> None:
    ranks = nodes * ranks_per_node
    cut = [tiles(shape, rank, ranks) for rank in range(ranks)]
    keys = [tile for each in cut for tile in each]
    seen = [sum(not shape.causal or k[0] <= q[1] for q in each for k in keys) for each in cut]
    copied = [
        sum(len(cut[rank]) for rank in range(rail, ranks, ranks_per_node)) for rail in range(ranks_per_node)
    ]
    expected = shape.b * shape.h * max(seen), shape.b * shape.g * max(copied) if ranks > 1 else 0
    assert RING.tasks(shape, nodes, ranks_per_node, 4) == expected
    # A tile of keys is seen whole, not at all, or up to the diagonal.
    for q in keys:
        assert not shape.causal or all(k == q or k[1] < q[0] or k[0] > q[1] for k in keys)


@settings(deadline=None)
@given(shape=shapes, nodes=st.integers(1, 5), ranks_per_node=st.integers(1, 4), chunk=st.integers(1, 5))
def test_buffers_hold_what_any_rank_has(shape: Shape, nodes: int, ranks_per_node: int, chunk: int) -> None:
    ranks = nodes * ranks_per_node
    buffers = {buffer.name: buffer for buffer in RING.buffers(shape, nodes, ranks_per_node, chunk)}
    assert all(buffer.bytes % 128 == 0 for buffer in buffers.values())
    assert [name for name, buffer in buffers.items() if buffer.network] == ["outbox", "inbox"] * (nodes > 1)
    assert ("kv" in buffers) == (ranks > 1)
    for rank in range(ranks):
        made = RING.output(shape, rank, ranks)
        rows = sum(piece.rows for piece in pieces(shape, rank, ranks))
        assert (made.rows, made.columns, made.pitch) == (shape.b * shape.h * rows, shape.d, shape.d)
        assert made.bytes <= buffers["out"].bytes == buffers["q"].bytes
        assert shape.b * shape.g * rows * shape.d * 2 <= buffers["k"].bytes == buffers["v"].bytes
    if nodes > 1:
        # Room for a shard of the own rank, and of one more where shards pass through.
        most = max(len(tiles(shape, rank, ranks)) for rank in range(ranks)) * shape.b * shape.g
        assert buffers["inbox"].bytes == buffers["outbox"].bytes
        assert buffers["inbox"].bytes >= min(nodes - 1, 2) * most * 4 * 128 * shape.d


def test_bytes_of_the_tiers() -> None:
    shape = Shape(b=2, h=8, g=4, s=1000, d=64, causal=1)
    everything = 2 * 4 * 1000 * 64 * 2 * 2
    assert RING.network_bytes(shape, 1, 8) == 0
    assert RING.network_bytes(shape, 3, 8) == 2 * everything


def test_lower_bound_is_the_slowest_tier() -> None:
    one, two = load_cluster("1x8-h100"), load_cluster("2x8-h200-ib")
    short, long = RING.shape_of(4096, 8), RING.shape_of(1 << 17, 8)
    keys = 4 * 16 * 4096 * 128 * 4
    assert RING.lower_bound_us(short, one) == pytest.approx(7 / 8 * keys / 450e9 * 1e6)
    assert RING.lower_bound_us(long, one) == pytest.approx(4 * 64 * 2.0**34 * 128 / 8 / 989.5e12 * 1e6)
    assert RING.lower_bound_us(short, two.resized(4, 1)) == pytest.approx(3 / 4 * keys / 50e9 * 1e6)
    assert RING.lower_bound_us(short, load_cluster("host")) is None


def test_adaptive_starts_with_fewer_communication_blocks_the_longer_the_sequence() -> None:
    cluster = load_cluster("2x8-h200-ib")
    starts = [RING.start_comm_sms(RING.shape_of(size, 16), cluster) for size in (4096, 16384, 65536)]
    assert all(2 * later < earlier for earlier, later in pairwise(starts))
    assert RING.start_comm_sms(RING.shape_of(512, 2), load_cluster("host")) == 2


def test_inputs_have_the_shapes_of_the_rank() -> None:
    shape = Shape(b=2, h=4, g=2, s=300, d=64, causal=1)
    for rank in range(4):
        rows = sum(piece.rows for piece in pieces(shape, rank, 4))
        made = RING.inputs(shape, rank, 4, 1)
        assert [made[name].shape for name in "qkv"] == [(8 * rows, 64), (4 * rows, 64), (4 * rows, 64)]
        assert all(matrix.dtype == np.float32 for matrix in made.values())
        assert RING.reference(shape, rank, 4, 1).shape == (8 * rows, 64)
    assert RING.pitches(shape) == {"q": 64, "k": 64, "v": 64}
