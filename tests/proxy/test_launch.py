"""The whole kernel on threads, with several ranks and nodes in this process."""

from __future__ import annotations

import ctypes
import socket

import pytest
from launch_rig import Problem, RankMemory, run_all, running_proxies, wrong_launches

from mkbench.build.layout import Layout

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
    assert list(wrong_launches(library, layout, problem, transport)) == []


def test_a_wait_past_its_deadline_says_what_it_waited_for(library: ctypes.CDLL, layout: Layout) -> None:
    # Node 1 is never launched, so nothing arrives from it.
    problem = Problem(nodes=2, deadline_s=0.2)
    ranks = [RankMemory(library, layout, problem, rank) for rank in range(2)]
    with running_proxies(ranks, 0) as handles:
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
