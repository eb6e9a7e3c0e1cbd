"""What the blocks did, from the trace that the kernel itself writes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from sim_rig import Case, case_of, simulation_of

from mkbench.platforms.launch_parameters import Record

NONE, COMPUTE, LOCAL, SEND, RECEIVE = range(5)
SHAPE = {"m": 700, "n": 1300, "k": 64}  # 6 x 6 tiles, tails both ways


def traced(case: Case, **options: int) -> tuple[float, list[list[Record]]]:
    """Latency and, by rank and block, events."""
    with simulation_of(case, trace_capacity=2 * case.tiles, **options) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        return result.latencies_us[0], [simulation.trace(rank) for rank in range(case.point.ranks)]


def tasks(blocks: list[Record], role: int) -> Counter[int]:
    return Counter(int(event["task"]) for events in blocks for event in events if event["role"] == role)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 4), (1, 5), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_every_task_is_done_once(nodes: int, ranks_per_node: int, policy: str) -> None:
    case = case_of(
        blocks=6,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        shape=SHAPE,
        policies=policy,
        comm_sms="2" if policy == "static" else None,
    )
    _, ranks = traced(case)
    for rank, blocks in enumerate(ranks):
        assert len(blocks) == 6
        own, chunks = case.own_tiles(rank), case.own_chunks(rank)
        assert tasks(blocks, COMPUTE) == Counter(range(case.tiles))
        assert tasks(blocks, LOCAL) == Counter(range(own))
        assert tasks(blocks, SEND) == Counter(range(chunks if nodes > 1 else 0))
        assert tasks(blocks, RECEIVE) == Counter(range(own if nodes > 1 else 0))
        assert tasks(blocks, NONE) == Counter()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_fixed_partition_keeps_every_block_on_its_side(nodes: int) -> None:
    case = case_of(blocks=7, nodes=nodes, ranks_per_node=3, shape=SHAPE, comm_sms="3")
    _, ranks = traced(case)
    for blocks in ranks:
        for index, events in enumerate(blocks):
            roles = {int(role) for role in events["role"]}
            assert roles <= ({LOCAL, SEND, RECEIVE} if index < 3 else {COMPUTE}), (index, roles)
        # Every tile takes a while, so no computing block can have had them all.
        assert all(len(events) > 0 for events in blocks[3:])


@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_a_block_does_one_thing_at_a_time_within_the_launch(policy: str) -> None:
    case = case_of(
        blocks=6, nodes=2, ranks_per_node=3, shape=SHAPE, policies=policy,
        comm_sms="2" if policy == "static" else None,
    )  # fmt: skip
    latency_us, ranks = traced(case)
    start_ns = case.cluster.hardware.rate("kernel_start_ns")
    for events in (events for blocks in ranks for events in blocks):
        assert all(event["begin_ns"] <= event["end_ns"] for event in events)
        assert all(before["end_ns"] <= after["begin_ns"] for before, after in pairwise(events))
        assert all(event["begin_ns"] >= start_ns for event in events)
        assert all(event["end_ns"] <= latency_us * 1e3 for event in events)


def test_a_tile_is_reduced_only_after_every_rank_has_computed_it() -> None:
    case = case_of(blocks=6, nodes=2, ranks_per_node=3, shape=SHAPE)
    _, ranks = traced(case)
    chunk, local_ranks = case.point.chunk_tiles, case.point.ranks_per_node
    computed: list[dict[int, int]] = [{} for _ in ranks]
    for rank, blocks in enumerate(ranks):
        for event in (event for events in blocks for event in events if event["role"] == COMPUTE):
            computed[rank][int(event["task"])] = int(event["end_ns"])
    for rank, blocks in enumerate(ranks):
        node = rank // local_ranks * local_ranks
        for event in (event for events in blocks for event in events if event["role"] == LOCAL):
            slot = int(event["task"])
            tile = (slot // chunk * local_ranks + rank % local_ranks) * chunk + slot % chunk
            done = max(computed[node + peer][tile] for peer in range(local_ranks))
            assert event["begin_ns"] >= done


def test_a_full_trace_loses_events_and_nothing_else() -> None:
    case = case_of(blocks=3, nodes=1, ranks_per_node=2, shape=SHAPE, comm_sms="1")
    with simulation_of(case, trace_capacity=2) as simulation:
        result = simulation.run()
        assert result.status == "ok"
        assert [len(events) for events in simulation.trace(0)] == [2, 2, 2]
    with simulation_of(case) as simulation:
        assert simulation.run() == result
        assert [len(events) for events in simulation.trace(0)] == [0, 0, 0]
