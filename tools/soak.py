"""Soak a platform: `python tools/soak.py [--kernels gemm_ar,...] [--launches 300] [--where 1x4 2x2 2x4]`.

Every kernel, cluster and transport is launched so many times with distinct seeds, over several shapes,
partitions and both policies, for each way to reduce, and every element of every rank is compared bit for bit.
Prints a table; exits 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from mkbench.core.config import load_config
from mkbench.core.errors import MkbenchError
from mkbench.core.plan import make_plan
from mkbench.core.point import Point
from mkbench.core.workloads import KERNELS
from mkbench.core.workloads.base import REDUCTIONS, Reducing
from mkbench.platforms.cuda import CudaPlatform
from mkbench.platforms.host import HostPlatform

#: Cut tiles, padded rows, ranks with unlike work: small, so that launches are many.
SHAPES: dict[str, tuple[dict[str, int], ...]] = {
    "ag_gemm": ({"m": 500, "n": 776, "k": 96},),
    "gemm_ar": ({"m": 500, "n": 776, "k": 96},),
    "gemm_rs": ({"m": 500, "n": 776, "k": 96},),
    "moe_dispatch_gemm": (
        {"t": 900, "hidden": 136, "inter": 300, "experts": 12, "topk": 3},
        {"t": 900, "hidden": 136, "inter": 300, "experts": 12, "topk": 3, "skew": 150},
    ),
    "ring_attention": (
        {"b": 1, "h": 4, "g": 2, "s": 1500, "d": 64, "causal": 1},
        {"b": 2, "h": 2, "g": 2, "s": 900, "d": 128, "causal": 0},
    ),
}
COMM_SMS = (1, 4, 9)
PLATFORMS = {"cuda": CudaPlatform, "host": HostPlatform}


def jobs(args: argparse.Namespace) -> Iterator[tuple[str, list[Point]]]:
    """What runs in one job each, with a label."""
    for kernel in args.kernels:
        for where in args.where:
            nodes, ranks = (int(part) for part in where.split("x"))
            for transport in ("shm", "tcp") if nodes > 1 else ("shm",):
                asked = [
                    point
                    for shape in SHAPES[kernel]
                    for point in points(args, kernel, nodes, ranks, transport, shape)
                ]
                # A launch counts up from the seed of its point.
                seeds = accumulate((point.samples for point in asked), initial=1)
                label = f"{kernel} {where} {transport if nodes > 1 else ''}"
                yield label, [replace(point, seed=seed) for point, seed in zip(asked, seeds, strict=False)]


def points(
    args: argparse.Namespace, kernel: str, nodes: int, ranks: int, transport: str, shape: dict[str, int]
) -> tuple[Point, ...]:
    reductions = REDUCTIONS if isinstance(KERNELS[kernel], Reducing) else None
    partitions = [c for c in COMM_SMS if args.platform == "cuda" or c < 8]
    settings = {
        "kernels": kernel,
        "platform": args.platform,
        "cluster": "1x4-h200-virtual" if args.platform == "cuda" else None,
        "nodes": nodes,
        "ranks_per_node": ranks,
        "transport": transport,
        "shape": shape,
        "reduction": reductions,
        "comm_sms": partitions,
        "samples": -(-args.launches // (len(SHAPES[kernel]) * (len(partitions) + 1))),
        "deadline_s": 10.0,
    }
    plan = make_plan(load_config(None, settings))
    PLATFORMS[args.platform](worker="tools.soak_worker").check(plan)
    return plan.points


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda", choices=list(PLATFORMS))
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=list(KERNELS))
    parser.add_argument("--launches", type=int, default=300)
    parser.add_argument("--where", nargs="+", default=["1x4", "2x2", "2x4"])
    args = parser.parse_args()
    bad = 0
    for label, asked in jobs(args):
        began, right, message = time.monotonic(), 0, ""
        try:
            for point, found in zip(
                asked, PLATFORMS[args.platform](worker="tools.soak_worker").run(asked), strict=False
            ):
                right += found.details.get("launches_right", 0)
                if found.status != "ok":
                    bad += 1
                    message = f"{point.key}: {found.status}: {found.message}"
        except MkbenchError as problem:
            bad += 1
            message = str(problem)
        launches = sum(point.samples for point in asked)
        took = time.monotonic() - began
        print(f"{label:30} {right:5} of {launches} launches right, {took:5.1f} s  {message}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
