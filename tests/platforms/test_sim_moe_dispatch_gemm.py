"""MoE dispatch + GEMM of any routing on any small cluster: every rank's rows are right bit for bit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.memory import heap_bytes
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.routing import Deal, routing_of
from mkbench.platforms.sim import verify
from mkbench.platforms.simulate import Simulation

COMPUTE, LOCAL, SEND, RECEIVE = 1, 2, 3, 4
WINDOW, TILE_M, TILE_N = 256, 128, 256
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


def moe_case(**settings: Any) -> Case:
    """The only point of a plan, as `case_of` makes it."""
    return case_of(kernels="moe_dispatch_gemm", **settings)


def extents(t: int, hidden: int, inter: int, experts: int, topk: int, skew: int = 0) -> dict[str, int]:
    given = {"t": t, "hidden": hidden, "inter": inter, "experts": experts, "topk": topk}
    return given | ({"skew": skew} if skew else {})


def crossings(case: Case) -> list[tuple[int, int, list[set[int]]]]:
    """For each rank, other node and window of the rank's tokens: (rank, node, the experts there of each token
    that crosses). Counted token by token, not by the code under test."""
    point, found = case.point, []
    chosen = routing_of(point.shape).experts
    shard, share = -(-point.shape.t // point.ranks), -(-point.shape.experts // point.ranks)
    for rank in range(point.ranks):
        tokens = range(min(rank * shard, point.shape.t), min((rank + 1) * shard, point.shape.t))
        for start in range(0, len(tokens), WINDOW):
            for node in set(range(point.nodes)) - {rank // point.ranks_per_node}:
                there = [
                    {e for e in chosen[t].tolist() if e // share // point.ranks_per_node == node}
                    for t in tokens[start : start + WINDOW]
                ]
                found.append((rank, node, [experts for experts in there if experts]))
    return found


def expected_bytes(case: Case) -> int:
    """Rows of 128-byte multiples, and for each window a list: starts of its experts, 8 bytes for a choice."""
    point = case.point
    row = -(-2 * point.shape.hidden // 128) * 128
    words = 2 + point.ranks_per_node * -(-point.shape.experts // point.ranks)
    header = -(-4 * words // 16) * 16
    return sum(
        len(tokens) * row + header + -(-8 * sum(map(len, tokens)) // 16) * 16
        for _, _, tokens in crossings(case)
    )


def expected_commands(case: Case) -> int:
    """A list of each window, the chunks of its tokens, and a credit of each rank to each other node."""
    point = case.point
    puts = sum(1 + -(-len(tokens) // point.chunk_tiles) for _, _, tokens in crossings(case))
    return puts + point.ranks * (point.nodes - 1)


def check_weights(simulation: Simulation) -> None:
    """Each row of the result has the router's weight beside it, bit for bit."""
    point = simulation.point
    deal = Deal(point.shape, point.nodes, point.ranks_per_node)
    for rank in range(point.ranks):
        _, _, weights = deal.of_rank(rank)
        found = simulation.view(rank, simulation.heap.offsets["row_weights"], len(weights), np.float32)
        assert np.array_equal(found, weights), f"rank {rank}"


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    experts = draw(st.integers(1, 24))
    return extents(
        draw(st.sampled_from((1, 2, 255, 257, 600)) | st.integers(1, 800)),
        draw(st.sampled_from((1, 7, 8, 64, 65)) | st.integers(1, 80)),
        draw(st.sampled_from((1, 8, TILE_N, TILE_N + 1)) | st.integers(1, 2 * TILE_N)),
        experts,
        draw(st.integers(1, min(6, experts))),
        draw(st.sampled_from((0, 0, 120, 400, 3000))),
    )


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int]:
    """Blocks of a rank, and how many communicate."""
    blocks = draw(st.integers(2, 12))
    return blocks, draw(st.integers(1, blocks - 1))


@pytest.mark.timeout(0 if STRESS else 300)
@CASES
@given(
    nodes=st.integers(1, 4),
    ranks_per_node=st.integers(1, 5),
    shape=shapes(),
    partition=partitions(),
    policy=st.sampled_from(("static", "adaptive")),
    chunk_tokens=st.none() | st.integers(1, 40),
    launches=st.integers(1, 3),
    stress=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
# Several windows a rank, three launches in random order.
@example(2, 1, extents(1100, 24, 300, 6, 3), (4, 2), "adaptive", 7, 3, True, 1)
@example(3, 2, extents(40, 8, 8, 12, 5), (2, 1), "static", None, 3, True, 2)
@example(4, 1, extents(300, 8, 8, 9, 4, 150), (3, 1), "adaptive", 1, 3, True, 3)
# One rank; one expert; every token with every expert.
@example(1, 1, extents(700, 16, 260, 5, 2), (5, 2), "adaptive", None, 2, False, 4)
@example(2, 2, extents(500, 16, 16, 1, 1), (4, 1), "static", None, 2, True, 5)
@example(2, 3, extents(130, 16, 16, 6, 6), (4, 1), "adaptive", None, 2, True, 6)
def test_every_row_of_every_rank_is_exact(
    nodes: int,
    ranks_per_node: int,
    shape: dict[str, int],
    partition: tuple[int, int],
    policy: str,
    chunk_tokens: int | None,
    launches: int,
    stress: bool,
    seed: int,
) -> None:
    blocks, comm_sms = partition
    case = moe_case(
        blocks=blocks,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        shape=shape,
        policies=policy,
        comm_sms=str(comm_sms),
        start_comm_sms=comm_sms,
        chunk_tiles=chunk_tokens,
        seed=seed,
        data=True,
    )
    with simulation_of(case, seed=seed, launches=launches, stress=stress) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        check = verify(simulation)
        check_weights(simulation)
    assert check.elements == shape["t"] * shape["topk"] * shape["inter"]
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == launches * case.point.network_bytes == launches * expected_bytes(case)
    assert result.commands == launches * expected_commands(case)
    if not stress and case.point.lower_bound_us is not None:
        assert min(result.latencies_us) >= case.point.lower_bound_us


# What a router may do: (extents, and what it does with them on four ranks).
EXTREMES = {
    "one expert has all tokens": extents(300, 16, 40, 8, 1, 9000),
    "all tokens go to one rank": extents(300, 16, 40, 8, 2, 9000),
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
        check_weights(simulation)
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == 2 * expected_bytes(case)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 3), (2, 2)])
def test_inputs_are_left_as_they_were(nodes: int, ranks_per_node: int) -> None:
    shape = extents(333, 40, 70, 8, 3)
    case = moe_case(blocks=4, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, data=True)
    kernel, ranks = workload("moe_dispatch_gemm"), nodes * ranks_per_node
    with simulation_of(case, launches=2) as simulation:
        assert simulation.run().status == "ok"
        for rank in range(ranks):
            for name, values in kernel.inputs(case.point.shape, rank, ranks, case.point.seed).items():
                pitch = kernel.pitches(case.point.shape)[name]
                found = simulation.view(rank, simulation.heap.offsets[name], len(values) * pitch, np.uint16)
                assert np.array_equal(found.reshape(-1, pitch)[:, : values.shape[1]], to_bf16(values)), name


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
            check_weights(simulation)
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
    assert result.commands == expected_commands(case) > 2 * 2048


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
