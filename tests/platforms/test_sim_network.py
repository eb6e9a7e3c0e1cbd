"""What crosses the simulated network, counted by the transport, against the workload's formula."""

from __future__ import annotations

import pytest
from sim_rig import TILE_BYTES, Case, case_of, result_of

from mkbench.core.limits import MAX_CHUNK_TILES


def expected_commands(case: Case) -> int:
    """Each rank sends every own chunk, and a credit if it owns any, to every other node."""
    ranks = range(case.point.ranks)
    puts = sum(case.own_chunks(rank) + (case.own_tiles(rank) > 0) for rank in ranks)
    return (case.point.nodes - 1) * puts


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node"), [(2, 1), (2, 2), (2, 3), (2, 8), (3, 1), (3, 2), (5, 2)]
)
@pytest.mark.parametrize("policy", ["static", "adaptive"])
# 1 tile, 25 tiles in chunks of which the last is cut, 64 tiles in whole chunks
@pytest.mark.parametrize("mn", [(90, 100), (640, 1280), (1024, 2048)])
def test_bytes_and_commands_are_what_the_formula_says(
    nodes: int, ranks_per_node: int, policy: str, mn: tuple[int, int]
) -> None:
    case = case_of(
        blocks=8, nodes=nodes, ranks_per_node=ranks_per_node, shape={"m": mn[0], "n": mn[1], "k": 32},
        policies=policy, comm_sms="3" if policy == "static" else None,
    )  # fmt: skip
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == case.point.network_bytes
    assert result.payload_bytes == nodes * (nodes - 1) * case.tiles * TILE_BYTES
    assert result.commands == expected_commands(case)


@pytest.mark.parametrize("chunk_tiles", [1, 2, 3, 7, 63])
def test_the_chunk_changes_commands_and_not_bytes(chunk_tiles: int) -> None:
    case = case_of(
        blocks=8, nodes=2, ranks_per_node=3, shape={"m": 640, "n": 1280, "k": 32}, chunk_tiles=chunk_tiles
    )
    result = result_of(case)
    assert result.payload_bytes == 2 * 25 * TILE_BYTES
    assert result.commands == expected_commands(case)


def test_the_largest_command_arrives_whole() -> None:
    case = case_of(
        blocks=8, nodes=2, ranks_per_node=2, shape={"m": 2560, "n": 5120, "k": 8}, chunk_tiles=MAX_CHUNK_TILES
    )
    assert case.own_chunks(0) > 2
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == case.point.network_bytes


def test_one_node_sends_nothing() -> None:
    result = result_of(case_of(blocks=8, nodes=1, ranks_per_node=8, shape={"m": 640, "n": 1280, "k": 32}))
    assert (result.status, result.payload_bytes, result.commands) == ("ok", 0, 0)


def test_every_launch_sends_the_same_again() -> None:
    case = case_of(blocks=8, nodes=2, ranks_per_node=3, shape={"m": 640, "n": 1280, "k": 32})
    result = result_of(case, launches=3)
    assert result.payload_bytes == 3 * case.point.network_bytes
    assert result.commands == 3 * expected_commands(case)
    assert len(result.latencies_us) == 3


def test_a_rank_that_sends_more_than_its_rings_hold_waits_and_ends() -> None:
    # 4 rings of 64 commands; all chunks are sent by the one communicating block, through one ring.
    case = case_of(
        blocks=9, nodes=2, ranks_per_node=1, shape={"m": 2560, "n": 2560, "k": 8}, chunk_tiles=1, comm_sms="1"
    )
    assert case.tiles > 64 * 2
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.commands == 2 * (case.tiles + 1)


# Beyond 2^31 elements: indices, offsets and byte counts must all be 64 bits wide.
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 2), (2, 2)])
def test_outputs_of_more_than_two_to_the_31_elements(nodes: int, ranks_per_node: int) -> None:
    shape = {"m": 65536, "n": 65536, "k": 64}
    case = case_of(nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, comm_sms="40")
    assert case.point.blocks == 132
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == nodes * (nodes - 1) * 131072 * TILE_BYTES == case.point.network_bytes
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us
