"""The edges of every kernel's problems: nothing to do, next to nothing, and more than 32 bits can count."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import pytest
from expected import expected, shards
from shapes import SHAPES, Extents
from sim_rig import TILE_M, TILE_N, Case, case_of, result_of, simulation_of

from mkbench.core.resources import kernels_dir
from mkbench.core.workloads import workload
from mkbench.core.workloads.routing import Deal
from mkbench.platforms.sim import verify
from mkbench.platforms.simulate import Result

KERNELS = tuple(SHAPES)
POLICIES = ("static", "adaptive")


def gemm(m: int, n: int, k: int) -> Extents:
    return {"m": m, "n": n, "k": k}


def moe(t: int, hidden: int, inter: int, experts: int, topk: int, **skew: int) -> Extents:
    return {"t": t, "hidden": hidden, "inter": inter, "experts": experts, "topk": topk, **skew}


def ring(s: int, *, b: int = 1, h: int = 1, g: int = 1, d: int = 64, causal: int = 0) -> Extents:
    return {"b": b, "h": h, "g": g, "s": s, "d": d, "causal": causal}


def check(kernel: str, shape: Extents, nodes: int, ranks_per_node: int, policy: str, **options: int) -> Case:
    """Run static in the order of time and adaptive in random order; all must be right and sent once."""
    launches = 2
    case = case_of(
        kernels=kernel, blocks=5, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, policies=policy,
        comm_sms="2" if policy == "static" else None, start_comm_sms=2, data=True, **options,
    )  # fmt: skip
    once = expected(case)
    with simulation_of(case, launches=launches, stress=policy == "adaptive") as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        found = verify(simulation)
    assert (found.elements, found.mismatches) == (once.elements, 0), found.first
    assert result.payload_bytes == launches * once.payload_bytes == launches * case.point.network_bytes
    assert result.commands == launches * once.commands
    return case


ALONE = {
    "gemm_ar": [gemm(300, 600, 40)],
    "gemm_rs": [gemm(300, 600, 40)],
    "ag_gemm": [gemm(300, 600, 40)],
    "moe_dispatch_gemm": [moe(600, 72, 300, 5, 3)],
    "ring_attention": [ring(300, h=4, g=2), ring(300, h=2, causal=1, d=128)],
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kernel", "shape"), [(k, s) for k in KERNELS for s in ALONE[k]])
def test_one_rank_alone(kernel: str, shape: Extents, policy: str) -> None:
    assert check(kernel, shape, 1, 1, policy).point.network_bytes == 0


def idle_ranks(case: Case) -> int:
    """How many ranks have none of what is dealt out, or nothing to end up with."""
    shape, ranks = case.point.shape, case.point.ranks
    if case.point.kernel == "gemm_ar":
        return [case.own_tiles(rank) for rank in range(ranks)].count(0)
    if case.point.kernel == "moe_dispatch_gemm":
        rows = Deal(shape, 1, ranks).rows().tolist()
        return max(parts.count(0) for parts in (shards(shape.t, ranks), shards(shape.experts, ranks), rows))
    return shards(shape.s if case.point.kernel == "ring_attention" else shape.m, ranks).count(0)


# On six ranks: fewer tiles, rows, tokens, experts or positions.
IDLE = {
    "gemm_ar": [gemm(100, 200, 40)],
    "gemm_rs": [gemm(3, 600, 40)],
    "ag_gemm": [gemm(3, 600, 40)],
    "moe_dispatch_gemm": [moe(3, 40, 300, 8, 3), moe(600, 40, 300, 3, 2), moe(2, 40, 300, 2, 1)],
    "ring_attention": [ring(3, h=2, g=1), ring(3, causal=1)],
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 6), (2, 3), (3, 2)])
@pytest.mark.parametrize(("kernel", "shape"), [(k, s) for k in KERNELS for s in IDLE[k]])
def test_ranks_that_have_nothing_to_do(
    kernel: str, shape: Extents, nodes: int, ranks_per_node: int, policy: str
) -> None:
    assert idle_ranks(check(kernel, shape, nodes, ranks_per_node, policy)) > 0


# One tile in all: of the result, or of moe_dispatch_gemm's rows of the only expert, or of keys.
ONE_TILE = {
    "gemm_ar": [gemm(TILE_M, TILE_N, 64), gemm(1, 1, 1)],
    "gemm_rs": [gemm(TILE_M, TILE_N, 64), gemm(1, 1, 1)],
    "ag_gemm": [gemm(TILE_M, TILE_N, 64), gemm(1, 1, 1)],
    "moe_dispatch_gemm": [moe(TILE_M, 64, TILE_N, 1, 1), moe(1, 1, 1, 1, 1)],
    "ring_attention": [ring(TILE_M), ring(TILE_M, causal=1), ring(1), ring(1, causal=1)],
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 3), (2, 1), (2, 2)])
@pytest.mark.parametrize(("kernel", "shape"), [(k, s) for k in KERNELS for s in ONE_TILE[k]])
def test_one_tile(kernel: str, shape: Extents, nodes: int, ranks_per_node: int, policy: str) -> None:
    check(kernel, shape, nodes, ranks_per_node, policy)


# On four ranks, one more than fills tiles, vectors of 16 bytes, windows of tokens and chunks.
TAILS = {
    "gemm_ar": [gemm(129, 257, 9), gemm(257, 9, 17), gemm(1, 1025, 33)],
    "gemm_rs": [gemm(4 * 128 + 1, 257, 9), gemm(4 * 129, 9, 17), gemm(4, 1025, 33)],
    "ag_gemm": [gemm(4 * 128 + 1, 257, 9), gemm(4 * 129, 9, 17), gemm(4, 1025, 33)],
    "moe_dispatch_gemm": [
        moe(4 * 257, 65, 257, 4, 1), moe(4 * 256 + 1, 9, 9, 5, 2),
        moe(129, 33, 1, 1, 1), moe(17, 1, 257, 9, 9),
    ],
    "ring_attention": [
        ring(4 * 129), ring(4 * 128 + 1, d=128), ring(8 * 129, causal=1), ring(8 * 128 + 1, causal=1, h=2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize(("kernel", "shape"), [(k, s) for k in KERNELS for s in TAILS[k]])
def test_tails_of_one(kernel: str, shape: Extents, nodes: int, ranks_per_node: int, policy: str) -> None:
    check(kernel, shape, nodes, ranks_per_node, policy)


# Shards of several chunks, which ag_gemm and ring_attention pass on through slots used before.
MANY_NODES = {
    "gemm_ar": gemm(400, 700, 40),
    "gemm_rs": gemm(1100, 300, 40),
    "ag_gemm": gemm(2300, 40, 24),
    "moe_dispatch_gemm": moe(2300, 24, 40, 12, 3, skew=60),
    "ring_attention": ring(1500, h=2, g=2),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(3, 1), (3, 2), (4, 1), (4, 2)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_three_and_four_nodes(kernel: str, nodes: int, ranks_per_node: int, policy: str) -> None:
    check(kernel, MANY_NODES[kernel], nodes, ranks_per_node, policy, chunk_tiles=1)


# (shape, buffers of more than 2^31 elements, 2^32 bytes): operands, outputs, what is gathered or summed.
HUGE = {
    "gemm_ar": (gemm(66000, 66000, 40000), {"a", "b", "partial", "out"}),
    "gemm_rs": (gemm(66000, 66000, 40000), {"a", "b", "partial"}),
    "ag_gemm": (gemm(66000, 40000, 66000), {"full", "b", "out"}),
    "moe_dispatch_gemm": (moe(80_000, 7168, 8192, 64, 8), {"gathered", "out"}),
    "ring_attention": (ring(8300, b=128, h=16, g=16, d=128), {"kv"}),
}


#: Ends the process where a signed number overflows: without data, a wrong offset would show nowhere else.
TRAPS = "-fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error"


def trapping_result(case: Case) -> Result:
    os.environ["CXX"] = f"{os.environ.get('CXX') or 'g++'} {TRAPS}"
    return result_of(case, sources=kernels_dir())


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_more_than_two_to_the_31_elements(kernel: str, nodes: int) -> None:
    shape, named = HUGE[kernel]
    case = case_of(kernels=kernel, nodes=nodes, ranks_per_node=2, shape=shape, comm_sms="40")
    assert case.point.blocks == 132
    buffers = workload(kernel).buffers(case.point.shape, nodes, 2, case.point.chunk_tiles)
    large = {buffer.name for buffer in buffers if buffer.bytes > 2**32 and buffer.bytes // 2 > 2**31}
    assert large >= named
    with ProcessPoolExecutor(1) as alone:
        result = alone.submit(trapping_result, case).result()
    assert result.status == "ok", result.report
    once = expected(case)
    assert result.payload_bytes == once.payload_bytes == case.point.network_bytes
    assert result.commands == once.commands
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us
