"""Virtual clusters on this machine's GPU: every element right, and what a run says when it is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mkbench.core.config import load_config
from mkbench.core.environment import gpu_visible
from mkbench.core.measurement import Check, Measurement
from mkbench.core.plan import make_plan
from mkbench.core.point import Point
from mkbench.core.workloads.base import Shape
from mkbench.platforms.cuda import CudaPlatform

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_visible(), reason="no GPU is visible")]

#: Cut tiles and padded rows; whole tiles, enough for every rank to own some.
SHAPES = {"m": 500, "n": 776, "k": 96}, {"m": 1024, "n": 2048, "k": 200}
WAITS = r"rank \d+ block \d+ role \w+ waits for flag \w+\[\d+\]: expected 1:\d+, seen \d+:\d+"


def points(nodes: int, ranks: int, **settings: Any) -> list[Point]:
    asked = {"platform": "cuda", "cluster": "1x4-h200-virtual", "nodes": nodes, "ranks_per_node": ranks}
    asked |= {"comm_sms": [3], "policies": "static", "samples": 2, "seed": 7, "shape": SHAPES[0]}
    plan = make_plan(load_config(None, asked | settings))
    CudaPlatform().check(plan)
    return list(plan.points)


def measure(points: Sequence[Point], **options: str) -> list[Measurement]:
    """One job for all of them, which have one number of ranks."""
    return list(CudaPlatform(**options).run(points))


@pytest.mark.parametrize(
    ("nodes", "ranks", "settings"),
    [
        (1, 1, [{"cluster": "1x8-h200"}]),
        (1, 2, [{}]),
        (1, 4, [{}]),
        (2, 2, [{"transport": "shm", "network_memory": where} for where in ("device", "host")]),
        (2, 2, [{"transport": "tcp", "network_memory": where} for where in ("device", "host")]),
    ],
    ids=["1x1", "1x2", "1x4", "2x2-shm", "2x2-tcp"],
)
def test_every_element_is_right(nodes: int, ranks: int, settings: list[dict[str, Any]]) -> None:
    asked = [
        point
        for setting in settings
        for shape in SHAPES
        for point in points(
            nodes, ranks, shape=shape, comm_sms=[1, 3, 9], policies="static,adaptive", **setting
        )
    ]
    for point, found in zip(asked, measure(asked), strict=True):
        assert found.status == "ok", found.message
        assert found.check == Check(nodes * ranks * point.shape.m * point.shape.n, 0)
        assert found.network_bytes == point.network_bytes
        assert len(found.samples_us) == 2
        assert all(sample > 0 for sample in found.samples_us)


def test_a_wrong_element_is_named_and_one_that_nobody_wrote_is_told_apart() -> None:
    bit, poison = measure(points(1, 2, comm_sms=[1, 2]), worker="tampering_worker")
    for found in (bit, poison):
        assert found.status == "wrong"
        assert found.check is not None
        assert found.check.mismatches == 1
    place = "rank 1 row 300 column 7: expected (\\S+), got (\\S+)"
    changed = re.fullmatch(place, bit.check.first)
    assert changed is not None, bit.check.first
    assert changed[1] != changed[2]
    unwritten = re.fullmatch(place + r" \(never written\)", poison.check.first)
    assert unwritten is not None, poison.check.first
    assert unwritten.groups() == (changed[1], "nan")


def test_a_hang_names_who_waits_and_the_next_run_works(mkbench) -> None:
    run = ("run", "gemm_ar", "--platform", "cuda", "--cluster", "1x4-h200-virtual", "--comm-sms", "4")
    hung = mkbench(*run, "--size", "4096", "--deadline", "0.00003")
    assert hung.returncode == 4, hung.stderr
    assert len(hung.stderr.splitlines()) == 1
    assert re.search(WAITS, hung.stderr), hung.stderr
    done = mkbench(*run, "--size", "512")
    assert done.returncode == 0, done.stderr
    assert re.search(r"all \d+ elements are right", done.stdout)


def test_after_a_hang_and_after_a_heap_that_does_not_fit_the_next_point_is_measured() -> None:
    (hangs,) = points(1, 4, shape={"m": 4096, "n": 4096, "k": 1024}, deadline_s=3e-5)
    (works,) = points(1, 4)
    # Beyond what a plan lets pass: one rank's heap fits, those of all four do not.
    large = replace(works, shape=Shape(m=131072, n=131072, k=32768))
    hung, oom, worked = measure([hangs, large, works])
    assert hung.status == "hang"
    assert re.search(WAITS, hung.message or ""), hung.message
    assert oom.status == "oom"
    assert re.search(r"rank \d: \d+ bytes of GPU memory: .*out of memory", oom.message or ""), oom.message
    assert worked.status == "ok", worked.message
