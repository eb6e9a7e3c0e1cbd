"""How a choice of reduction travels: from a sweep to points, keys, buffers and launch parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.config import load_config
from mkbench.core.errors import UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.memory import gpu_bytes
from mkbench.core.plan import Plan, Point, make_plan
from mkbench.core.record import make_record
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Matrix, Shape
from mkbench.core.workloads.gemm import TILE_BYTES

KERNELS = ("gemm_ar", "gemm_rs")
SHAPE = Shape(m=700, n=300, k=33)


def plan_of(**settings: Any) -> Plan:
    asked = {"platform": "sim", "shape": SHAPE.to_json(), "comm_sms": "8", "kernels": "gemm_rs"}
    return make_plan(load_config(None, asked | settings))


@pytest.mark.parametrize("kernel", KERNELS)
def test_accumulators_of_own_slots_take_the_place_of_partials(kernel: str) -> None:
    for nodes, chunk in ((1, 1), (2, 2)):
        ordered, atomic = (
            {buffer.name: buffer.bytes for buffer in workload(kernel, way).buffers(SHAPE, nodes, 3, chunk)}
            for way in ("ordered", "atomic")
        )
        slots = workload(kernel, "atomic").parameters(SHAPE, nodes, 3, chunk)["slots"]
        assert atomic.pop("accumulator") == slots * TILE_BYTES
        assert ordered.pop("partial") > slots * TILE_BYTES
        assert atomic == ordered
        assert workload(kernel).buffers(SHAPE, nodes, 3, chunk) == workload(kernel, "ordered").buffers(
            SHAPE, nodes, 3, chunk
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_kernel_is_told(kernel: str) -> None:
    ordered, atomic = (workload(kernel, way).parameters(SHAPE, 2, 3, 1) for way in ("ordered", "atomic"))
    assert (ordered.pop("reduction"), atomic.pop("reduction")) == (0, 1)
    assert ordered == atomic


def added_in_turn(products: list[Matrix]) -> Matrix:
    """What an accumulator holds when all have added: rounded every time."""
    total = np.zeros_like(products[0])
    for product in products:
        total = round_to_bf16(total + round_to_bf16(product))
    return total


@pytest.mark.parametrize(("k", "ranks", "nodes"), [(16, 8, 1), (128, 16, 1), (128, 8, 2), (512, 16, 2)])
def test_the_tolerance_allows_a_rounding_an_addition_and_catches_a_missing_rank(
    k: int, ranks: int, nodes: int
) -> None:
    kernel, shape = workload("gemm_ar", "atomic"), Shape(m=192, n=192, k=k)
    reference = kernel.reference(shape, 0, ranks, 11, "normal")
    products = [
        a @ b for a, b in (kernel.inputs(shape, r, ranks, 11, "normal").values() for r in range(ranks))
    ]
    each = ranks // nodes
    sums = [added_in_turn(products[start : start + each]) for start in range(0, ranks, each)]
    error = np.abs(round_to_bf16(sum(sums)) - reference).max()
    ordered = np.abs(round_to_bf16(sum(round_to_bf16(product) for product in products)) - reference).max()
    # More than the ordered way loses, so it needs an allowance of its own.
    assert ordered < error <= kernel.tolerance(shape, ranks)
    assert kernel.tolerance(shape, ranks) > workload("gemm_ar").tolerance(shape, ranks)
    if k >= 128:
        assert np.count_nonzero(np.abs(products[0]) > kernel.tolerance(shape, ranks)) > reference.size / 4


def test_the_exact_family_is_exact_in_any_order() -> None:
    kernel, shape, ranks = workload("gemm_rs", "atomic"), Shape(m=64, n=64, k=90), 5
    products = [a @ b for a, b in (kernel.inputs(shape, r, ranks, 3).values() for r in range(ranks))]
    expected = sum(products)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = [products[i] for i in rng.permutation(ranks)]
        assert np.array_equal(added_in_turn(order), expected)


def test_a_sweep_has_points_of_each_way_where_there_is_a_choice() -> None:
    plan = plan_of(kernels="gemm_rs,ag_gemm,gemm_ar", reduction="ordered,atomic", policies="static")
    assert [(point.kernel, point.reduction) for point in plan.points] == [
        ("gemm_rs", "ordered"),
        ("gemm_rs", "atomic"),
        ("ag_gemm", None),
        ("gemm_ar", "ordered"),
        ("gemm_ar", "atomic"),
    ]
    first, second = plan.points[:2]
    assert second.key == f"{first.key}/atomic"
    # Eight shards of two tiles, of which a rank sums one.
    assert gpu_bytes(first) - gpu_bytes(second) == (16 - 2) * TILE_BYTES


def test_ordered_is_the_default_and_not_in_the_key() -> None:
    usual, asked = plan_of(), plan_of(reduction="ordered")
    assert usual.points == asked.points
    assert {point.reduction for point in usual.points} == {"ordered"}
    assert not [point.key for point in usual.points if "ordered" in point.key]
    assert "reduction" not in usual.config.model_dump(exclude_none=True), "older runs can be resumed"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kernels": "ag_gemm", "reduction": "atomic"}, "ag_gemm cannot reduce in an atomic way"),
        ({"reduction": "atomc"}, "unknown reduction 'atomc'; did you mean 'atomic'"),
        ({"reduction": ""}, "unknown reduction"),
        ({"reduction": 3}, "reduction"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(**settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["ordered", "atomic"])
def test_points_and_records_keep_it(way: str) -> None:
    (point,) = plan_of(reduction=way, policies="static").points
    assert Point.from_json(point.to_json()) == point
    record = make_record(point, Measurement(status="ok", samples_us=(1.0,)), {})
    assert record["reduction"] == way


def test_the_record_of_a_kernel_without_a_choice_says_null() -> None:
    (point,) = plan_of(kernels="ag_gemm", policies="static").points
    assert make_record(point, Measurement(status="ok", samples_us=(1.0,)), {})["reduction"] is None
