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
from mkbench.core.workloads import KERNELS
from mkbench.core.workloads.base import Reducing, Shape, metadata_outputs
from mkbench.platforms.cuda import CudaPlatform

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_visible(), reason="no GPU is visible")]

#: Cut tiles and padded rows; whole tiles, enough for every rank to own some.
GEMMS = {"m": 500, "n": 776, "k": 96}, {"m": 1024, "n": 2048, "k": 200}
#: Experts with many tokens, with few and, of the last, with none: some ranks may end up with no row.
MOES = (
    {"t": 900, "hidden": 136, "inter": 300, "experts": 12, "topk": 3, "skew": 100},
    {"t": 64, "hidden": 64, "inter": 64, "experts": 8, "topk": 1, "skew": 2000},
)
#: Masked, with shared heads and ranks with nothing; not masked, with cut tiles.
RINGS = (
    {"b": 1, "h": 4, "g": 2, "s": 1500, "d": 64, "causal": 1},
    {"b": 1, "h": 2, "g": 1, "s": 5, "d": 128, "causal": 1},
    {"b": 2, "h": 2, "g": 2, "s": 900, "d": 128, "causal": 0},
)
SHAPES = {
    "ag_gemm": GEMMS,
    "gemm_ar": GEMMS,
    "gemm_rs": GEMMS,
    "moe_dispatch_gemm": MOES,
    "ring_attention": RINGS,
}
WAITS = r"rank \d+ block \d+ role \w+ waits for flag \w+\[\d+\]: expected 1:\d+, seen \d+:\d+"


def points(nodes: int, ranks: int, **settings: Any) -> list[Point]:
    asked = {"platform": "cuda", "cluster": "1x4-h200-virtual", "nodes": nodes, "ranks_per_node": ranks}
    asked |= {"comm_sms": [3], "policies": "static", "samples": 2, "seed": 7}
    asked |= {"kernels": "gemm_ar", "shape": GEMMS[0]}
    plan = make_plan(load_config(None, asked | settings))
    CudaPlatform().check(plan)
    return list(plan.points)


def measure(points: Sequence[Point], **options: str) -> list[Measurement]:
    """One job for all of them, which have one number of ranks."""
    return list(CudaPlatform(**options).run(points))


def elements(point: Point) -> int:
    """What all ranks end up with, the weights of rows included."""
    kernel, total = KERNELS[point.kernel], 0
    for rank in range(point.ranks):
        end = kernel.output(point.shape, rank, point.ranks)
        beside = metadata_outputs(kernel, point.shape, rank, point.ranks)
        total += end.rows * end.columns + sum(values.size for values in beside.values())
    return total


@pytest.mark.parametrize(
    ("nodes", "ranks", "settings"),
    [
        (1, 1, [{"cluster": "1x8-h200"}]),
        (1, 2, [{}]),
        (1, 4, [{}]),
        (2, 2, [{"transport": "shm", "network_memory": where} for where in ("device", "host")]),
        (2, 2, [{"transport": "tcp", "network_memory": where} for where in ("device", "host")]),
        (2, 4, [{"transport": "shm"}]),
        (3, 2, [{"transport": "tcp"}]),
    ],
    ids=["1x1", "1x2", "1x4", "2x2-shm", "2x2-tcp", "2x4-shm", "3x2-tcp"],
)
def test_every_element_is_right(nodes: int, ranks: int, settings: list[dict[str, Any]]) -> None:
    asked = [
        point
        for setting in settings
        for kernel, shapes in SHAPES.items()
        for shape in shapes
        for point in points(
            nodes,
            ranks,
            kernels=kernel,
            shape=shape,
            comm_sms=[1, 9],
            policies="static,adaptive",
            reduction="ordered,atomic" if isinstance(KERNELS[kernel], Reducing) else None,
            **setting,
        )
    ]
    for point, found in zip(asked, measure(asked), strict=True):
        assert found.status == "ok", (point.key, found.message)
        assert found.check == Check(elements(point), 0), point.key
        assert found.network_bytes == point.network_bytes, point.key
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
