"""AllGather + GEMM of any shape on any small cluster: every rank's result is right bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected import MOST_PUT_BYTES, expected, row_bytes, shards
from sim_rig import TILE_M, Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.resources import kernels_dir
from mkbench.platforms.sim import verify

COMPUTE, LOCAL, SEND, RECEIVE = 1, 2, 3, 4


def ag_case(**settings: Any) -> Case:
    """The only point of a plan, as `case_of` makes it."""
    return case_of(kernels="ag_gemm", **settings)


def test_all_ranks_of_the_largest_node_forward_too() -> None:
    case = ag_case(
        blocks=3,
        nodes=3,
        ranks_per_node=16,
        shape={"m": 48 * 20 - 7, "n": 9, "k": 40},
        comm_sms="2",
        data=True,
    )
    with simulation_of(case, launches=2) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        assert verify(simulation).mismatches == 0


# 16376 is the longest row of which a whole chunk fits one command. Beyond, chunks cross in pieces.
@pytest.mark.parametrize(("k", "pieces"), [(16376, 1), (16384, 2), (32768, 3), (300_000, 19)])
def test_a_chunk_of_more_than_a_command_holds_crosses_in_pieces(k: int, pieces: int) -> None:
    # Shards of a whole chunk and one of few rows, which takes fewer pieces.
    case = ag_case(blocks=8, nodes=3, ranks_per_node=1, shape={"m": 436, "n": 64, "k": k}, comm_sms="3")
    assert shards(436, 3) == [146, 146, 144]
    assert -(-TILE_M * row_bytes(case) // (MOST_PUT_BYTES // 128 * 128)) == pieces
    result, once = result_of(case, launches=2), expected(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == 2 * case.point.network_bytes == 2 * once.payload_bytes
    assert result.commands == 2 * once.commands > 2 * 2 * 3 * pieces


def test_pieces_arrive_whole() -> None:
    case = ag_case(
        blocks=4, nodes=3, ranks_per_node=1, shape={"m": 3 * 130, "n": 8, "k": 33000}, comm_sms="2", data=True
    )
    assert TILE_M * row_bytes(case) > 2 * MOST_PUT_BYTES
    with simulation_of(case) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        assert verify(simulation).mismatches == 0


def test_tiles_are_computed_in_the_order_in_which_shards_arrive() -> None:
    nodes, ranks_per_node, columns = 3, 2, 3
    case = ag_case(
        blocks=2, nodes=nodes, ranks_per_node=ranks_per_node,
        shape={"m": 6 * 256, "n": columns * 256, "k": 32}, comm_sms="1",
    )  # fmt: skip
    with simulation_of(case, trace_capacity=200) as simulation:
        assert simulation.run().status == "ok"
        events = [np.concatenate(simulation.trace(rank)) for rank in range(case.point.ranks)]
        orders = [each["task"][each["role"] == COMPUTE].tolist() for each in events]
        # Tickets count own shard, node, hops; that they stand for these is what the exact result says.
        assert orders == [list(range(case.point.ranks * 2 * columns))] * case.point.ranks
        # Of three nodes, each sends its own two chunks and passes two on.
        for each in events:
            assert each["task"][each["role"] == SEND].tolist() == [0, 1, 2, 3]
            received = each["task"][each["role"] == RECEIVE]
            assert received.tolist() == list(range(len(received)))


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_buffers_of_the_network_do_not_grow_with_the_number_of_nodes(nodes: int) -> None:
    case = ag_case(nodes=nodes, ranks_per_node=1, shape={"m": nodes * 512, "n": 8, "k": 64}, comm_sms="2")
    with simulation_of(case) as simulation:
        slots = (simulation.heap.offsets["inbox"] - simulation.heap.offsets["outbox"]) // (TILE_M * 128)
        assert slots == 4 * min(nodes - 1, 2)
        assert simulation.run().status == "ok"


@pytest.mark.parametrize("size", [2048, 4096])
@pytest.mark.parametrize("cluster", ["1x8-h100", "2x8-h200-ib"])
@pytest.mark.parametrize(("policy", "comm_sms"), [("static", 8), ("static", 40), ("adaptive", None)])
def test_no_run_beats_the_lower_bound(size: int, cluster: str, policy: str, comm_sms: int | None) -> None:
    case = ag_case(cluster=cluster, sizes=str(size), policies=policy, comm_sms=comm_sms and str(comm_sms))
    result = result_of(case)
    assert result.status == "ok", result.report
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us


def test_a_wrong_input_of_one_rank_shows_in_its_rows_everywhere() -> None:
    case = ag_case(blocks=4, nodes=2, ranks_per_node=2, shape={"m": 130, "n": 300, "k": 20}, data=True)
    with simulation_of(case) as simulation:
        # Row 2 of rank 3's shard is row 101 of A; no entry of B is zero.
        a = simulation.view(3, simulation.heap.offsets["a"], 33 * 24, "u2").reshape(33, 24)
        a[2, 5] = to_bf16(np.float32([100.0]))[0]
        assert simulation.run().status == "ok"
        check = verify(simulation)
    assert check.mismatches == 4 * 300
    assert check.first is not None
    assert check.first.startswith("rank 0 row 101 column 0: expected ")


# What keeps a launch right, taken out: (file, what stands there, what it becomes).
GUARDS = {
    "compute waits for its chunk": (
        "ag_gemm.cu",
        "!wait_all<Scope::system>(block, input(place), now_value())",
        "false",
    ),
    "a lent block looks for its chunk": (
        "ag_gemm.cu",
        "if (lent && !(is_ready(ticket) && claim_if",
        "if (lent && !(claim_if",
    ),
    "a lent block takes what it looked at": (
        "ag_gemm.cu",
        "claim_if(block, tickets, p.epoch, ticket)",
        "((ticket = claim(block, tickets, p.epoch)) < map.tickets())",
    ),
    "receive waits for what arrives": (
        "mk/all_gather.h",
        "if (!wait_all<Scope::system>(block, map.arrived_of(from), now_value())) return false;",
        "",
    ),
    "receive waits for a free slot": (
        "mk/all_gather.h",
        "if (before.lane >= 0 && !wait_all",
        "if (false && !wait_all",
    ),
    "a chunk is announced when all its strips are copied": (
        "mk/all_gather.h",
        "map.copied(from.at), p.epoch, strips)",
        "map.copied(from.at), p.epoch, u32(strips > 0))",
    ),
}


def edited(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the sources in which one text, found once, is replaced."""
    sources = folder / "kernels"
    shutil.copytree(kernels_dir(), sources)
    text = (sources / file).read_text()
    assert text.count(old) == 1
    (sources / file).write_text(text.replace(old, new))
    return sources


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_of_a_launch_is_needed(name: str, tmp_path: Path) -> None:
    sources = edited(tmp_path, *GUARDS[name])
    assert any(is_wrong(sources, seed) for seed in range(160))


def is_wrong(sources: Path, seed: int) -> bool:
    """Whether launches in random order go wrong: on a ring that uses slots again, or with lent blocks."""
    nodes, blocks, comm_sms, rows, k = ((4, 4, 2, 200, 512), (2, 12, 10, 300, 8))[seed % 2]
    case = ag_case(
        blocks=blocks, nodes=nodes, ranks_per_node=2, shape={"m": nodes * 2 * rows, "n": 9, "k": k},
        policies="adaptive", start_comm_sms=comm_sms, data=True, seed=1,
    )  # fmt: skip
    with simulation_of(case, seed=seed, sources=sources, launches=4, stress=True) as simulation:
        return simulation.run().status != "ok" or verify(simulation).mismatches > 0


# A launch that starts while another rank is still in the one before does no harm that the last launch's
# result would show: every launch makes the same anew. When tasks ran does show it.
EXIT_GUARDS = {
    "for the node": (
        "if (!wait_all<Scope::system>(block, map.finished_at(p.local_rank), now_value())) return false;",
        "",
    ),
    "for credits": ("chunk < chunks; chunk += kAtOnce", "false; chunk += kAtOnce"),
}


def launches_overlap(case: Case, begins: tuple[int, int], ends: tuple[int, int], **options: Any) -> bool:
    """Whether, in the second of two launches, a (rank, role) begins before another has ended the first."""
    with simulation_of(case, launches=2, trace_capacity=2000, **options) as simulation:
        assert simulation.run().status == "ok"

        def times(rank: int, role: int, column: str) -> list[int]:
            events = np.concatenate(simulation.trace(rank))
            return sorted(events[events["role"] == role][column].tolist())

        first, last = times(*begins, "begin_ns"), times(*ends, "end_ns")
        return first[len(first) // 2] < last[len(last) // 2 - 1]


def overlaps(guard: str, **options: Any) -> bool:
    if guard == "for the node":
        # One tile a shard, which takes so long that ranks end far apart, by the spread of its cost.
        case = ag_case(
            blocks=2, nodes=1, ranks_per_node=2, shape={"m": 256, "n": 256, "k": 1 << 20}, comm_sms="1"
        )
        return any(launches_overlap(case, (a, LOCAL), (1 - a, COMPUTE), **options) for a in (0, 1))
    # Rank 1 has half as much to send, so it is under way before the network becomes slow. Rank 0 has all it
    # needs long before rank 1 has.
    case = ag_case(
        blocks=2, nodes=2, ranks_per_node=1, shape={"m": 3, "n": 8, "k": 1 << 17}, comm_sms="1",
        faults=("network_slow@27usx1000",),
    )  # fmt: skip
    return launches_overlap(case, (0, SEND), (1, RECEIVE), **options)


@pytest.mark.parametrize("guard", EXIT_GUARDS)
def test_a_launch_waits_for_ranks_that_are_still_in_the_one_before(guard: str, tmp_path: Path) -> None:
    assert not overlaps(guard)
    assert overlaps(guard, sources=edited(tmp_path, "mk/all_gather.h", *EXIT_GUARDS[guard]))
