"""Sums that ranks add atomically at their owner: what breaks them is found, and what they cost."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sim_rig import TILE_BYTES, TILE_M, TILE_N, Case, case_of, left_in_accumulators, simulation_of

from mkbench.core.cluster import load_cluster
from mkbench.core.resources import kernels_dir
from mkbench.platforms.sim import verify

LAUNCHES = 3
"""The second finds what the first left of its accumulators, the third what two have."""


def complaint(case: Case, *, seed: int, stress: bool, sources: Path | None = None) -> str | None:
    """What is wrong with one run, or None."""
    with simulation_of(case, seed=seed, launches=LAUNCHES, stress=stress, sources=sources) as simulation:
        result = simulation.run()
        if result.status != "ok":
            return result.report
        check = verify(simulation)
        if check.mismatches:
            return check.first
        if left_in_accumulators(simulation):
            return "an accumulator is not zero"
        if result.payload_bytes != LAUNCHES * case.point.network_bytes:
            return f"the network moved {result.payload_bytes} bytes"
    return None


FINISH = "    finish_stores(block);\n    schedule.done(tile);\n"
READY = "wait_all<Scope::system>(block, map.told(p.local_rank, ready, slot), now_value())"
ALL_BUT_ONE = (
    "[&] { Flags all = map.told(p.local_rank, ready, slot); --all.count;"
    " return wait_all<Scope::system>(block, all, now_value()); }()"
)
FAULTS: Mapping[str, tuple[str, str, str, str]] = {
    "accumulators are not cleared": (
        "gemm_rs",
        "mk/reduction.h",
        "if (map.is_atomic()) clear(",
        "if (false) clear(",
    ),
    "ready is said before the addition is done": (
        "gemm_ar",
        "mk/tiles.h",
        FINISH,
        "    schedule.done(tile);\n    finish_stores(block);\n",
    ),
    "gemm_ar waits for all ranks but one": ("gemm_ar", "gemm_ar.cu", READY, ALL_BUT_ONE),
    "gemm_rs waits for all ranks but one": ("gemm_rs", "gemm_rs.cu", READY, ALL_BUT_ONE),
    "partials are stored, not added": (
        "gemm_ar",
        "mk/reduction.h",
        "tile, nullptr, adds}",
        "tile, nullptr, false}",
    ),
    "the node hears too early that owners are finished": (
        "gemm_rs",
        "mk/reduction.h",
        "  bool can_lend()",
        "  bool told_early = (say_finished(), true);\n  bool can_lend()",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_breaks_the_protocol_is_caught(fault: str, tmp_path: Path) -> None:
    kernel, name, text, replacement = FAULTS[fault]
    sources = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), sources)
    before = (sources / name).read_text()
    assert before.count(text) == 1
    (sources / name).write_text(before.replace(text, replacement))
    runs = [(False, 0), *((True, seed) for seed in range(10))]
    for nodes in (1, 2):
        # Nine tiles, some cut, and each rank owns some.
        case = atomic_case(5, kernels=kernel, nodes=nodes, shape={"m": 300, "n": 600, "k": 16}, data=True)
        assert complaint(case, seed=1, stress=False) is None
        assert any(complaint(case, seed=seed, stress=stress, sources=sources) for stress, seed in runs)


def atomic_case(blocks: int, **settings: Any) -> Case:
    return case_of(blocks, **{"reduction": "atomic", "ranks_per_node": 2, "chunk_tiles": 1} | settings)


def durations_ns(reduction: str) -> dict[tuple[int, str], int]:
    """How long the tasks of a launch of one tile take, which rank 0 of two owns, by rank and role."""
    shape = {"m": TILE_M, "n": TILE_N, "k": 64}
    case = atomic_case(
        2, kernels="gemm_ar", cluster="1x8-h100", shape=shape, comm_sms="1", reduction=reduction
    )
    with simulation_of(case, trace_capacity=4) as simulation:
        assert simulation.run().status == "ok"
        return {
            (rank, {1: "compute", 2: "local"}[int(event["role"])]): int(event["end_ns"] - event["begin_ns"])
            for rank in range(2)
            for block in simulation.trace(rank)
            for event in block
        }


def test_what_additions_and_clearing_cost() -> None:
    ordered, atomic = durations_ns("ordered"), durations_ns("atomic")
    assert ordered.keys() == atomic.keys() == {(0, "compute"), (0, "local"), (1, "compute")}
    more = {task: atomic[task] - ordered[task] for task in ordered}
    rate = load_cluster("1x8-h100").hardware.rate
    crossing = TILE_BYTES / rate("nvlink_gbps") + rate("nvlink_latency_ns")
    assert more[1, "compute"] == pytest.approx(crossing, abs=2)
    # At home: a read and a write, behind those of rank 1, whose tile was computed a few nanoseconds before.
    in_memory = 2 * TILE_BYTES / rate("hbm_tbps") / 1e3
    assert more[0, "compute"] == pytest.approx(2 * in_memory, abs=4)
    assert more[0, "local"] == pytest.approx(TILE_BYTES / rate("sm_copy_gbps"), rel=0.01)
