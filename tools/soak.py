"""Soak a platform: `python tools/soak.py [--platform cuda] [--launches 1000] [--where 1x2 1x4 2x2]`.

Every cluster and transport is launched so many times with distinct seeds, over several partitions and both
policies, and every element of every rank is compared bit for bit. Prints a table; exits 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from mkbench.core.config import load_config
from mkbench.core.plan import Plan, make_plan
from mkbench.platforms.cuda import CudaPlatform
from mkbench.platforms.host import HostPlatform

SHAPE = {"m": 500, "n": 776, "k": 96}
COMM_SMS = (1, 4, 9)
PLATFORMS = {"cuda": CudaPlatform, "host": HostPlatform}


def plans(args: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    for where in args.where:
        nodes, ranks = (int(part) for part in where.split("x"))
        for transport in ("shm", "tcp") if nodes > 1 else ("shm",):
            settings = {
                "platform": args.platform,
                "cluster": "1x4-h200-virtual" if args.platform == "cuda" else None,
                "nodes": nodes,
                "ranks_per_node": ranks,
                "transport": transport,
                "shape": SHAPE,
                "comm_sms": [c for c in COMM_SMS if args.platform == "cuda" or c < 8],
                "samples": -(-args.launches // (len(COMM_SMS) + 1)),
                "deadline_s": 10.0,
                "seed": 1,
            }
            yield f"{where} {transport if nodes > 1 else ''}", make_plan(load_config(None, settings))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--where", nargs="+", default=["1x2", "1x4", "2x2"])
    args = parser.parse_args()
    bad = 0
    for label, plan in plans(args):
        chosen = PLATFORMS[args.platform](worker="tools.soak_worker")
        chosen.check(plan)
        began, right, message = time.monotonic(), 0, ""
        for point, found in zip(plan.points, chosen.run(plan.points), strict=False):
            right += found.details.get("launches_right", 0)
            if found.status != "ok":
                bad += 1
                message = f"{point.policy} {point.comm_sms}: {found.status}: {found.message}"
        asked = sum(point.samples for point in plan.points)
        took = time.monotonic() - began
        print(f"{label:10} {right:5} of {asked} launches right, {took:5.1f} s  {message}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
