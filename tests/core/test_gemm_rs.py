from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.cluster import load_cluster
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm import TILE_BYTES, TILE_M, TILE_N
from mkbench.core.workloads.gemm_ar import GemmAr
from mkbench.core.workloads.gemm_rs import GemmRs

GEMM = GemmRs()


def shape_of(m: int = 1, n: int = 1, k: int = 1) -> Shape:
    return Shape(m=m, n=n, k=k)


def test_lookup() -> None:
    assert workload("gemm_rs") is KERNELS["gemm_rs"]


def test_size_means_the_same_as_for_gemm_ar() -> None:
    assert GEMM.shape_of(2050, 8) == GemmAr().shape_of(2050, 8) == Shape(m=2050, n=2050, k=257)


@given(m=st.integers(1, 5000), ranks=st.integers(1, 80))
def test_shards_are_the_rows_in_order_all_of_one_size_but_for_the_last(m: int, ranks: int) -> None:
    shards = [GEMM.rows(shape_of(m), rank, ranks) for rank in range(ranks)]
    assert [row for shard in shards for row in shard] == list(range(m))
    sizes = [len(shard) for shard in shards]
    assert sizes[0] == -(-m // ranks)
    assert all(before == sizes[0] or after == 0 for before, after in pairwise(sizes))
    assert all(before >= after for before, after in pairwise(sizes))


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 40),
    ranks=st.sampled_from([1, 2, 3, 8, 16]),
    family=st.sampled_from(["exact", "normal"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_references_of_all_ranks_together_are_the_sum_of_all_products(
    m: int, ranks: int, family: str, seed: int
) -> None:
    shape = shape_of(m, 12, 20)
    whole = GemmAr().reference(shape, 0, ranks, seed, family)
    shards = [GEMM.reference(shape, rank, ranks, seed, family) for rank in range(ranks)]
    assert all(shard.dtype == np.float32 for shard in shards)
    np.testing.assert_allclose(np.concatenate(shards), whole, rtol=1e-6, atol=1e-6)
    for rank, shard in enumerate(shards):
        end = GEMM.output(shape, rank, ranks)
        assert shard.shape == (end.rows, end.columns)
        assert end.pitch == 16


def test_inputs_are_those_of_gemm_ar() -> None:
    shape = shape_of(5, 6, 7)
    for rank in range(3):
        ours, others = GEMM.inputs(shape, rank, 3, 4), GemmAr().inputs(shape, rank, 3, 4)
        assert ours.keys() == others.keys() == {"a", "b"}
        assert all(np.array_equal(ours[name], others[name]) for name in ours)


def test_a_rank_may_end_up_with_nothing() -> None:
    shape = shape_of(5, 9, 3)
    assert [GEMM.output(shape, rank, 4).rows for rank in range(4)] == [2, 2, 1, 0]
    assert GEMM.output(shape, 3, 4).bytes == 0
    assert GEMM.reference(shape, 3, 4, 1).shape == (0, 9)


def test_tiles_end_where_their_shard_does() -> None:
    assert GEMM.tiles(shape_of(1024, 512), 4) == 4 * 2 * 2
    # Shards of 129 rows are two rows of tiles high, the last one of 127 is one.
    assert [GEMM.shard_tiles(shape_of(514, TILE_N), rank, 4) for rank in range(4)] == [2, 2, 2, 1]
    assert GEMM.tiles(shape_of(514, TILE_N + 1), 4) == 14
    assert GEMM.tiles(shape_of(3, 1), 16) == 3


@given(
    m=st.integers(1, 5000), n=st.integers(1, 1000), nodes=st.integers(1, 5), ranks_per_node=st.integers(1, 16)
)
def test_tasks_are_those_of_the_rank_that_has_most(m: int, n: int, nodes: int, ranks_per_node: int) -> None:
    ranks, columns = nodes * ranks_per_node, -(-n // TILE_N)
    size = -(-m // ranks)
    tiles = [-(-max(0, min(size, m - rank * size)) // TILE_M) * columns for rank in range(ranks)]
    summed = [sum(tiles[rank % ranks_per_node :: ranks_per_node]) for rank in range(ranks)]
    most = max(summed[rank] + (tiles[rank] if nodes > 1 else 0) for rank in range(ranks))
    assert GEMM.tasks(shape_of(m, n), nodes, ranks_per_node, 4) == (sum(tiles), most)


def test_chunks_are_small_where_tiles_are_few() -> None:
    assert GEMM.chunk_tiles_for(shape_of(2048, 2048), 8) == 4
    assert GEMM.chunk_tiles_for(shape_of(1024, 512), 8) == 2
    assert GEMM.chunk_tiles_for(shape_of(), 8) == 1


def test_parameters() -> None:
    assert GEMM.parameters(shape_of(700, 300, 33), 2, 2, 3) == {
        "m": 700,
        "n": 300,
        "k": 33,
        "lda": 40,
        "ldb": 304,
        "chunk_tiles": 3,
        "slots": 2 * 4,
        "reduction": 0,
    }


def test_buffers_hold_the_largest_share_of_any_rank() -> None:
    shape = shape_of(700, 300, 33)  # shards of 234, 234 and 232 rows, or of 117, and of 115 the last
    one = {buffer.name: buffer for buffer in GEMM.buffers(shape, 1, 3, 1)}
    three = {buffer.name: buffer for buffer in GEMM.buffers(shape, 3, 2, 1)}
    assert all(buffer.bytes % 128 == 0 for buffer in [*one.values(), *three.values()])
    assert one.keys() == {"a", "b", "partial", "out"}
    assert one["partial"].bytes == 3 * 4 * TILE_BYTES
    assert 234 * 304 * 2 <= one["out"].bytes < 234 * 304 * 2 + 128
    assert 117 * 304 * 2 <= three["out"].bytes < 117 * 304 * 2 + 128
    assert three["partial"].bytes == 6 * 2 * TILE_BYTES
    assert {name for name, buffer in three.items() if buffer.network} == {"node_sum", "receive"}
    assert (three["node_sum"].bytes, three["receive"].bytes) == (3 * 2 * TILE_BYTES, 2 * 2 * TILE_BYTES)


def test_bytes_of_the_tiers() -> None:
    whole = shape_of(4096, 4096, 256)
    assert GEMM.network_bytes(whole, 1, 8) == 0
    # With whole tiles alone, every row once from each other node.
    assert GEMM.network_bytes(whole, 2, 8) == 4096 * 4096 * 2
    assert GEMM.network_bytes(whole, 4, 8) == 3 * 4096 * 4096 * 2
    assert GEMM.network_bytes(shape_of(), 3, 8) == 2 * TILE_BYTES
    assert GEMM.network_bytes(shape_of(514, 257), 2, 2) == 14 * TILE_BYTES
    assert GEMM.node_bytes(whole, 8) == 7 / 8 * 4096 * 4096 * 2
    assert GEMM.flops_per_rank(whole) == 2 * 4096 * 4096 * 256


def test_lower_bound_is_the_slowest_tier() -> None:
    one, two = load_cluster("1x8-h100"), load_cluster("2x8-h200-ib")
    nvlink = GEMM.lower_bound_us(shape_of(2048, 2048, 128), one)
    assert nvlink == pytest.approx(7 / 8 * 2048**2 * 2 / 450e9 * 1e6)
    compute = GEMM.lower_bound_us(shape_of(32768, 32768, 4096), one)
    assert compute == pytest.approx(2 * 32768**2 * 4096 / 989.5e12 * 1e6)
    network = GEMM.lower_bound_us(shape_of(2048, 2048, 1), two.resized(4, 2))
    assert network == pytest.approx(3 * 2048**2 * 2 / 8 / 50e9 * 1e6)
    assert GEMM.lower_bound_us(shape_of(512, 512, 128), load_cluster("host")) is None


def test_adaptive_starts_with_fewer_communication_blocks_the_longer_a_tile_computes() -> None:
    cluster = load_cluster("2x8-h200-ib")
    starts = [GEMM.start_comm_sms(GEMM.shape_of(size, 16), cluster) for size in (2048, 8192, 32768)]
    assert starts == sorted(starts, reverse=True)
    assert all(1 <= start <= 131 for start in starts)
    assert 2 * starts[-1] < starts[0]
    assert GEMM.start_comm_sms(shape_of(512, 512, 256), load_cluster("host")) == 2
