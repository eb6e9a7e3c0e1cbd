"""The gauntlet for what the simulator does not contain: proxies on threads, shared memory, sockets."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mkbench.build.layout import Layout
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_reference

sys.path.append(str(Path(__file__).parents[1] / "proxy"))

from launch_rig import Problem, RankMemory, run_all

SHM, TCP = 0, 1
LAUNCHES = 2
WAIT_S = 10.0
"""Far longer than any wait of a right build takes."""

PROBLEM = Problem(nodes=2, m=20, n=44, k=5, blocks=3, comm_sms=1, deadline_s=WAIT_S)


def complaints(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the detector ("threads") and what it found in the library at `path`."""
    library = _load(path)
    layout = Layout(library)
    for transport in (SHM, TCP):
        for found in _launches(library, layout, transport):
            yield "threads", found
    for found in _dead_peer(library, layout):
        yield "threads", found


def _launches(library: ctypes.CDLL, layout: Layout, transport: int) -> Iterator[str]:
    p, where = PROBLEM, ("shm", "tcp")[transport]
    ranks = [RankMemory(library, layout, p, rank) for rank in range(p.ranks)]
    with _proxies(library, layout, ranks, transport) as handles:
        for epoch in range(1, LAUNCHES + 1):
            for rank in ranks:
                rank.set_inputs(*gemm_inputs(Shape(p.m, p.n, p.k), rank.rank, p.ranks, epoch, "exact"))
            results = run_all(library, layout, [rank.launch([rank], epoch) for rank in ranks])
            for result in results:
                if result["set"]:
                    flag = layout.flags[int(result["flag"])]
                    yield f"{where}: rank {result['rank']} gave up waiting for {flag}"
            expected = gemm_reference(Shape(p.m, p.n, p.k), p.ranks, epoch, "exact")
            if any(not np.array_equal(rank.result(), expected) for rank in ranks):
                yield f"{where}: wrong result"
        for handle in handles:
            if library.mk_proxy_drain(handle, int(WAIT_S * 1e9)) != 0:
                yield f"{where}: not drained"


def _dead_peer(library: ctypes.CDLL, layout: Layout) -> Iterator[str]:
    rank = RankMemory(library, layout, PROBLEM, 0)
    ends = socket.socketpair()
    ends[1].close()
    with ends[0]:
        proxy = rank.start_proxy(TCP, {}, {1: ends[0].fileno()})
        if library.mk_proxy_drain(proxy, int(WAIT_S * 1e9)) != 2:
            yield "a dead peer was not noticed"
        error = library.mk_proxy_error(proxy) or b""
        library.mk_proxy_stop(proxy, layout.new("ProxyStats").ctypes.data)
    if not error.startswith(b"peer node 1: "):
        yield f"a dead peer was not named: {error!r}"


@contextlib.contextmanager
def _proxies(
    library: ctypes.CDLL, layout: Layout, ranks: list[RankMemory], transport: int
) -> Iterator[list[int]]:
    """One running proxy a rank; one rank a node."""
    fds: dict[int, dict[int, int]] = {rank.node: {} for rank in ranks}
    with contextlib.ExitStack() as stack:
        for a, b in itertools.combinations(ranks, 2):
            ends = [stack.enter_context(end) for end in socket.socketpair()]
            fds[a.node][b.node], fds[b.node][a.node] = ends[0].fileno(), ends[1].fileno()
        rails = {rank.node: rank for rank in ranks}
        handles = [rank.start_proxy(transport, rails, fds[rank.node]) for rank in ranks]
        yield handles
        for handle in handles:
            library.mk_proxy_stop(handle, layout.new("ProxyStats").ctypes.data)


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    address, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("mk_proxy_start", address, [address]),
        ("mk_proxy_drain", ctypes.c_int, [address, number]),
        ("mk_proxy_stop", None, [address, address]),
        ("mk_proxy_error", ctypes.c_char_p, [address]),
        ("mk_host_prepare", address, [address]),
        ("mk_host_run", ctypes.c_int, [address, address]),
        ("mk_host_error", ctypes.c_char_p, []),
        ("mk_control_bytes", ctypes.c_longlong, [address]),
        ("mk_network_control_bytes", ctypes.c_longlong, [address]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
