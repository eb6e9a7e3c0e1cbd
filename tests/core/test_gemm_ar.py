import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.cluster import load_cluster
from mkbench.core.errors import UsageError
from mkbench.core.workloads import KERNELS, workload
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm import TILE_BYTES, plan_tiles
from mkbench.core.workloads.gemm_ar import GemmAr
from mkbench.core.workloads.gemm_inputs import NONZEROS

GEMM = GemmAr()
shapes = st.builds(Shape, m=st.integers(1, 40), n=st.integers(1, 24), k=st.integers(1, 90))


def test_lookup() -> None:
    assert workload("gemm_ar") is KERNELS["gemm_ar"]
    with pytest.raises(UsageError, match="did you mean 'gemm_ar'"):
        workload("gem_ar")


def test_size_is_m_and_n_and_k_is_shared_out() -> None:
    assert GEMM.shape_of(2048, 8) == Shape(m=2048, n=2048, k=256)
    assert GEMM.shape_of(10, 4).k == 3
    assert GEMM.shape_of(2, 16).k == 1
    assert GEMM.shape_of(2048, 8).label == "m2048n2048k256"


@pytest.mark.parametrize(
    "dims", [{"m": 1, "n": 1}, {"m": 1, "n": 1, "k": 0}, {"m": 1, "n": 1, "k": 1, "h": 1}]
)
def test_bad_dimensions(dims: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        GEMM.shape_from(dims)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, ranks=st.sampled_from([1, 2, 3, 8, 16, 64, 65, 100]), seed=st.integers(0, 2**32 - 1))
def test_no_partial_sum_of_the_exact_family_can_be_rounded(shape: Shape, ranks: int, seed: int) -> None:
    """The sum of magnitudes bounds every partial sum, in any order and split."""
    magnitudes = np.zeros((shape.m, shape.n))
    nonzeros = np.zeros(shape.m, dtype=int)
    for rank in range(ranks):
        a, b = GEMM.inputs(shape, rank, ranks, seed).values()
        assert a.dtype == b.dtype == np.float32
        assert set(np.unique(a)) <= {-2, -1, 0, 1, 2}
        assert set(np.unique(b)) <= {-2, -1, 1, 2}
        magnitudes += np.abs(a) @ np.abs(b)
        nonzeros += np.count_nonzero(a, axis=1)
    assert nonzeros.max() <= NONZEROS
    assert magnitudes.max() <= 256
    reference = GEMM.reference(shape, 0, ranks, seed)
    assert np.array_equal(round_to_bf16(reference), reference)


@settings(max_examples=25, deadline=None)
@given(ranks=st.sampled_from([1, 4, 16, 100]), k=st.integers(64, 200))
def test_rows_use_the_whole_allowance(ranks: int, k: int) -> None:
    """Otherwise the check would be weaker than it can be."""
    shape = Shape(m=5, n=3, k=k)
    total = sum(np.count_nonzero(GEMM.inputs(shape, rank, ranks, 1)["a"], axis=1) for rank in range(ranks))
    assert np.array_equal(total, np.full(5, NONZEROS))


def test_reference_is_the_sum_over_ranks_in_integers() -> None:
    shape, ranks = Shape(m=33, n=17, k=50), 3
    inputs = [GEMM.inputs(shape, rank, ranks, 5).values() for rank in range(ranks)]
    expected = sum(a.astype(np.int64) @ b.astype(np.int64) for a, b in inputs)
    assert np.array_equal(GEMM.reference(shape, 0, ranks, 5), expected)


def test_leaving_out_a_rank_or_a_block_of_k_shows_in_every_row() -> None:
    shape, ranks = Shape(m=256, n=256, k=256), 4
    reference = GEMM.reference(shape, 0, ranks, 3)
    for rank in range(ranks):
        a, b = GEMM.inputs(shape, rank, ranks, 3).values()
        assert ((reference - a @ b) != reference).any(axis=1).all()
        assert ((a[:, 64:] @ b[64:]) != a @ b).any(axis=1).all()


def test_inputs_depend_on_seed_and_rank_only_and_ranks_differ() -> None:
    shape = Shape(m=32, n=32, k=64)
    first, again = GEMM.inputs(shape, 1, 4, 9), GEMM.inputs(shape, 1, 4, 9)
    assert all(np.array_equal(x, y) for x, y in zip(first.values(), again.values(), strict=True))
    assert not np.array_equal(first["b"], GEMM.inputs(shape, 2, 4, 9)["b"])
    assert not np.array_equal(first["b"], GEMM.inputs(shape, 1, 4, 10)["b"])


@pytest.mark.parametrize(("k", "ranks"), [(1, 2), (16, 8), (128, 4), (512, 16)])
def test_the_tolerance_holds_for_the_ordered_reduction_and_catches_a_missing_rank(k: int, ranks: int) -> None:
    shape = Shape(m=192, n=192, k=k)
    reference = GEMM.reference(shape, 0, ranks, 11, "normal")
    inputs = [GEMM.inputs(shape, rank, ranks, 11, "normal") for rank in range(ranks)]
    products = [each["a"] @ each["b"] for each in inputs]
    node_size = max(1, ranks // 2)
    nodes = [products[start : start + node_size] for start in range(0, ranks, node_size)]
    sums = [round_to_bf16(sum(round_to_bf16(product) for product in node)) for node in nodes]
    error = np.abs(round_to_bf16(sum(sums)) - reference).max()
    assert 0 < error <= GEMM.tolerance(shape, ranks)
    if k >= 128:
        missing = np.abs(reference - products[0] - reference)
        assert np.count_nonzero(missing > GEMM.tolerance(shape, ranks)) > missing.size / 2


def test_chunks_shrink_so_that_every_rank_owns_one() -> None:
    assert plan_tiles(129, 257) == 4
    assert GEMM.chunk_tiles_for(Shape(m=2048, n=2048, k=1), 8) == 4
    assert GEMM.chunk_tiles_for(Shape(m=1024, n=512, k=1), 8) == 2
    assert GEMM.chunk_tiles_for(Shape(m=1, n=1, k=1), 8) == 1


@given(m=st.integers(1, 5000), n=st.integers(1, 5000), g=st.integers(1, 16), chunk=st.integers(1, 8))
def test_slots_are_the_tiles_of_the_rank_that_owns_most(m: int, n: int, g: int, chunk: int) -> None:
    owned = [0] * g
    for tile in range(GEMM.tiles(Shape(m=m, n=n, k=1))):
        owned[tile // chunk % g] += 1
    assert GEMM.slots(Shape(m=m, n=n, k=1), g, chunk) == max(owned)


def test_parameters_pad_rows_to_16_bytes() -> None:
    assert GEMM.parameters(Shape(m=200, n=300, k=33), 1, 2, 3) == {
        "m": 200,
        "n": 300,
        "k": 33,
        "lda": 40,
        "ldb": 304,
        "chunk_tiles": 3,
        "slots": 3,
        "reduction": 0,
    }


def test_buffers() -> None:
    shape = Shape(m=200, n=300, k=33)
    one = {buffer.name: buffer.bytes for buffer in GEMM.buffers(shape, 1, 2, 1)}
    three = {buffer.name: buffer.bytes for buffer in GEMM.buffers(shape, 3, 2, 1)}
    assert all(size % 128 == 0 and size > 0 for size in three.values())
    assert one.keys() == {"a", "b", "partial", "out"}
    assert one["partial"] == 4 * TILE_BYTES
    assert 200 * 40 * 2 <= one["a"] < 200 * 40 * 2 + 128
    assert 33 * 304 * 2 <= one["b"] < 33 * 304 * 2 + 128
    assert 200 * 304 * 2 <= one["out"] < 200 * 304 * 2 + 128
    assert (three["node_sum"], three["receive"]) == (2 * TILE_BYTES, 4 * TILE_BYTES)


def test_bytes_of_the_tiers() -> None:
    shape = Shape(m=2048, n=2048, k=128)
    assert GEMM.network_bytes(shape, 1, 8) == 0
    assert GEMM.network_bytes(shape, 2, 8) == 2 * 128 * 65536
    assert GEMM.network_bytes(Shape(m=1, n=1, k=1), 3, 8) == 6 * 65536
    assert GEMM.node_bytes(shape, 8) == 2 * 7 / 8 * 2048 * 2048 * 2
    assert GEMM.flops_per_rank(shape) == 2 * 2048 * 2048 * 128


def test_lower_bound_is_the_slowest_tier() -> None:
    one, two = load_cluster("1x8-h100"), load_cluster("2x8-h200-ib")
    nvlink = GEMM.lower_bound_us(Shape(m=2048, n=2048, k=256), one)
    assert nvlink == pytest.approx(2 * 7 / 8 * 2048**2 * 2 / 450e9 * 1e6)
    compute = GEMM.lower_bound_us(Shape(m=32768, n=32768, k=4096), one)
    assert compute == pytest.approx(2 * 32768**2 * 4096 / 989.5e12 * 1e6)
    network = GEMM.lower_bound_us(Shape(m=2048, n=2048, k=1), two.resized(4, 2))
    assert network == pytest.approx(3 * 2048**2 * 2 / 2 / 50e9 * 1e6)
    assert GEMM.lower_bound_us(Shape(m=512, n=512, k=128), load_cluster("host")) is None


def test_adaptive_starts_with_fewer_communication_blocks_the_longer_a_tile_computes() -> None:
    cluster = load_cluster("1x8-h100")
    starts = [GEMM.start_comm_sms(GEMM.shape_of(size, 8), cluster) for size in (2048, 8192, 32768)]
    assert starts == sorted(starts, reverse=True)
    assert all(1 <= start <= 131 for start in starts)
    assert 2 * starts[-1] < starts[0]
    assert GEMM.start_comm_sms(GEMM.shape_of(512, 2), load_cluster("host")) == 2
