"""The controller, on the simulator: where it ends up, and that it does so by moving blocks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.defaults import GPU_COMM_SMS
from mkbench.platforms.launch_parameters import Record
from mkbench.platforms.sim import verify

COMPUTE, COMMUNICATION = {1}, {2, 3, 4}
# At this size the network is what a slow network slows; beyond 116 blocks the curve only climbs.
TWO_NODES = {"cluster": "2x8-h200-ib", "sizes": "8192"}
TWO_NODES_COMM_SMS = range(12, 117, 8)
ONE_NODE = {"cluster": "1x8-h100", "sizes": "4096"}


@dataclass(frozen=True)
class Run:
    """A run with its controller's history, and what each block of rank 0 did."""

    latency_us: float
    history: Record
    switched: int
    """Blocks that did tasks of both sides."""


def adaptive(case: Case) -> Run:
    with simulation_of(case, trace_capacity=2000) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        roles = [{int(role) for role in events["role"]} for events in simulation.trace(0)]
        switched = sum(bool(block & COMPUTE and block & COMMUNICATION) for block in roles)
        return Run(result.latencies_us[0], simulation.history(), switched)


def best(counts: range | tuple[int, ...], **settings: object) -> float:
    return min(result_of(case_of(comm_sms=str(count), **settings)).latencies_us[0] for count in counts)


@pytest.fixture(scope="module")
def undisturbed() -> float:
    return best(TWO_NODES_COMM_SMS, **TWO_NODES)


@pytest.fixture(scope="module")
def slow_network(undisturbed: float) -> tuple[str, float]:
    """The fault, and the best static partition's latency with it."""
    fault = f"network_slow@{undisturbed / 2:.0f}usx2"
    return fault, best(TWO_NODES_COMM_SMS, faults=(fault,), **TWO_NODES)


def check_that_it_moved(run: Run, start: int) -> None:
    history = np.sort(run.history, order="time_ns")
    assert history["target"][0] == start
    assert history["target"][-1] != start  # with nothing left to do it stays where it was
    assert len(set(history["target"])) > 2
    assert len(set(history["communicating"])) > 2
    assert len(set(history["computing"])) > 2
    assert run.switched > 0


@pytest.mark.parametrize("start", [1, 100])
def test_it_recovers_from_a_bad_start_on_one_node(start: int) -> None:
    run = adaptive(case_of(policies="adaptive", start_comm_sms=start, comm_sms=None, **ONE_NODE))
    assert run.latency_us <= 1.10 * best(GPU_COMM_SMS[::2], **ONE_NODE)
    check_that_it_moved(run, start)


@pytest.mark.parametrize("start", [1, 100])
def test_it_recovers_from_a_bad_start_on_two_nodes(start: int, undisturbed: float) -> None:
    run = adaptive(case_of(policies="adaptive", start_comm_sms=start, comm_sms=None, **TWO_NODES))
    assert run.latency_us <= 1.10 * undisturbed
    check_that_it_moved(run, start)


@pytest.mark.parametrize("start", [1, 100, None])
def test_it_recovers_from_a_network_that_becomes_slow(
    start: int | None, undisturbed: float, slow_network: tuple[str, float]
) -> None:
    fault, slow_best = slow_network
    assert slow_best > 1.05 * undisturbed  # or the fault would test nothing
    case = case_of(policies="adaptive", start_comm_sms=start, comm_sms=None, faults=(fault,), **TWO_NODES)
    run = adaptive(case)
    assert run.latency_us <= 1.10 * slow_best
    check_that_it_moved(run, case.point.start_comm_sms)


def test_a_start_that_stays_would_not_recover(undisturbed: float) -> None:
    static = result_of(case_of(comm_sms="1", **TWO_NODES)).latencies_us[0]
    assert static > 5 * undisturbed


def test_a_fixed_partition_writes_no_history() -> None:
    with simulation_of(case_of(comm_sms="16", **ONE_NODE)) as simulation:
        assert simulation.run().status == "ok"
        assert len(simulation.history()) == 0


def test_a_history_is_in_order_and_within_bounds() -> None:
    case = case_of(policies="adaptive", start_comm_sms=1, comm_sms=None, **TWO_NODES)
    run = adaptive(case)
    history = np.sort(run.history, order="time_ns")
    for column in ("compute_done", "communication_done"):
        assert (history[column][1:] >= history[column][:-1]).all(), column
    assert history["compute_done"][-1] == case.tiles
    assert history["communication_done"][-1] == 2 * case.own_tiles(0)
    assert history["target"].max() <= case.point.blocks - 1
    assert (history["computing"] + history["communicating"]).max() <= case.point.blocks
    # One update each two microseconds, and a row at either end.
    assert 10 < len(history) <= run.latency_us / 2 + 3


SHAPES = {
    "one tile": {"m": 100, "n": 200, "k": 16},
    "fewer tiles than ranks": {"m": 200, "n": 256, "k": 16},
    "a few": {"m": 300, "n": 700, "k": 16},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 5), (2, 1), (2, 5)])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_extremes_end_and_are_exact(
    shape: dict[str, int], nodes: int, ranks_per_node: int, policy: str
) -> None:
    for blocks, comm_sms in {(2, 1), (9, 1), (9, 8)}:
        case = case_of(
            blocks=blocks, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, policies=policy,
            comm_sms=str(comm_sms), start_comm_sms=comm_sms, data=True,
        )  # fmt: skip
        with simulation_of(case, launches=2) as simulation:
            result = simulation.run()
            assert result.status == "ok", result.report
            assert verify(simulation).mismatches == 0
            history = simulation.history()
            assert (history["target"] <= blocks - 1).all()
            assert (history["computing"] + history["communicating"] <= blocks).all()


def test_ranks_without_a_tile_of_their_own_leave_the_others_alone() -> None:
    case = case_of(blocks=4, nodes=2, ranks_per_node=5, shape=SHAPES["fewer tiles than ranks"])
    assert [case.own_tiles(rank) for rank in range(5)] == [1, 1, 0, 0, 0]
    for policy, launches in product(("static", "adaptive"), (1, 3)):
        settings = {"policies": policy, "comm_sms": "3", "start_comm_sms": 3}
        result = result_of(
            case_of(blocks=4, nodes=2, ranks_per_node=5, shape=SHAPES["fewer tiles than ranks"], **settings),
            launches=launches,
        )
        assert result.status == "ok", result.report
        assert result.payload_bytes == launches * case.point.network_bytes
