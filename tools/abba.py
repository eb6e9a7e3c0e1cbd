"""Which of two settings is faster: `python tools/abba.py --setting network_memory=device,host [--where 2x2]`.

Both run in one job, A B B A, with normal inputs. Prints for each point the medians and their ratio
with its 95 % interval; every element is checked with exact inputs before and after.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from mkbench.core.config import load_config
from mkbench.core.plan import make_plan
from mkbench.core.point import Point
from mkbench.core.statistics import median, ratio_ci
from mkbench.platforms.cuda import CudaPlatform
from mkbench.platforms.host import HostPlatform

PLATFORMS = {"cuda": CudaPlatform, "host": HostPlatform}


def points(args: argparse.Namespace, value: str) -> tuple[Point, ...]:
    nodes, ranks = (int(part) for part in args.where.split("x"))
    settings: dict[str, Any] = {
        "kernels": args.kernel,
        "platform": args.platform,
        "cluster": "1x4-h200-virtual" if args.platform == "cuda" else None,
        "nodes": nodes,
        "ranks_per_node": ranks,
        "transport": args.transport,
        "sizes": args.sizes,
        "comm_sms": args.comm_sms,
        "samples": args.samples,
        args.setting.partition("=")[0]: value,
    }
    plan = make_plan(load_config(None, settings))
    PLATFORMS[args.platform](worker="tools.abba_worker").check(plan)
    return plan.points


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--kernel", default="gemm_ar")
    parser.add_argument("--setting", required=True)
    parser.add_argument("--where", default="2x2")
    parser.add_argument("--transport", default=None)
    parser.add_argument("--sizes", default="2048,8192")
    parser.add_argument("--comm-sms", default="4,8,16")
    parser.add_argument("--samples", type=int, default=20)
    args = parser.parse_args()
    first, second = args.setting.partition("=")[2].split(",")
    pairs = [point for pair in zip(points(args, first), points(args, second), strict=True) for point in pair]
    found = list(PLATFORMS[args.platform](worker="tools.abba_worker").run(pairs))
    bad = 0
    for index in range(0, len(found), 2):
        point, a, b = pairs[index], found[index], found[index + 1]
        where = f"{point.kernel} {args.where} {point.transport}"
        label = f"{where} {point.shape.label:22} {point.comm_sms or point.policy}"
        if a.status != "ok" or b.status != "ok":
            bad += 1
            print(f"{label}: {first} {a.status} {a.message}; {second} {b.status} {b.message}", flush=True)
            continue
        low, high = ratio_ci(a.samples_us, b.samples_us)
        medians = median(a.samples_us), median(b.samples_us)
        print(
            f"{label}: {first} {medians[0]:9.1f} us, {second} {medians[1]:9.1f} us, "
            f"ratio {medians[0] / medians[1]:.3f} [{low:.3f}, {high:.3f}]",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
