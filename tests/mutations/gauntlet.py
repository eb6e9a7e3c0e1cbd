"""What a build of the kernel must survive: runs in the order of time, then in random orders."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from mkbench.core.cluster import ClusterProfile
from mkbench.core.config import load_config
from mkbench.core.plan import Point, make_plan
from mkbench.core.workloads import ag_gemm, gemm, ring_attention, workload
from mkbench.core.workloads.base import Reduction, Shape
from mkbench.platforms import launch_parameters
from mkbench.platforms.sim import verify
from mkbench.platforms.simulate import SimLibrary, Simulation, load

TILE_M, TILE_N = 8, 16
"""Small, so that a run takes milliseconds; the library must have been built with it."""

DEFINES = {"MK_TILE_M": TILE_M, "MK_TILE_N": TILE_N}
LAUNCHES = 3
DEADLINE_S = 0.01
"""Of simulated time; a run takes some hundred microseconds."""


def _gemm(m: int, n: int = 44) -> Shape:
    return Shape(m=m, n=n, k=5)


def _layer(tokens: int, experts: int, topk: int = 3) -> Shape:
    return Shape(t=tokens, hidden=5, inter=20, experts=experts, topk=topk)


def _sequence(s: int, *, g: int = 1, causal: bool = False) -> Shape:
    return Shape(b=1, h=2, g=g, s=s, d=64, causal=int(causal))


_TILES = _gemm(20)


@dataclass(frozen=True, slots=True)
class Case:
    """A small problem. Its tiles are cut at both edges; without `comm_sms` it is adaptive."""

    nodes: int
    ranks_per_node: int
    comm_sms: int | None
    chunk_tiles: int
    shape: Shape = _TILES
    kernel: str = "gemm_ar"
    blocks: int = 5
    reduction: Reduction | None = None

    def __str__(self) -> str:
        policy = "adaptive" if self.comm_sms is None else "static"
        words = [f"{self.nodes}x{self.ranks_per_node}", self.shape.label, policy, self.reduction or ""]
        return " ".join(words).strip()

    @cache  # noqa: B019  (there are as many as CASES)
    def point(self) -> tuple[Point, ClusterProfile]:
        """Return the point to simulate and its cluster."""
        settings: dict[str, object] = {
            "kernels": self.kernel,
            "platform": "sim",
            "cluster": "2x8-h200-ib" if self.nodes > 1 else "1x8-h100",
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "shape": self.shape.to_json(),
            "policies": ["adaptive" if self.comm_sms is None else "static"],
            "comm_sms": [self.comm_sms or 1],
            "start_comm_sms": min(2, self.blocks - 1),
            "chunk_tiles": self.chunk_tiles,
            "data": True,
            "seed": 1,
        }
        if self.reduction:
            settings["reduction"] = [self.reduction]
        plan = make_plan(load_config(None, settings))
        return replace(plan.points[0], blocks=self.blocks, deadline_s=DEADLINE_S), plan.cluster


_REDUCE = (
    Case(1, 2, comm_sms=2, chunk_tiles=2),
    Case(1, 3, comm_sms=None, chunk_tiles=1),
    Case(2, 2, comm_sms=1, chunk_tiles=2),
    Case(2, 2, comm_sms=None, chunk_tiles=1),
    Case(2, 3, comm_sms=2, chunk_tiles=1),
    Case(3, 2, comm_sms=None, chunk_tiles=2),
    Case(2, 2, comm_sms=2, chunk_tiles=1, shape=_gemm(7, 9)),  # one tile: a rank that owns none
    Case(1, 3, comm_sms=2, chunk_tiles=1, reduction="atomic"),
    Case(2, 2, comm_sms=None, chunk_tiles=2, reduction="atomic"),
)
# Shards of one row of tiles, then of two, cut ones and empty ones.
_SCATTER = (
    Case(1, 2, comm_sms=2, chunk_tiles=2),
    Case(2, 2, comm_sms=1, chunk_tiles=2),
    Case(2, 2, comm_sms=None, chunk_tiles=1, shape=_gemm(41)),
    Case(3, 2, comm_sms=None, chunk_tiles=2),
    Case(3, 2, comm_sms=2, chunk_tiles=1, shape=_gemm(7, 9)),
    Case(1, 2, comm_sms=None, chunk_tiles=2, reduction="atomic"),
    Case(2, 2, comm_sms=1, chunk_tiles=1, reduction="atomic"),
)
# Shards of two chunks and a cut one, which go round and take used slots; one node; ranks that have no row.
_GATHER = (
    Case(1, 2, comm_sms=2, chunk_tiles=1, shape=_gemm(39)),
    Case(2, 2, comm_sms=None, chunk_tiles=1, shape=_gemm(71)),
    Case(4, 1, comm_sms=1, chunk_tiles=1, shape=_gemm(71)),
    Case(4, 2, comm_sms=None, chunk_tiles=1, shape=_gemm(140)),
    Case(3, 2, comm_sms=2, chunk_tiles=1, shape=_gemm(5, 9)),
)
# One node; windows that are cut; several of them; ranks that have no token, with their rail peers or without.
_DISPATCH = (
    Case(1, 2, comm_sms=2, chunk_tiles=2, shape=_layer(21, experts=4)),
    Case(1, 3, comm_sms=None, chunk_tiles=1, shape=_layer(2, experts=6)),
    Case(2, 2, comm_sms=1, chunk_tiles=2, shape=_layer(30, experts=8)),
    Case(2, 2, comm_sms=None, chunk_tiles=1, shape=_layer(30, experts=8)),
    Case(2, 1, comm_sms=2, chunk_tiles=60, shape=_layer(600, experts=4)),
    Case(3, 2, comm_sms=None, chunk_tiles=2, shape=_layer(40, experts=12)),
    Case(2, 2, comm_sms=2, chunk_tiles=1, shape=_layer(3, experts=8)),
)
# One node; a block that communicates alone and may be lent; shards of four strips, fewer on the last rank,
# that take used slots; ranks that have no position.
_RING = (
    Case(1, 2, comm_sms=2, chunk_tiles=2, shape=_sequence(39, causal=True)),
    Case(2, 2, comm_sms=None, chunk_tiles=1, shape=_sequence(41), blocks=2),
    Case(4, 1, comm_sms=1, chunk_tiles=1, shape=_sequence(41, g=2)),
    Case(4, 2, comm_sms=None, chunk_tiles=1, shape=_sequence(75, causal=True)),
    Case(3, 2, comm_sms=2, chunk_tiles=1, shape=_sequence(5, causal=True)),
)
CASES = {
    kernel: tuple(replace(case, kernel=kernel) for case in cases)
    for kernel, cases in {
        "ag_gemm": _GATHER,
        "gemm_ar": _REDUCE,
        "gemm_rs": _SCATTER,
        "moe_dispatch_gemm": _DISPATCH,
        "ring_attention": _RING,
    }.items()
}


def use_small_tiles() -> None:
    """Make this process plan for small tiles, and for rings so short that they wrap and run full."""
    gemm.TILE_M, gemm.TILE_N = TILE_M, TILE_N
    gemm.TILE_BYTES = TILE_M * TILE_N * gemm.ELEMENT_BYTES
    ring_attention.TILE_ROWS = TILE_M
    ag_gemm.LEAST_STRIP_BYTES = 64
    launch_parameters.RINGS, launch_parameters.RING_DEPTH = 2, 2


@cache
def remember_data(kernel: str) -> None:
    """Make the inputs and results of a kernel's cases, which takes longer than to simulate them, but once.

    A process of its own makes them, with threads: behind those, ThreadSanitizer reports nothing in a fork.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    maker = context.Process(target=lambda: sender.send(_data(kernel)))
    maker.start()
    sender.close()
    inputs, results = receiver.recv()
    maker.join()
    known = workload(kernel)
    known.inputs = lambda *key: inputs[key]
    known.reference = lambda *key: results[key]


def _data(kernel: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The inputs and the result of every rank of every case, by the arguments that ask for them."""
    keys = set()
    for case in CASES[kernel]:
        point, _ = case.point()
        keys |= {(point.shape, rank, point.ranks, point.seed, "exact") for rank in range(point.ranks)}
    known = workload(kernel)
    return {key: known.inputs(*key) for key in keys}, {key: known.reference(*key) for key in keys}


def complaint(library: SimLibrary, case: Case, *, seed: int, stress: bool) -> str | None:
    """Return what is wrong with one run, or None."""
    point, cluster = case.point()
    with Simulation(library, point, cluster, seed=seed, launches=LAUNCHES, stress=stress) as simulation:
        simulation.fill_inputs()
        result = simulation.run()
        if result.status != "ok":
            return f"{result.status}: {result.report.splitlines()[0]}"
        check = verify(simulation)
        if check.mismatches:
            return f"wrong result: {check.first}"
    expected = LAUNCHES * point.network_bytes
    if result.payload_bytes != expected:
        return f"network bytes: {result.payload_bytes}, not {expected}"
    return None


def complaints(kernel: str, path: Path, stress_seeds: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the detector ("time order" or "stress") and what it found in the library at `path`."""
    assert os.environ.get("OPENBLAS_NUM_THREADS") == "1", "threads of NumPy disturb ThreadSanitizer"
    library = load(path)
    runs = [("time order", 0), *(("stress", seed) for seed in stress_seeds)]
    for detector, seed in runs:
        for case in CASES[kernel]:
            found = complaint(library, case, seed=seed, stress=detector == "stress")
            if found:
                yield detector, f"{case}, seed {seed}: {found}"
