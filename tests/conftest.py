"""Fixtures shared by all tests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mkbench.core.config import load_config
from mkbench.core.measurement import Check, Measurement
from mkbench.core.plan import Plan, Point, make_plan


def small_plan(**settings: Any) -> Plan:
    """A sweep of four static partitions and the adaptive policy on the simulated cluster, or as set."""
    defaults = {"kernels": ("gemm_ar",), "platform": "sim", "sizes": "2048", "comm_sms": "8:32:8", "seed": 7}
    return make_plan(load_config(None, defaults | settings))


def measured(point: Point) -> Measurement:
    """A right result whose latency depends on the partition alone."""
    latency = 100.0 + abs((point.comm_sms or 16) - 16)
    return Measurement(
        status="ok",
        samples_us=(latency,),
        check=Check(elements=point.shape.m * point.shape.n, mismatches=0),
        network_bytes=point.network_bytes,
        source_hash="0123456789ab",
    )


class StubPlatform:
    """A platform that measures nothing and can be told what to answer, or after how many points to fail."""

    name = "stub"

    def __init__(self, answers: dict[str, Measurement] | None = None, fail_after: int | None = None) -> None:
        self.answers = answers or {}
        self.fail_after = fail_after
        self.asked: list[str] = []

    def check(self, plan: Plan) -> None:
        pass

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        for count, point in enumerate(points):
            if count == self.fail_after:
                raise RuntimeError("the machine is on fire")
            self.asked.append(point.key)
            yield self.answers.get(point.key, measured(point))


@pytest.fixture
def plan() -> Plan:
    return small_plan()


@pytest.fixture
def make_small_plan() -> Callable[..., Plan]:
    return small_plan


@pytest.fixture
def make_point() -> Callable[..., Point]:
    """Return a function that changes fields of a valid point."""
    point = small_plan().points[0]
    return lambda **fields: replace(point, **fields)


@pytest.fixture
def stub_platform() -> type[StubPlatform]:
    return StubPlatform
