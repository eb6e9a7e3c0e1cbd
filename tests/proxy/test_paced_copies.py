"""Pacing: what a link of some rate could not have carried yet has not arrived. Times are lower bounds."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_rig import Problem, RankMemory, run_all
from proxy_rig import DATA, DEPTH, MAX_NODES, Proxy, flag

from mkbench.build.layout import Layout
from mkbench.core.resources import kernels_dir
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm import TILE_BYTES, TILE_M, TILE_N
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_reference
from mkbench.dist.abort import PACED

MakeProxy = Callable[[int, int], Proxy]

SLOW = 10_000_000
"""Femtoseconds a byte: 0.1 GB/s, at which a MiB takes 10.5 ms, much longer than to copy it."""
VERY_SLOW = 1_000_000_000
"""1 MB/s, at which a tile takes 66 ms, much longer than threads take to make it."""
MIB = 1 << 20
LARGEST_PUT = ((1 << 18) - 1) * 16
SLOWEST = round(1e6 / (1e-3 / 64))
"""The slowest rate that a plan takes, shared by 64 ranks."""


def ns(size: int, fs_per_byte: int = SLOW) -> float:
    """What `size` bytes take, less the rounding of a few puts."""
    return size * fs_per_byte / 1e6 - 100


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pace") / "pace"
    source = Path(__file__).with_name("pace.cpp")
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE"]
    subprocess.run(["g++", *flags, "-I", str(kernels_dir()), str(source), "-o", str(target)], check=True)
    return target


PUTS = st.lists(
    st.tuples(st.integers(0, 10**7), st.one_of(st.just(0), st.integers(0, LARGEST_PUT))),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(puts=PUTS, fs=st.integers(0, SLOWEST), start=st.integers(0, 2 * 10**18))
def test_no_stretch_of_time_carries_more_than_the_rate(
    program: Path, puts: list[tuple[int, int]], fs: int, start: int
) -> None:
    taken = list(start + np.cumsum([gap for gap, _ in puts], dtype=object))
    lines = "".join(f"{now} {size}\n" for now, (_, size) in zip(taken, puts, strict=True))
    out = subprocess.run([program, str(fs)], input=lines, capture_output=True, text=True, check=True).stdout
    leaves = [int(line) for line in out.split()]
    costs = [(size * fs + 500_000) // 1_000_000 for _, size in puts]
    for j in range(len(puts)):
        for i in range(j + 1):
            assert leaves[j] >= taken[i] + sum(costs[i : j + 1])
        # Nor is anything held back for longer.
        assert leaves[j] == costs[j] + (max(taken[j], leaves[j - 1]) if j else taken[j])


@pytest.fixture
def nodes(make_proxy: MakeProxy) -> list[Proxy]:
    """Three nodes; the proxy of node 0 runs, paced."""
    proxies = [make_proxy(node, 3) for node in range(3)]
    heaps = [proxy.heap.ctypes.data for proxy in proxies]
    proxies[0].start(transport=0, peer_heaps=heaps + [0] * (MAX_NODES - 3), pace_fs_per_byte=SLOW)
    return proxies


def test_all_arrives_and_no_sooner_than_the_rate_allows(nodes: list[Proxy]) -> None:
    sender, receiver = nodes[:2]
    data = sender.fill(1, DATA, MIB)
    start, part, count = time.monotonic_ns(), MIB // 8, 2 * DEPTH
    for i in range(count):
        sender.push(peer=1, flag=i, source=DATA + i * part, destination=DATA + i * part, size=part)
    assert sender.drain() == 0
    assert time.monotonic_ns() - start >= ns(MIB)
    assert list(receiver.flags[:count]) == [flag(1)] * count
    assert np.array_equal(receiver.heap[DATA : DATA + MIB], data)
    stats = sender.stop()
    assert (stats["puts"], stats["payload_bytes"], stats["refused"]) == (count, MIB, 0)


def test_the_link_is_one_for_all_peers(nodes: list[Proxy]) -> None:
    start = time.monotonic_ns()
    for peer in (1, 2):
        nodes[0].push(ring=peer - 1, peer=peer, flag=0, size=MIB)
    assert nodes[0].drain() == 0
    assert time.monotonic_ns() - start >= ns(2 * MIB)
    assert [int(node.flags[0]) for node in nodes[1:]] == [flag(1)] * 2


def test_a_put_without_payload_waits_its_turn(nodes: list[Proxy]) -> None:
    sender, receiver = nodes[:2]
    start = time.monotonic_ns()
    sender.push(peer=1, flag=0, size=MIB)
    sender.push(peer=1, flag=1)
    while receiver.flags[1] != flag(1):
        assert sender.error() is None
    assert receiver.flags[0] == flag(1)
    assert time.monotonic_ns() - start >= ns(MIB)


LAUNCHES = [
    Problem(local_ranks=2),
    Problem(local_ranks=3, policy=1),
    Problem(local_ranks=2, m=200, n=300, k=7),
    Problem(local_ranks=2, nodes=2),
]


@pytest.mark.parametrize("problem", LAUNCHES)
def test_copies_between_the_ranks_of_a_node_take_their_time(
    library: ctypes.CDLL, layout: Layout, problem: Problem
) -> None:
    p, shape = problem, Shape(m=problem.m, n=problem.n, k=problem.k)
    ranks = [RankMemory(library, layout, p, rank) for rank in range(p.ranks)]
    for rank in ranks:
        rank.params["pace_fs_per_byte"] = VERY_SLOW
        rank.set_inputs(*gemm_inputs(shape, rank.rank, p.ranks, 1, "exact"))
    handles = [rank.start_proxy(0, rails(ranks, rank), {}) for rank in ranks if p.nodes > 1]
    launches = [rank.launch([r for r in ranks if r.node == rank.node], 1) for rank in ranks]
    results = run_all(library, layout, launches)
    for handle in handles:
        library.mk_proxy_stop(handle, layout.new("ProxyStats").ctypes.data)
    expected = gemm_reference(shape, p.ranks, 1, "exact")
    for rank, result in zip(ranks, results, strict=True):
        assert result["set"] == 0
        np.testing.assert_array_equal(rank.result(), expected)
        # From each peer of the node come partials, to each go results.
        moved = (p.local_ranks - 1) * sum(sum(sizes) for sizes in own_tiles(p, rank))
        assert result["end_ns"] - result["start_ns"] >= ns(moved, VERY_SLOW)


def rails(ranks: list[RankMemory], rank: RankMemory) -> dict[int, RankMemory]:
    return {peer.node: peer for peer in ranks if peer.local_rank == rank.local_rank}


def own_tiles(p: Problem, rank: RankMemory) -> list[tuple[int, int]]:
    """Bytes of the partial and of the result of each tile that a rank owns; a column of tiles comes first."""
    corners = [(m, n) for n in range(0, p.n, TILE_N) for m in range(0, p.m, TILE_M)]
    cut = [2 * min(TILE_M, p.m - m) * min(TILE_N, rank.ldb - n) for m, n in corners]
    # On several nodes partials are summed whole, since that is how tiles cross the network.
    return [(TILE_BYTES if p.nodes > 1 else size, size) for size in cut[rank.local_rank :: p.local_ranks]]


def test_a_port_that_is_taken_past_the_deadline_ends_the_launch(library: ctypes.CDLL, layout: Layout) -> None:
    p = Problem(local_ranks=2, blocks=2, comm_sms=1, deadline_s=1.0)
    ranks = [RankMemory(library, layout, p, rank) for rank in range(p.ranks)]
    for rank in ranks:
        rank.params["pace_fs_per_byte"] = SLOWEST
        rank.set_inputs(*gemm_inputs(Shape(m=p.m, n=p.n, k=p.k), rank.rank, p.ranks, 1, "exact"))
    results = run_all(library, layout, [rank.launch(ranks, 1) for rank in ranks])
    for result in results:
        assert (result["set"], result["flag"]) == (1, PACED)
        assert result["expected"] > result["seen"]
    # The one block of a rank that communicates left at its first tile.
    for rank in ranks:
        written = [rank.out()[m : m + TILE_M, n : n + TILE_N].any() for n in (0, TILE_N) for m in (0, TILE_M)]
        assert sum(written) == p.local_ranks
