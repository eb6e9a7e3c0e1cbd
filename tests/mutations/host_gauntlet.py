"""The gauntlet for what the simulator does not contain: proxies on threads with all their transports."""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from mkbench.build.layout import Layout

sys.path.append(str(Path(__file__).parents[1] / "proxy"))

import staged_rig
from launch_rig import Problem, RankMemory, wrong_launches
from lazy_cuda import CONTEXT, LazyCuda
from proxy_rig import load_library

TRANSPORTS = ("shm", "tcp")
WAIT_S = 5.0
"""Far longer than any wait of a right build takes."""

PROBLEM = Problem(nodes=2, m=20, n=44, k=5, blocks=3, comm_sms=1, deadline_s=WAIT_S, launches=2)


def complaints(path: Path, driver: Path) -> Iterator[tuple[str, str]]:
    """Yield the detector ("threads") and what it found in the library at `path`.

    `driver`: lazy_cuda, which is loaded first.
    """
    cuda, library = LazyCuda(str(driver)), load_library(path)
    layout = Layout(library)
    for transport, name in enumerate(TRANSPORTS):
        for found in wrong_launches(library, layout, PROBLEM, transport):
            yield "threads", f"{name}: {found}"
    for found in _dead_peer(library, layout):
        yield "threads", found
    for transport, name in enumerate(TRANSPORTS):
        for found in staged_rig.complaints(library, layout, cuda, name):
            yield "threads", f"staged {name}: {found}"
        for found in wrong_launches(library, layout, PROBLEM, transport, CONTEXT):
            yield "threads", f"staged {name}: {found}"


def _dead_peer(library: ctypes.CDLL, layout: Layout) -> Iterator[str]:
    rank = RankMemory(library, layout, PROBLEM, 0)
    ends = socket.socketpair()
    ends[1].close()
    with ends[0]:
        proxy = rank.start_proxy(TRANSPORTS.index("tcp"), {}, {1: ends[0].fileno()})
        if library.mk_proxy_drain(proxy, int(WAIT_S * 1e9)) != 2:
            yield "a dead peer was not noticed"
        error = library.mk_proxy_error(proxy) or b""
        library.mk_proxy_stop(proxy, layout.new("ProxyStats").ctypes.data)
    if not error.startswith(b"peer node 1: "):
        yield f"a dead peer was not named: {error!r}"
