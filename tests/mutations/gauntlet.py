"""What a build of the kernel must survive: runs in the order of time, then in random orders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mkbench.core.cluster import ClusterProfile
from mkbench.core.config import load_config
from mkbench.core.plan import Point, make_plan
from mkbench.core.workloads import ag_gemm, gemm
from mkbench.platforms import launch_parameters
from mkbench.platforms.sim import verify
from mkbench.platforms.simulate import SimLibrary, Simulation, load

TILE_M, TILE_N = 8, 16
"""Small, so that a run takes milliseconds; the library must have been built with it."""

DEFINES = {"MK_TILE_M": TILE_M, "MK_TILE_N": TILE_N}
LAUNCHES = 3
DEADLINE_S = 0.01
"""Of simulated time; a run takes some hundred microseconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A small problem. Its tiles are cut at both edges; without `comm_sms` it is adaptive."""

    nodes: int
    ranks_per_node: int
    comm_sms: int | None
    chunk_tiles: int
    kernel: str = "gemm_ar"
    m: int = 20
    n: int = 44
    k: int = 5
    blocks: int = 5
    tokens: int | None = None
    """Of a layer with twice as many experts as ranks, in place of m, n and k."""

    def __str__(self) -> str:
        policy = "adaptive" if self.comm_sms is None else "static"
        return f"{self.nodes}x{self.ranks_per_node} {self.shape} {policy}"

    @property
    def shape(self) -> dict[str, int]:
        """The extents, as --shape takes them."""
        if self.tokens is None:
            return {"m": self.m, "n": self.n, "k": self.k}
        experts = 2 * self.nodes * self.ranks_per_node
        return {"t": self.tokens, "hidden": 5, "inter": 20, "experts": experts, "topk": min(3, experts)}

    @cache  # noqa: B019  (there are as many as CASES)
    def point(self) -> tuple[Point, ClusterProfile]:
        """Return the point to simulate and its cluster."""
        settings = {
            "kernels": self.kernel,
            "platform": "sim",
            "cluster": "2x8-h200-ib" if self.nodes > 1 else "1x8-h100",
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "shape": self.shape,
            "policies": ["adaptive" if self.comm_sms is None else "static"],
            "comm_sms": [self.comm_sms or 1],
            "start_comm_sms": 2,
            "chunk_tiles": self.chunk_tiles,
            "data": True,
            "seed": 1,
        }
        plan = make_plan(load_config(None, settings))
        return replace(plan.points[0], blocks=self.blocks, deadline_s=DEADLINE_S), plan.cluster


_REDUCE = (
    Case(1, 2, comm_sms=2, chunk_tiles=2),
    Case(1, 3, comm_sms=None, chunk_tiles=1),
    Case(2, 2, comm_sms=1, chunk_tiles=2),
    Case(2, 2, comm_sms=None, chunk_tiles=1),
    Case(2, 3, comm_sms=2, chunk_tiles=1),
    Case(3, 2, comm_sms=None, chunk_tiles=2),
    Case(2, 2, comm_sms=2, chunk_tiles=1, m=7, n=9),  # one tile: a rank that owns none
)
# Shards of one row of tiles, then of two, cut ones and empty ones.
_SCATTER = (
    Case(1, 2, comm_sms=2, chunk_tiles=2),
    Case(2, 2, comm_sms=1, chunk_tiles=2),
    Case(2, 2, comm_sms=None, chunk_tiles=1, m=41),
    Case(3, 2, comm_sms=None, chunk_tiles=2),
    Case(3, 2, comm_sms=2, chunk_tiles=1, m=7, n=9),
)
# Shards of two chunks and a cut one, which go round and take used slots; one node; ranks that have no row.
_GATHER = (
    Case(1, 2, comm_sms=2, chunk_tiles=1, m=39),
    Case(2, 2, comm_sms=None, chunk_tiles=1, m=71),
    Case(4, 1, comm_sms=1, chunk_tiles=1, m=71),
    Case(4, 2, comm_sms=None, chunk_tiles=1, m=140),
    Case(3, 2, comm_sms=2, chunk_tiles=1, m=5, n=9),
)
# One node; windows that are cut; several of them; ranks that have no token, with their rail peers or without.
_DISPATCH = (
    Case(1, 2, comm_sms=2, chunk_tiles=2, tokens=21),
    Case(1, 3, comm_sms=None, chunk_tiles=1, tokens=2),
    Case(2, 2, comm_sms=1, chunk_tiles=2, tokens=30),
    Case(2, 2, comm_sms=None, chunk_tiles=1, tokens=30),
    Case(2, 1, comm_sms=2, chunk_tiles=60, tokens=600),
    Case(3, 2, comm_sms=None, chunk_tiles=2, tokens=40),
    Case(2, 2, comm_sms=2, chunk_tiles=1, tokens=3),
)
CASES = {
    "ag_gemm": tuple(replace(case, kernel="ag_gemm") for case in _GATHER),
    "gemm_ar": _REDUCE,
    "gemm_rs": tuple(replace(case, kernel="gemm_rs") for case in _SCATTER),
    "moe_dispatch_gemm": tuple(replace(case, kernel="moe_dispatch_gemm") for case in _DISPATCH),
}


def use_small_tiles() -> None:
    """Make this process plan for small tiles, and for rings so short that they wrap and run full."""
    gemm.TILE_M, gemm.TILE_N = TILE_M, TILE_N
    gemm.TILE_BYTES = TILE_M * TILE_N * gemm.ELEMENT_BYTES
    ag_gemm.LEAST_STRIP_BYTES = 64
    launch_parameters.RINGS, launch_parameters.RING_DEPTH = 2, 2


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
