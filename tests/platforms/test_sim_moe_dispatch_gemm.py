"""MoE dispatch + GEMM of any routing on any small cluster: every rank's rows are right bit for bit."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from expected import WINDOW, expected
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.memory import heap_bytes
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.routing import Deal, routing_of
from mkbench.platforms.sim import verify

COMPUTE, LOCAL, SEND, RECEIVE = 1, 2, 3, 4
TILE_M, TILE_N = 128, 256


def moe_case(**settings: Any) -> Case:
    """The only point of a plan, as `case_of` makes it."""
    return case_of(kernels="moe_dispatch_gemm", **settings)


def extents(t: int, hidden: int, inter: int, experts: int, topk: int, skew: int = 0) -> dict[str, int]:
    given = {"t": t, "hidden": hidden, "inter": inter, "experts": experts, "topk": topk}
    return given | ({"skew": skew} if skew else {})


# What a router may do: (extents, and what it does with them on four ranks).
EXTREMES = {
    "one expert has all tokens": extents(300, 16, 40, 8, 1, 9000),
    "all tokens go to one rank": extents(300, 16, 40, 8, 2, 9000),
    "all tokens go to one node": extents(302, 16, 40, 8, 2, 9000),
    "popularity is Zipf's": extents(300, 16, 40, 24, 2, 100),
    "most experts have none": extents(3, 16, 40, 64, 2),
    "a rank has no expert": extents(200, 16, 40, 3, 2),
    "ranks have no token": extents(2, 16, 40, 8, 4),
    "one token": extents(1, 16, 40, 8, 2),
    "blocks of rows are full": extents(256, 16, 40, 4, 4),
}


def test_the_extremes_are_what_they_say() -> None:
    def rows(name: str) -> tuple[list[int], list[int]]:
        deal = Deal(Shape(**EXTREMES[name]), 2, 2)
        return deal.expert_rows().tolist(), deal.rows().tolist()

    assert sorted(rows("one expert has all tokens")[0]) == [0] * 7 + [300]
    assert sorted(rows("all tokens go to one rank")[0]) == [0] * 6 + [300, 300]
    assert rows("all tokens go to one node")[1] == [302, 302, 0, 0]
    chosen = sorted(rows("popularity is Zipf's")[0])
    assert chosen[0] < 300 * 2 / 24 / 4 < 300 * 2 / 24 * 4 < chosen[-1]
    assert rows("most experts have none")[0].count(0) >= 58
    assert rows("a rank has no expert")[1][3] == 0
    assert len(Deal(Shape(**EXTREMES["ranks have no token"]), 2, 2).tokens(3)) == 0
    assert set(rows("blocks of rows are full")[0]) == {256}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 4), (2, 2), (4, 1)])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_extreme_routing(name: str, nodes: int, ranks_per_node: int, policy: str) -> None:
    case = moe_case(
        blocks=5, nodes=nodes, ranks_per_node=ranks_per_node, shape=EXTREMES[name], policies=policy,
        comm_sms="2" if policy == "static" else None, data=True,
    )  # fmt: skip
    with simulation_of(case, launches=2) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        check = verify(simulation)
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == 2 * expected(case).payload_bytes


def test_a_wrong_weight_of_a_row_shows_in_the_check() -> None:
    case = moe_case(blocks=4, nodes=2, ranks_per_node=2, shape=extents(200, 16, 40, 8, 3), data=True)
    with simulation_of(case) as simulation:
        # Of token 151, the second of rank 3: its three rows lie where its experts are.
        weights = simulation.view(3, simulation.heap.offsets["weights"], 50 * 3, "f4").reshape(50, 3)
        weights[1] = -1
        assert simulation.run().status == "ok"
        check = verify(simulation)
    assert check.mismatches == 3
    assert check.first is not None
    assert re.fullmatch(r"rank \d row_weights \d+: expected 0\.\d+, got -1\.0", check.first)


@pytest.mark.parametrize("skew", [0, 100, 300])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 1), (2, 3), (3, 2), (4, 1)])
def test_a_token_crosses_once_to_each_node_that_it_is_routed_to(
    nodes: int, ranks_per_node: int, skew: int
) -> None:
    """With rows of twice the bytes, and the same lists, what is sent more is a row for each that crosses."""
    tokens, sent = 900, []
    for hidden in (64, 128):
        shape = extents(tokens, hidden, 40, 24, 3, skew)
        case = moe_case(blocks=6, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape)
        result = result_of(case)
        assert result.status == "ok", result.report
        sent.append(result.payload_bytes)
    ranks = nodes * ranks_per_node
    node_of = routing_of(case.point.shape).experts // -(-24 // ranks) // ranks_per_node
    home = [token // -(-tokens // ranks) // ranks_per_node for token in range(tokens)]
    away = [[node for node in node_of[token].tolist() if node != home[token]] for token in range(tokens)]
    crossing = sum(len(set(nodes)) for nodes in away)
    assert sent[1] - sent[0] == 128 * crossing
    assert 0 < crossing < sum(map(len, away))
    assert crossing < (nodes - 1) * tokens


@pytest.mark.parametrize("policy", ["static", "adaptive"])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 3), (2, 2)])
def test_without_data_the_routing_and_all_times_are_the_same(
    policy: str, nodes: int, ranks_per_node: int
) -> None:
    def run(data: bool) -> tuple[object, ...]:
        case = moe_case(
            blocks=6, nodes=nodes, ranks_per_node=ranks_per_node, shape=extents(700, 40, 300, 8, 3),
            policies=policy, comm_sms="2" if policy == "static" else None, data=data,
        )  # fmt: skip
        with simulation_of(case, launches=2) as simulation:
            result = simulation.run()
            deal = Deal(case.point.shape, nodes, ranks_per_node)
            for rank in range(case.point.ranks):
                weights = deal.of_rank(rank)[2]
                found = simulation.view(rank, simulation.heap.offsets["row_weights"], len(weights), "f4")
                assert np.array_equal(found, weights), f"rank {rank}"
        return result.status, result.latencies_us, result.events, result.payload_bytes

    assert run(False) == run(True)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 4), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_every_task_is_done_once(nodes: int, ranks_per_node: int, policy: str) -> None:
    shape = extents(1500, 64, 300, 10, 3)
    case = moe_case(
        blocks=6, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, policies=policy,
        comm_sms="2" if policy == "static" else None,
    )  # fmt: skip
    ranks = nodes * ranks_per_node
    shard = -(-1500 // ranks)
    windows = -(-shard // WINDOW)
    chunks = (nodes - 1) * windows * WINDOW // 16
    gathers = windows * ranks_per_node * -(-10 // ranks)
    rows = np.bincount(routing_of(case.point.shape).experts.reshape(-1), minlength=10)
    share = -(-10 // ranks)
    with simulation_of(case, trace_capacity=4000) as simulation:
        assert simulation.run().status == "ok"
        for rank in range(ranks):
            events = [event for block in simulation.trace(rank) for event in block]
            done = {
                role: Counter(int(event["task"]) for event in events if event["role"] == role)
                for role in (COMPUTE, LOCAL, SEND, RECEIVE)
            }
            blocks = sum(-(-int(count) // TILE_M) for count in rows[rank * share : (rank + 1) * share])
            assert done[COMPUTE] == Counter(range(2 * blocks))
            assert done[SEND] == Counter(range(chunks))
            assert sum(done[LOCAL].values()) == gathers
            assert done[RECEIVE] == Counter(range(chunks + (nodes - 1) * gathers))
            tasks = workload("moe_dispatch_gemm").tasks(case.point.shape, nodes, ranks_per_node, 16)
            if rank == 0:
                assert tasks == (2 * blocks, 2 * chunks + nodes * gathers)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_fixed_partition_keeps_every_block_on_its_side(nodes: int) -> None:
    case = moe_case(blocks=7, nodes=nodes, ranks_per_node=3, shape=extents(900, 64, 900, 12, 3), comm_sms="3")
    with simulation_of(case, trace_capacity=4000) as simulation:
        assert simulation.run().status == "ok"
        for rank in range(3 * nodes):
            for index, events in enumerate(simulation.trace(rank)):
                roles = {int(role) for role in events["role"]}
                assert roles <= ({LOCAL, SEND, RECEIVE} if index < 3 else {COMPUTE}), (index, roles)


def test_a_block_that_waits_for_rows_helps_to_get_them() -> None:
    case = moe_case(
        blocks=8, nodes=2, ranks_per_node=2, shape=extents(900, 640, 600, 8, 3), policies="adaptive"
    )
    with simulation_of(case, trace_capacity=4000) as simulation:
        assert simulation.run().status == "ok"
        last = simulation.trace(0)[7]
    assert {int(role) for role in last["role"]} > {COMPUTE}


def test_a_rank_that_sends_more_than_its_rings_hold_waits_and_ends() -> None:
    # Chunks of one token, by the one block that communicates, through one ring of 2048 commands.
    case = moe_case(
        blocks=3, nodes=2, ranks_per_node=1, shape=extents(8000, 64, 8, 2, 2), chunk_tiles=1, comm_sms="1"
    )
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.commands == expected(case).commands > 2 * 2048


# The outputs of the largest shape have more than 2^31 elements on a rank with room for the worst routing.
def test_a_layer_of_real_size_and_its_bound() -> None:
    case = moe_case(sizes="131072", comm_sms="32")
    assert case.point.blocks == 132
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == case.point.network_bytes
    assert case.point.lower_bound_us is not None
    assert case.point.lower_bound_us < result.latencies_us[0] < 2 * case.point.lower_bound_us


def test_metadata_takes_memory_without_data_too() -> None:
    point = moe_case(sizes="4096").point
    where = (point.nodes, point.ranks_per_node, point.chunk_tiles)
    kernel = workload(point.kernel)
    metadata = sum(buffer.bytes for buffer in kernel.buffers(point.shape, *where) if buffer.metadata)
    assert metadata > 1 << 18
    control = kernel.control_bytes(point.shape, *where)
    assert heap_bytes(point, data=False) == control + metadata < heap_bytes(point, data=True)
