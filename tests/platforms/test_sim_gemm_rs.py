"""GEMM + ReduceScatter of any shape on any small cluster: every rank's shard is right bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected import expected, shard_tiles
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.limits import MAX_CHUNK_TILES
from mkbench.platforms.sim import verify

COMPUTE = 1


def rs_case(**settings: Any) -> Case:
    """The only point of a plan, as `case_of` makes it."""
    return case_of(kernels="gemm_rs", **settings)


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
    once = expected(case)
    assert result.payload_bytes == case.point.network_bytes == once.payload_bytes
    assert result.commands == once.commands


def test_the_largest_command_arrives_whole() -> None:
    case = rs_case(
        blocks=8, nodes=2, ranks_per_node=1, shape={"m": 2560, "n": 2048, "k": 8}, chunk_tiles=MAX_CHUNK_TILES
    )
    assert shard_tiles(case)[0] > MAX_CHUNK_TILES
    result, once = result_of(case), expected(case)
    assert result.status == "ok", result.report
    assert (result.payload_bytes, result.commands) == (once.payload_bytes, once.commands)


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
