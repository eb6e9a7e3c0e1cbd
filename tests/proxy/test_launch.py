"""The whole kernel on threads, with several ranks and nodes in this process."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from launch_rig import Problem, RankMemory, run_all

from mkbench.build.layout import Layout
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm_ar import TILE_BYTES
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_reference

NAN = 0x7FC1
DRAIN_NS = 20_000_000_000
PROBLEMS = [
    Problem(),
    Problem(m=200, n=300, k=7, blocks=3, comm_sms=1),
    Problem(local_ranks=2),
    Problem(nodes=2),
    Problem(nodes=2, m=200, n=300, k=7, blocks=3, comm_sms=1, chunk_tiles=2),
    Problem(nodes=2, local_ranks=2, policy=1),
    Problem(nodes=3, m=300, n=700, k=5, blocks=3, comm_sms=2),
]


def name(problem: Problem) -> str:
    policy = "adaptive" if problem.policy else "static"
    return f"{problem.nodes}x{problem.local_ranks}-m{problem.m}n{problem.n}k{problem.k}-{policy}"


@contextlib.contextmanager
def proxies(library: ctypes.CDLL, ranks: list[RankMemory], transport: int) -> Iterator[list[int]]:
    """One running proxy a rank, if there is more than one node; their sockets stay open until the end."""
    p = ranks[0].problem
    with contextlib.ExitStack() as open_sockets:
        fds: dict[int, dict[int, int]] = {rank.rank: {} for rank in ranks}
        for a, b in itertools.combinations(ranks, 2):
            if a.local_rank == b.local_rank:
                ends = [open_sockets.enter_context(end) for end in socket.socketpair()]
                fds[a.rank][b.node], fds[b.rank][a.node] = ends[0].fileno(), ends[1].fileno()
        handles = []
        if p.nodes > 1:
            for rank in ranks:
                rails = {peer.node: peer for peer in ranks if peer.local_rank == rank.local_rank}
                handles.append(rank.start_proxy(transport, rails, fds[rank.rank]))
        yield handles


CASES = [
    (problem, transport)
    for problem in PROBLEMS
    for transport in (0, 1)
    if problem.nodes > 1 or transport == 0
]


@pytest.mark.parametrize(
    ("problem", "transport"),
    CASES,
    ids=[f"{name(problem)}-{('shm', 'tcp')[transport]}" for problem, transport in CASES],
)
def test_results_are_exact_in_every_epoch(
    library: ctypes.CDLL, layout: Layout, problem: Problem, transport: int
) -> None:
    p = problem
    shape = Shape(m=p.m, n=p.n, k=p.k)
    ranks = [RankMemory(library, layout, p, rank) for rank in range(p.ranks)]
    epochs = range(1, p.launches + 1)
    with proxies(library, ranks, transport) as handles:
        for epoch in epochs:
            expected = gemm_reference(shape, p.ranks, epoch, "exact")
            for rank in ranks:
                rank.set_inputs(*gemm_inputs(shape, rank.rank, p.ranks, epoch, "exact"))
                rank.out()[:] = NAN
            launches = [rank.launch([r for r in ranks if r.node == rank.node], epoch) for rank in ranks]
            results = run_all(library, layout, launches)
            assert [int(result["set"]) for result in results] == [0] * p.ranks, results
            assert all(result["end_ns"] > result["start_ns"] for result in results)
            for rank in ranks:
                np.testing.assert_array_equal(rank.result(), expected)
        assert [library.mk_proxy_drain(handle, DRAIN_NS) for handle in handles] == [0] * len(handles)
        stats = [layout.new("ProxyStats") for _ in handles]
        for handle, stat in zip(handles, stats, strict=True):
            library.mk_proxy_stop(handle, stat.ctypes.data)
    assert not any(stat["failed"] for stat in stats)
    network_bytes = sum(int(stat["payload_bytes"]) for stat in stats)
    assert network_bytes == len(epochs) * p.nodes * (p.nodes - 1) * p.tiles * TILE_BYTES
    if transport == 1:
        assert sum(int(stat["received_bytes"]) for stat in stats) == network_bytes


def test_a_wait_past_its_deadline_says_what_it_waited_for(library: ctypes.CDLL, layout: Layout) -> None:
    # Node 1 is never launched, so nothing arrives from it.
    problem = Problem(nodes=2, deadline_s=0.2)
    ranks = [RankMemory(library, layout, problem, rank) for rank in range(2)]
    with proxies(library, ranks, 0) as handles:
        (result,) = run_all(library, layout, [ranks[0].launch(ranks[:1], 1)])
        for handle in handles:
            library.mk_proxy_stop(handle, layout.new("ProxyStats").ctypes.data)
    assert (result["set"], result["rank"]) == (1, 0)
    assert 0 <= result["block"] < problem.blocks
    assert layout.flags[int(result["flag"])] in ("arrived", "finished")
    assert (result["expected"], result["seen"]) == (1 << 32 | 1, 0)


def test_a_set_abort_record_ends_the_launch(library: ctypes.CDLL, layout: Layout) -> None:
    ranks = [RankMemory(library, layout, Problem(nodes=2), rank) for rank in range(2)]
    ranks[0].abort["set"], ranks[0].abort["rank"] = 2, 1
    (result,) = run_all(library, layout, [ranks[0].launch(ranks[:1], 1)])
    assert (result["set"], result["rank"]) == (2, 1)


def test_a_dead_peer_ends_the_launch(library: ctypes.CDLL, layout: Layout) -> None:
    rank = RankMemory(library, layout, Problem(nodes=2), 0)
    ends = socket.socketpair()
    with ends[0]:
        ends[1].close()
        proxy = rank.start_proxy(1, {}, {1: ends[0].fileno()})
        (result,) = run_all(library, layout, [rank.launch([rank], 1)])
        assert library.mk_proxy_error(proxy).decode().startswith("peer node 1: ")
        library.mk_proxy_stop(proxy, layout.new("ProxyStats").ctypes.data)
    assert result["set"] == 2


def test_a_launch_can_be_discarded(library: ctypes.CDLL, layout: Layout) -> None:
    rank = RankMemory(library, layout, Problem(), 0)
    library.mk_host_discard(rank.launch([rank], 1))
    assert not rank.out().any()


def test_a_launch_without_blocks_is_refused(library: ctypes.CDLL, layout: Layout) -> None:
    rank = RankMemory(library, layout, Problem(blocks=0), 0)
    assert library.mk_host_prepare(rank.params.ctypes.data) is None
    assert "at least one block" in library.mk_host_error().decode()
