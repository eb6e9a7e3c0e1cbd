"""Ranks of gemm_ar in one process: heaps, rings and parameters laid out by hand, launched on threads."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from proxy_rig import aligned

from mkbench.build.layout import Layout
from mkbench.core.bf16 import from_bf16, to_bf16
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm import TILE_BYTES, TILE_M, TILE_N
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_reference

RINGS, DEPTH = 2, 4
HISTORY_ROWS = 64
MAX_NODE_RANKS = 16
MAX_NODES = 64
NAN = 0x7FC1
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    nodes: int = 1
    local_ranks: int = 1
    m: int = 256
    n: int = 512
    k: int = 24
    blocks: int = 4
    comm_sms: int = 2
    policy: int = 0
    chunk_tiles: int = 1
    deadline_s: float = 60.0
    launches: int = 5

    @property
    def ranks(self) -> int:
        return self.nodes * self.local_ranks

    @property
    def tiles(self) -> int:
        return -(-self.m // TILE_M) * -(-self.n // TILE_N)

    @property
    def slots(self) -> int:
        return -(-self.tiles // (self.chunk_tiles * self.local_ranks)) * self.chunk_tiles


class RankMemory:
    """One rank's heap, command rings and parameters."""

    def __init__(self, library: ctypes.CDLL, layout: Layout, problem: Problem, rank: int) -> None:
        self._library, self._layout = library, layout
        self.problem, self.rank = problem, rank
        self.node, self.local_rank = divmod(rank, problem.local_ranks)
        self.ring_slots = aligned(np.dtype(np.uint64), RINGS * DEPTH * 2)
        self.ring_tails = aligned(np.dtype(np.uint64), RINGS)
        self.epoch = aligned(np.dtype(np.uint64), 1)
        self.abort = layout.new("AbortRecord")
        p = problem
        self.lda, self.ldb = _up(p.k, 8), _up(p.n, 8)
        self.params = layout.new(
            "Params",
            abort_record=self.abort.ctypes.data, ring_slots=self.ring_slots.ctypes.data,
            ring_tails=self.ring_tails.ctypes.data, deadline_ns=int(p.deadline_s * 1e9),
            rank=rank, ranks=p.ranks, local_rank=self.local_rank, local_ranks=p.local_ranks,
            node=self.node, nodes=p.nodes, blocks=p.blocks, policy=p.policy, comm_sms=p.comm_sms,
            rings=RINGS, ring_depth=DEPTH, history_capacity=HISTORY_ROWS,
            m=p.m, n=p.n, k=p.k, lda=self.lda, ldb=self.ldb, chunk_tiles=p.chunk_tiles, slots=p.slots,
        )  # fmt: skip
        buffers = {
            "history_offset": HISTORY_ROWS * layout.dtype("HistoryRow").itemsize,
            "a": p.m * self.lda * 2,
            "b": p.k * self.ldb * 2,
            "partial": p.tiles * TILE_BYTES,
            "out": p.m * self.ldb * 2,
        }
        moved = {"node_sum": p.slots * TILE_BYTES, "receive": (p.nodes - 1) * p.slots * TILE_BYTES}
        self.flag_bytes = int(library.mk_network_control_bytes(self.params.ctypes.data))
        self.heap = self._lay_out(buffers, int(library.mk_control_bytes(self.params.ctypes.data)))
        self.network = self._lay_out(moved, self.flag_bytes)
        self.staging = aligned(np.dtype(np.uint8), self.network.nbytes)
        self.params["network"] = self.network.ctypes.data

    def _lay_out(self, buffers: dict[str, int], control_bytes: int) -> Array:
        end = _up(control_bytes, 128)
        for name, size in buffers.items():
            self.params[name] = end
            end += _up(size, 128)
        return aligned(np.dtype(np.uint8), end)

    def matrix(self, name: str, rows: int, stride: int) -> Array:
        start = int(self.params[name])
        return self.heap[start : start + rows * stride * 2].view(np.uint16).reshape(rows, stride)

    def set_inputs(self, a: Array, b: Array) -> None:
        self.matrix("a", self.problem.m, self.lda)[:, : self.problem.k] = to_bf16(a)
        self.matrix("b", self.problem.k, self.ldb)[:, : self.problem.n] = to_bf16(b)

    def out(self) -> Array:
        return self.matrix("out", self.problem.m, self.ldb)

    def result(self) -> Array:
        return from_bf16(self.out()[:, : self.problem.n])

    def start_proxy(
        self, transport: int, rails: dict[int, RankMemory], fds: dict[int, int], context: int = 0
    ) -> int:
        """With a context the network region is in GPU memory: payload takes the way through `staging`."""
        networks = [rails[n].network.ctypes.data if n in rails else 0 for n in range(MAX_NODES)]
        stagings = [rails[n].staging.ctypes.data if n in rails else 0 for n in range(MAX_NODES)]
        heap, heaps = (self.staging, stagings) if context else (self.network, networks)
        config = self._layout.new(
            "ProxyConfig", heap=heap.ctypes.data, heap_bytes=self.network.nbytes,
            context=context, gpu_memory=self.network.ctypes.data, peer_gpu_memory=networks,
            control_offset=0, flag_words=self.flag_bytes // 8, ring_slots=self.ring_slots.ctypes.data,
            ring_tails=self.ring_tails.ctypes.data, epoch_word=self.epoch.ctypes.data,
            abort_record=self.abort.ctypes.data, peer_heaps=heaps,
            fds=[fds.get(n, -1) for n in range(MAX_NODES)], transport=transport, rings=RINGS,
            ring_depth=DEPTH, node=self.node, nodes=self.problem.nodes, rank=self.rank,
        )  # fmt: skip
        handle = self._library.mk_proxy_start(config.ctypes.data)
        assert handle, self._library.mk_proxy_error(None)
        return int(handle)

    def launch(self, peers: list[RankMemory], epoch: int) -> int:
        addresses = [peer.heap.ctypes.data for peer in peers]
        self.params["heap"] = addresses + [0] * (MAX_NODE_RANKS - len(addresses))
        self.params["epoch"] = self.epoch[0] = epoch
        handle = self._library.mk_host_prepare(self.params.ctypes.data)
        assert handle, self._library.mk_host_error()
        return int(handle)


def run_all(library: ctypes.CDLL, layout: Layout, launches: list[int]) -> list[Array]:
    """Open all gates at once; the HostResult of each launch."""
    results = [layout.new("HostResult") for _ in launches]
    with ThreadPoolExecutor(len(launches)) as pool:
        list(
            pool.map(
                lambda pair: library.mk_host_run(pair[0], pair[1].ctypes.data),
                zip(launches, results, strict=True),
            )
        )
    return results


@contextlib.contextmanager
def running_proxies(ranks: list[RankMemory], transport: int, context: int = 0) -> Iterator[list[int]]:
    """One running proxy a rank, if there is more than one node; their sockets stay open until the end."""
    with contextlib.ExitStack() as open_sockets:
        fds: dict[int, dict[int, int]] = {rank.rank: {} for rank in ranks}
        for a, b in itertools.combinations(ranks, 2):
            if a.local_rank == b.local_rank:
                ends = [open_sockets.enter_context(end) for end in socket.socketpair()]
                fds[a.rank][b.node], fds[b.rank][a.node] = ends[0].fileno(), ends[1].fileno()
        handles = []
        if ranks[0].problem.nodes > 1:
            for rank in ranks:
                rails = {peer.node: peer for peer in ranks if peer.local_rank == rank.local_rank}
                handles.append(rank.start_proxy(transport, rails, fds[rank.rank], context))
        yield handles


def wrong_launches(
    library: ctypes.CDLL, layout: Layout, problem: Problem, transport: int, context: int = 0
) -> Iterator[str]:
    """Yield what is wrong with launches of a problem, one epoch after another."""
    p, shape = problem, Shape(m=problem.m, n=problem.n, k=problem.k)
    ranks = [RankMemory(library, layout, p, rank) for rank in range(p.ranks)]
    with running_proxies(ranks, transport, context) as handles:
        for epoch in range(1, p.launches + 1):
            for rank in ranks:
                rank.set_inputs(*gemm_inputs(shape, rank.rank, p.ranks, epoch, "exact"))
                rank.out()[:] = NAN
            launches = [rank.launch([r for r in ranks if r.node == rank.node], epoch) for rank in ranks]
            for result in run_all(library, layout, launches):
                if result["set"]:
                    flag = layout.flags[int(result["flag"])]
                    yield f"epoch {epoch}: rank {result['rank']} gave up waiting for {flag}"
                elif result["end_ns"] <= result["start_ns"]:
                    yield f"epoch {epoch}: a launch took no time"
            expected = gemm_reference(shape, p.ranks, epoch, "exact")
            for rank in ranks:
                if not np.array_equal(rank.result(), expected):
                    yield f"epoch {epoch}: wrong result on rank {rank.rank}"
        drain_ns = int(p.deadline_s * 1e9)
        if any(library.mk_proxy_drain(handle, drain_ns) for handle in handles):
            yield "not drained"
        stats = [layout.new("ProxyStats") for _ in handles]
        for handle, stat in zip(handles, stats, strict=True):
            library.mk_proxy_stop(handle, stat.ctypes.data)
    network_bytes = p.launches * p.nodes * (p.nodes - 1) * p.tiles * TILE_BYTES
    wanted = {"payload_bytes": network_bytes, "received_bytes": network_bytes * transport, "failed": 0}
    sums = {name: sum(int(stat[name]) for stat in stats) for name in wanted}
    if sums != wanted:
        yield f"{sums}, not {wanted}"


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
