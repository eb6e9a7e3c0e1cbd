"""Checks of staged proxies in a process of their own, whose driver is lazy_cuda: which, and the transport."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import staged_rig
from launch_rig import Problem, wrong_launches
from lazy_cuda import CONTEXT, LazyCuda
from proxy_rig import load_library

from mkbench.build.layout import Layout

PROBLEMS = (
    Problem(nodes=2, m=200, n=300, k=7, blocks=3, comm_sms=1, chunk_tiles=2),
    Problem(nodes=2, local_ranks=2, policy=1),
    Problem(nodes=3, m=300, n=700, k=5, blocks=3, comm_sms=2),
)


def complaints(check: str, transport: str) -> Iterator[str]:
    """Yield what is wrong."""
    driver, library = LazyCuda(), load_library()
    layout = Layout(library)
    if check == "one by one":
        yield from staged_rig.one_by_one(library, layout, transport)
    elif check == "held back":
        yield from staged_rig.complaints(library, layout, driver, transport)
    elif check == "launches":
        for problem in PROBLEMS:
            kind = ("shm", "tcp").index(transport)
            yield from wrong_launches(library, layout, problem, kind, CONTEXT)


if __name__ == "__main__":
    sys.exit("\n".join(complaints(*sys.argv[1:])) or None)
