"""GEMM + ReduceScatter of any shape on any small cluster: every rank's shard is right bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sim_rig import TILE_BYTES, TILE_M, TILE_N, Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.limits import MAX_CHUNK_TILES
from mkbench.platforms.sim import verify

COMPUTE = 1
STRESS = settings.get_current_profile_name() == "stress"
CASES = (
    settings.get_profile("stress")
    if STRESS
    else settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
)


def rs_case(**settings: Any) -> Case:
    """The only point of a plan, as `case_of` makes it."""
    return case_of(kernels="gemm_rs", **settings)


def shard_tiles(case: Case, rank: int) -> int:
    """Tiles of a rank's shard, counted here and not by the code under test."""
    shape = case.point.shape
    size = -(-shape.m // case.point.ranks)
    rows = min(size, max(0, shape.m - rank * size))
    return -(-rows // TILE_M) * -(-shape.n // TILE_N)


def expected_bytes(case: Case) -> int:
    """The tiles of every shard come from each other node."""
    return (case.point.nodes - 1) * TILE_BYTES * sum(shard_tiles(case, r) for r in range(case.point.ranks))


def expected_commands(case: Case) -> int:
    """Every chunk of every shard is sent by each other node, which gets a credit if there are any."""
    shards = [shard_tiles(case, rank) for rank in range(case.point.ranks)]
    puts = sum(-(-tiles // case.point.chunk_tiles) + (tiles > 0) for tiles in shards)
    return (case.point.nodes - 1) * puts


@st.composite
def heights(draw: st.DrawFn, ranks: int) -> int:
    """Rows of C: of each shard up to two tiles, the last ones cut or empty, often at the edge of a tile."""
    rows = draw(st.integers(0, 1)) * TILE_M + draw(
        st.sampled_from((1, 2, TILE_M - 1, TILE_M)) | st.integers(1, TILE_M)
    )
    return max(1, rows * ranks - draw(st.integers(0, rows * ranks - 1) | st.integers(0, 3)))


@st.composite
def widths(draw: st.DrawFn) -> int:
    """Up to three tiles, with a tail that is often all or next to nothing."""
    tail = st.sampled_from((1, 7, 8, TILE_N - 1, TILE_N)) | st.integers(1, TILE_N)
    return draw(st.integers(0, 2)) * TILE_N + draw(tail)


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Nodes, ranks of each, m and n."""
    nodes, ranks_per_node = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return nodes, ranks_per_node, draw(heights(nodes * ranks_per_node)), draw(widths())


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int]:
    """Blocks of a rank, and how many communicate."""
    blocks = draw(st.integers(2, 12))
    return blocks, draw(st.integers(1, blocks - 1))


@pytest.mark.timeout(0 if STRESS else 300)
@CASES
@given(
    problem=problems(),
    k=st.integers(1, 48),
    partition=partitions(),
    policy=st.sampled_from(("static", "adaptive")),
    chunk_tiles=st.none() | st.integers(1, 5),
    launches=st.integers(1, 3),
    stress=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
# Three launches in random order: each takes its flags and buffers over from the one before.
@example((2, 2, 600, 600), 24, (4, 2), "adaptive", 1, 3, True, 1)
@example((3, 2, 128, 256), 1, (2, 1), "static", None, 3, True, 2)
@example((4, 5, 1, 1), 1, (2, 1), "adaptive", None, 2, False, 3)
def test_every_element_of_every_shard_is_exact(
    problem: tuple[int, int, int, int],
    k: int,
    partition: tuple[int, int],
    policy: str,
    chunk_tiles: int | None,
    launches: int,
    stress: bool,
    seed: int,
) -> None:
    nodes, ranks_per_node, m, n = problem
    blocks, comm_sms = partition
    case = rs_case(
        blocks=blocks,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        shape={"m": m, "n": n, "k": k},
        policies=policy,
        comm_sms=str(comm_sms),
        start_comm_sms=comm_sms,
        chunk_tiles=chunk_tiles,
        seed=seed,
        data=True,
    )
    with simulation_of(case, seed=seed, launches=launches, stress=stress) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        check = verify(simulation)
    assert check.elements == m * n
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == launches * case.point.network_bytes == launches * expected_bytes(case)
    assert result.commands == launches * expected_commands(case)


# Of a shard: whole chunks; a cut chunk and a cut tile at its end; one tile, and shards of no row at all.
@pytest.mark.parametrize("mn", [(1536, 1024), (1000, 700), (5, 3)])
@pytest.mark.parametrize("chunk_tiles", [1, 4, MAX_CHUNK_TILES])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_bytes_and_commands_are_what_the_formula_says(
    mn: tuple[int, int], chunk_tiles: int, policy: str
) -> None:
    case = rs_case(
        blocks=8, nodes=3, ranks_per_node=2, shape={"m": mn[0], "n": mn[1], "k": 32}, chunk_tiles=chunk_tiles,
        policies=policy, comm_sms="3" if policy == "static" else None,
    )  # fmt: skip
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == case.point.network_bytes == expected_bytes(case)
    assert result.commands == expected_commands(case)


def test_the_largest_command_arrives_whole() -> None:
    case = rs_case(
        blocks=8, nodes=2, ranks_per_node=1, shape={"m": 2560, "n": 2048, "k": 8}, chunk_tiles=MAX_CHUNK_TILES
    )
    assert shard_tiles(case, 0) > MAX_CHUNK_TILES
    result = result_of(case)
    assert result.status == "ok", result.report
    assert (result.payload_bytes, result.commands) == (expected_bytes(case), expected_commands(case))


def test_shards_of_other_nodes_come_first_and_owners_take_turns() -> None:
    # Shards of two by two tiles; a node has one block that computes.
    nodes, ranks_per_node, tiles = 3, 2, 4
    case = rs_case(
        blocks=2, nodes=nodes, ranks_per_node=ranks_per_node, shape={"m": 6 * 256, "n": 512, "k": 32},
        comm_sms="1",
    )  # fmt: skip
    with simulation_of(case, trace_capacity=200) as simulation:
        assert simulation.run().status == "ok"
        events = [np.concatenate(simulation.trace(rank)) for rank in range(case.point.ranks)]
    orders = [each["task"][each["role"] == COMPUTE].tolist() for each in events]
    for rank, order in enumerate(orders):
        node = rank // ranks_per_node
        assert sorted(order) == list(range(case.point.ranks * tiles))
        shards = [tile // tiles for tile in order]
        in_turn = [(node + step) % nodes for step in range(1, nodes + 1)]
        assert [shard // ranks_per_node for shard in shards] == [
            other for other in in_turn for _ in range(ranks_per_node * tiles)
        ]
        assert [shard % ranks_per_node for shard in shards] == [0, 1] * (nodes * tiles)
        assert order == orders[node * ranks_per_node]


@pytest.mark.parametrize("size", [2048, 4096])
@pytest.mark.parametrize("cluster", ["1x8-h100", "2x8-h200-ib"])
@pytest.mark.parametrize(("policy", "comm_sms"), [("static", 8), ("static", 40), ("adaptive", None)])
def test_no_run_beats_the_lower_bound(size: int, cluster: str, policy: str, comm_sms: int | None) -> None:
    case = rs_case(cluster=cluster, sizes=str(size), policies=policy, comm_sms=comm_sms and str(comm_sms))
    result = result_of(case)
    assert result.status == "ok", result.report
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us


# Beyond 2^31 elements: indices, offsets and byte counts must all be 64 bits wide.
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 2), (2, 2)])
def test_products_of_more_than_two_to_the_31_elements(nodes: int, ranks_per_node: int) -> None:
    shape = {"m": 65536, "n": 65536, "k": 64}
    case = rs_case(nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, comm_sms="40")
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == (nodes - 1) * 131072 * TILE_BYTES == case.point.network_bytes
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us


def test_a_wrong_input_of_one_rank_shows_in_one_shard() -> None:
    case = rs_case(blocks=4, nodes=2, ranks_per_node=2, shape={"m": 130, "n": 300, "k": 20}, data=True)
    with simulation_of(case) as simulation:
        # Row 129 of A on rank 1, which is the last row of rank 3's shard; no entry of B is zero.
        a = simulation.view(1, simulation.heap.offsets["a"], 130 * 24, "u2").reshape(130, 24)
        a[129, 5] = to_bf16(np.float32([100.0]))[0]
        assert simulation.run().status == "ok"
        check = verify(simulation)
    assert check.mismatches == 300
    assert check.first is not None
    assert check.first.startswith("rank 3 row 30 column 0: expected ")
