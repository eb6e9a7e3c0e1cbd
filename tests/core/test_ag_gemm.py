import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.cluster import load_cluster
from mkbench.core.errors import UsageError
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.ag_gemm import AgGemm
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm_inputs import NONZEROS

AG = AgGemm()
shapes = st.builds(Shape, m=st.integers(1, 60), n=st.integers(1, 24), k=st.integers(1, 90))
rank_counts = st.sampled_from([1, 2, 3, 8, 16, 64])


def test_lookup() -> None:
    assert workload("ag_gemm") is KERNELS["ag_gemm"]
    assert not KERNELS["ag_gemm"].is_replicated


def test_size_is_m_and_k_and_n_is_shared_out() -> None:
    assert AG.shape_of(2048, 8) == Shape(m=2048, n=256, k=2048)
    assert AG.shape_of(10, 4) == Shape(m=10, n=3, k=10)
    assert AG.shape_of(2, 16).n == 1
    with pytest.raises(UsageError, match="not positive"):
        AG.shape_of(0, 2)
    with pytest.raises(UsageError, match="needs a positive n"):
        AG.shape_from({"m": 1, "k": 1})


@given(shape=shapes, ranks=rank_counts)
def test_shards_are_all_rows_in_order_and_none_is_longer_than_the_first(shape: Shape, ranks: int) -> None:
    rows = [AG.rows_of(shape, rank, ranks) for rank in range(ranks)]
    assert sum(rows) == shape.m
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == AG.shard_rows(shape, ranks)
    # All before the last that has any are whole, so a shard begins at a multiple of their rows.
    assert set(rows[: sum(count > 0 for count in rows) - 1]) <= {rows[0]}


@settings(max_examples=60, deadline=None)
@given(shape=shapes, ranks=rank_counts, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_reference_is_the_product_of_all_shards_and_exact(
    shape: Shape, ranks: int, seed: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    inputs = [AG.inputs(shape, each, ranks, seed) for each in range(ranks)]
    a, b = np.concatenate([each["a"] for each in inputs]), inputs[rank]["b"]
    assert a.shape == (shape.m, shape.k)
    assert a.dtype == b.dtype == np.float32
    assert set(np.unique(a)) <= {-2, -1, 0, 1, 2}
    assert set(np.unique(b)) <= {-2, -1, 1, 2}
    # The sum of magnitudes bounds every partial sum, in any order, so nothing is ever rounded.
    assert (np.abs(a) @ np.abs(b)).max() <= 256
    reference = AG.reference(shape, rank, ranks, seed)
    assert np.array_equal(reference, a.astype(np.int64) @ b.astype(np.int64))
    assert np.array_equal(round_to_bf16(reference), reference)


def test_rows_use_the_whole_allowance() -> None:
    """Otherwise the check would be weaker than it can be."""
    for rank in range(3):
        a = AG.inputs(Shape(m=40, n=2, k=200), rank, 3, 1)["a"]
        assert (np.count_nonzero(a, axis=1) == NONZEROS).all()


def test_a_wrong_shard_or_block_of_k_shows_in_every_row() -> None:
    shape, ranks = Shape(m=64, n=64, k=256), 4
    shards = [AG.inputs(shape, rank, ranks, 3)["a"] for rank in range(ranks)]
    b = AG.inputs(shape, 0, ranks, 3)["b"]
    for rank in range(ranks):
        assert ((shards[rank] @ b) != (shards[rank - 1] @ b)).any(axis=1).all()
        assert ((shards[rank][:, 64:] @ b[64:]) != shards[rank] @ b).any(axis=1).all()


def test_inputs_depend_on_seed_and_rank_and_ranks_differ() -> None:
    shape = Shape(m=32, n=32, k=64)
    first, again = AG.inputs(shape, 1, 4, 9), AG.inputs(shape, 1, 4, 9)
    assert all(np.array_equal(x, y) for x, y in zip(first.values(), again.values(), strict=True))
    for other in (AG.inputs(shape, 2, 4, 9), AG.inputs(shape, 1, 4, 10)):
        assert not np.array_equal(first["a"], other["a"])
        assert not np.array_equal(first["b"], other["b"])


@pytest.mark.parametrize(("k", "ranks"), [(1, 2), (16, 4), (512, 3)])
def test_the_tolerance_holds_for_one_rounding_and_catches_a_missing_part_of_k(k: int, ranks: int) -> None:
    shape = Shape(m=192, n=192, k=k)
    reference = AG.reference(shape, 1, ranks, 11, "normal")
    inputs = [AG.inputs(shape, rank, ranks, 11, "normal") for rank in range(ranks)]
    a, b = np.concatenate([each["a"] for each in inputs]), inputs[1]["b"]
    error = np.abs(round_to_bf16(a @ b) - reference).max()
    assert 0 < error <= AG.tolerance(shape, ranks)
    if k >= 512:
        missing = np.abs(a[:, 32:] @ b[32:] - reference)
        assert np.count_nonzero(missing > AG.tolerance(shape, ranks)) > missing.size / 2


def test_strips_are_few_bytes_but_not_too_few() -> None:
    def strip(size: int, ranks: int) -> tuple[int, int]:
        shape = AG.shape_of(size, ranks)
        return AG.strip_rows(shape, ranks), AG.strip_rows(shape, ranks) * size * 2

    # Of a shard of 2 MiB 128 strips; below, no smaller than 16 KiB; above, no larger than 128 KiB.
    assert strip(4096, 16) == (2, 16 << 10)
    assert strip(2048, 16) == (4, 16 << 10)
    assert strip(8192, 16) == (4, 64 << 10)
    assert strip(32768, 8) == (2, 128 << 10)
    # A row that is longer than that, and rows of a few bytes.
    assert AG.strip_rows(Shape(m=1024, n=1, k=1 << 20), 2) == 1
    assert AG.strip_rows(Shape(m=1024, n=1, k=1), 2) == 128


@given(m=st.integers(1, 5000), k=st.integers(1, 1 << 20), ranks=rank_counts)
def test_a_tile_has_whole_strips(m: int, k: int, ranks: int) -> None:
    assert 128 % AG.strip_rows(Shape(m=m, n=1, k=k), ranks) == 0


@given(m=st.integers(1, 5000), n=st.integers(1, 1000), nodes=st.integers(1, 4), g=st.integers(1, 5))
def test_tasks_are_those_of_the_rank_that_has_the_most(m: int, n: int, nodes: int, g: int) -> None:
    shape, ranks = Shape(m=m, n=n, k=4096), nodes * g
    strip = AG.strip_rows(shape, ranks)
    rows = [AG.rows_of(shape, rank, ranks) for rank in range(ranks)]
    tiles = sum(-(-count // 128) for count in rows) * -(-n // 256)
    # A rank copies what its rail has: its own, and what comes from its rail peers.
    strips = max(sum(-(-count // strip) for count in rows[local::g]) for local in range(g))
    assert AG.tasks(shape, nodes, g, 1) == (tiles, strips if ranks > 1 else 0)


def test_parameters_pad_rows_to_16_bytes() -> None:
    assert AG.parameters(Shape(m=200, n=300, k=33), 2, 3, 1) == {
        "m": 200,
        "n": 300,
        "k": 33,
        "lda": 40,
        "ldb": 304,
        "shard_rows": 34,
        "strip_rows": 128,
    }


def test_buffers() -> None:
    shape = Shape(m=1000, n=300, k=33)

    def sizes(nodes: int, ranks_per_node: int) -> dict[str, int]:
        buffers = AG.buffers(shape, nodes, ranks_per_node, 1)
        assert all(buffer.bytes % 128 == 0 for buffer in buffers)
        assert {buffer.name for buffer in buffers if buffer.network} <= {"outbox", "inbox"}
        return {buffer.name: buffer.bytes for buffer in buffers}

    alone, one, two, five = sizes(1, 1), sizes(1, 2), sizes(2, 2), sizes(5, 2)
    assert alone.keys() == {"a", "b", "out"}
    assert one.keys() == {"a", "b", "out", "full"}
    assert two.keys() == {"a", "b", "out", "full", "outbox", "inbox"}
    assert alone["a"] == 1000 * 80
    assert 0 <= one["a"] - 500 * 80 < 128
    assert 0 <= one["full"] - 1000 * 80 < 128
    assert 0 <= one["b"] - 33 * 608 < 128
    assert 0 <= one["out"] - 1000 * 608 < 128
    # Two nodes: every chunk of a shard of 250 rows has its slot. More: two shards of 100 rows.
    assert two["outbox"] == two["inbox"] == 2 * 128 * 80
    assert five["outbox"] == five["inbox"] == 2 * 1 * 128 * 80


def test_bytes_of_the_tiers() -> None:
    shape = Shape(m=2000, n=100, k=33)
    assert AG.network_bytes(shape, 1, 8) == 0
    assert AG.network_bytes(shape, 2, 8) == 2000 * 80
    assert AG.network_bytes(shape, 5, 3) == 4 * 2000 * 80
    assert AG.node_bytes(shape, 8) == 7 / 8 * 2000 * 66
    assert AG.flops_per_rank(shape) == 2 * 2000 * 100 * 33


def test_lower_bound_is_the_slowest_tier() -> None:
    one, two = load_cluster("1x8-h100"), load_cluster("2x8-h200-ib")
    nvlink = AG.lower_bound_us(Shape(m=2048, n=256, k=2048), one)
    assert nvlink == pytest.approx(7 / 8 * 2048**2 * 2 / 450e9 * 1e6)
    compute = AG.lower_bound_us(Shape(m=32768, n=4096, k=32768), one)
    assert compute == pytest.approx(2 * 32768**2 * 4096 / 989.5e12 * 1e6)
    network = AG.lower_bound_us(Shape(m=2048, n=1, k=2048), two.resized(4, 2))
    assert network == pytest.approx(3 / 4 * 2048**2 * 2 / 2 / 50e9 * 1e6)
    assert AG.lower_bound_us(Shape(m=512, n=512, k=128), load_cluster("host")) is None


def test_adaptive_starts_with_fewer_communication_blocks_the_longer_a_tile_computes() -> None:
    cluster = load_cluster("1x8-h100")
    starts = [AG.start_comm_sms(AG.shape_of(size, 8), cluster) for size in (2048, 8192, 32768)]
    assert starts == sorted(starts, reverse=True)
    assert all(1 <= start <= 131 for start in starts)
    assert 2 * starts[-1] < starts[0]
    assert AG.start_comm_sms(AG.shape_of(512, 2), load_cluster("host")) == 2
