"""The main job on the simulator: every partition, five sizes, one node of eight H100."""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sim_rig import plan_of

from mkbench.core.plan import Plan, Point
from mkbench.core.record import make_record
from mkbench.core.selection import best_static
from mkbench.core.store import RunDirectory
from mkbench.platforms.sim import SimPlatform
from mkbench.session import run_plan

pytestmark = pytest.mark.slow

SIZES = (2048, 4096, 8192, 16384, 32768)
Record = dict[str, Any]


@pytest.fixture(scope="session")
def swept() -> Plan:
    return plan_of(cluster="1x8-h100", sizes=SIZES, policies="static,adaptive", seed=7)


@pytest.fixture(scope="session")
def records(swept: Plan, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """The sweep's records. In a parallel test run one process makes them and the others wait for it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "acceptance.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = RunDirectory.create(shared / "acceptance", swept, resume=True)
        platform = SimPlatform()
        platform.check(swept)
        return run_plan(swept, directory, platform)


@pytest.fixture(scope="session")
def static(records: list[Record]) -> dict[int, dict[int, float]]:
    """Median latency by size and communication SMs."""
    curves: dict[int, dict[int, float]] = defaultdict(dict)
    for record in records:
        if record["policy"] == "static":
            curves[record["size"]][record["comm_sms"]] = record["latency_us"]["median"]
    return curves


def rerun(plan: Plan, points: Sequence[Point]) -> list[Record]:
    platform = SimPlatform()
    platform.check(plan)
    return [
        make_record(point, measurement, {})
        for point, measurement in zip(points, platform.run(points), strict=True)
    ]


def without(record: Record, *volatile: str) -> Record:
    return {key: value for key, value in record.items() if key not in volatile}


def test_every_point_ran(swept: Plan, records: list[Record]) -> None:
    assert [record["key"] for record in records] == [point.key for point in swept.points]
    assert {record["status"] for record in records} == {"ok"}
    assert len(records) == len(SIZES) * (32 + 1)
    assert all(record["simulated"] for record in records)


def test_the_same_seed_gives_the_same_records(swept: Plan, records: list[Record]) -> None:
    chosen = [i for i, point in enumerate(swept.points) if point.comm_sms in (None, 2, 20, 64)]
    again = rerun(swept, [swept.points[i] for i in chosen])
    # The environment's digest is of the directory, not of the platform.
    for i, record in zip(chosen, again, strict=True):
        assert without(record, "meta", "env") == without(records[i], "meta", "env")


@pytest.mark.parametrize("seed", [8, 12345])
def test_another_seed_has_the_same_best_partition(
    seed: int, swept: Plan, static: dict[int, dict[int, float]]
) -> None:
    def near_the_best(point: Point) -> bool:
        if point.comm_sms is None or point.size is None:
            return False
        # Costs differ by 0.2 % between seeds, so who is 4 % behind cannot come within the 1.5 % of a tie.
        return static[point.size][point.comm_sms] < 1.04 * min(static[point.size].values())

    points = [replace(point, seed=seed) for point in swept.points if near_the_best(point)]
    other: dict[int, dict[int, float]] = defaultdict(dict)
    for record in rerun(swept, points):
        other[record["size"]][record["comm_sms"]] = record["latency_us"]["median"]
    assert {size: best_static(other[size]) for size in SIZES} == {
        size: best_static(static[size]) for size in SIZES
    }
    assert any(other[size][c] != static[size][c] for size in SIZES for c in other[size])


def test_no_latency_is_below_its_lower_bound(records: list[Record]) -> None:
    for record in records:
        assert record["latency_us"]["median"] >= record["lower_bound_us"] > 0, record["key"]


@pytest.mark.parametrize("size", SIZES)
def test_a_static_curve_has_its_best_inside_and_a_bad_end(
    size: int, static: dict[int, dict[int, float]]
) -> None:
    curve = static[size]
    assert (min(curve), max(curve)) == (2, 64)
    assert 2 < best_static(curve) < 64
    assert max(curve.values()) >= 2 * min(curve.values())


@pytest.mark.parametrize("size", SIZES)
def test_adaptive_is_within_five_percent_of_the_best_static(
    size: int, records: list[Record], static: dict[int, dict[int, float]]
) -> None:
    (adaptive,) = (r for r in records if r["policy"] == "adaptive" and r["size"] == size)
    assert adaptive["latency_us"]["median"] <= 1.05 * min(static[size].values())


def test_records_hold_the_controller_over_time(records: list[Record]) -> None:
    columns = {
        "t_us", "target",
        "compute_progress", "communication_progress", "compute_blocks", "communication_blocks",
    }  # fmt: skip
    for record in records:
        if record["policy"] != "adaptive":
            continue
        controller = record["controller"]
        assert set(controller) == columns
        assert len({len(column) for column in controller.values()}) == 1
        for name in ("t_us", "compute_progress", "communication_progress"):
            assert controller[name] == sorted(controller[name])
        assert max(controller["compute_progress"]) <= 1
        assert 0.9 < max(controller["communication_progress"]) <= 1
