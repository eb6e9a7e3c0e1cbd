"""Sums that real processes add atomically at their owner, with sockets between nodes."""

from __future__ import annotations

from typing import Any

import pytest

from mkbench.core.config import load_config
from mkbench.core.measurement import Measurement
from mkbench.core.plan import Plan, make_plan
from mkbench.platforms.host import HostPlatform

pytestmark = pytest.mark.mpi


def plan_of(**settings: Any) -> Plan:
    asked = {
        "kernels": "gemm_ar",
        "platform": "host",
        "nodes": 2,
        "ranks_per_node": 2,
        "transport": "tcp",
        "reduction": "atomic",
        "shape": {"m": 300, "n": 520, "k": 50},
        "policies": "static,adaptive",
        "comm_sms": "2",
        "samples": 3,
        "seed": 7,
    }
    return make_plan(load_config(None, asked | settings))


def measure(plan: Plan) -> list[Measurement]:
    platform = HostPlatform()
    platform.check(plan)
    return list(platform.run(plan.points))


@pytest.mark.parametrize("kernel", ["gemm_ar", "gemm_rs"])
@pytest.mark.parametrize("family", ["exact", "normal"])
def test_every_element_is_right(kernel: str, family: str) -> None:
    plan = plan_of(kernels=kernel, family=family)
    measurements = measure(plan)
    assert [point.policy for point in plan.points] == ["static", "adaptive"]
    for point, measurement in zip(plan.points, measurements, strict=True):
        assert measurement.status == "ok", measurement.message
        assert measurement.check is not None
        assert measurement.check.elements == 300 * 520 * (4 if kernel == "gemm_ar" else 1)
        assert measurement.check.mismatches == 0
        assert measurement.network_bytes == point.network_bytes
        assert len(measurement.samples_us) == 3


@pytest.mark.parametrize("kernel", ["gemm_ar", "gemm_rs"])
def test_four_ranks_of_one_node_add_to_each_other(kernel: str) -> None:
    (measurement,) = measure(
        plan_of(kernels=kernel, nodes=1, ranks_per_node=4, transport="shm", policies="static")
    )
    assert measurement.status == "ok", measurement.message
    assert measurement.check is not None
    assert measurement.check.mismatches == 0
