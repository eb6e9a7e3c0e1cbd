"""Points of any size for the simulator, smaller than a cluster where a test needs no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mkbench.build.cpu import build_library
from mkbench.core.cluster import ClusterProfile
from mkbench.core.config import load_config
from mkbench.core.plan import Plan, Point, make_plan
from mkbench.core.workloads import workload
from mkbench.platforms.simulate import Result, SimLibrary, Simulation, load

TILE_M, TILE_N, TILE_BYTES = 128, 256, 65536


@dataclass(frozen=True)
class Case:
    """A point and the cluster that it runs on."""

    point: Point
    cluster: ClusterProfile

    @property
    def tiles(self) -> int:
        """Tiles of C, counted here and not by the code under test."""
        return -(-self.point.shape.m // TILE_M) * -(-self.point.shape.n // TILE_N)

    def own_tiles(self, rank: int) -> int:
        """Tiles that `rank` reduces: chunks are dealt out to the ranks of a node in turn."""
        local = rank % self.point.ranks_per_node
        owners = (tile // self.point.chunk_tiles % self.point.ranks_per_node for tile in range(self.tiles))
        return sum(owner == local for owner in owners)

    def own_chunks(self, rank: int) -> int:
        return -(-self.own_tiles(rank) // self.point.chunk_tiles)


def plan_of(**settings: Any) -> Plan:
    return make_plan(load_config(None, {"kernels": "gemm_ar", "platform": "sim", "seed": 7} | settings))


def case_of(blocks: int | None = None, **settings: Any) -> Case:
    """The only point of a plan. `blocks` a rank may be fewer than the hardware has."""
    asked = {"cluster": "2x8-h200-ib", "policies": "static", "comm_sms": "2"} | settings
    plan = plan_of(**asked)
    (point,) = plan.points
    return Case(replace(point, blocks=blocks or point.blocks), plan.cluster)


@cache
def library_of(kernel: str, sources: Path | None = None) -> SimLibrary:
    """The library of `kernel`, looked up once: that takes longer than a small simulation."""
    return load(build_library(kernel, sources=sources))


@contextmanager
def simulation_of(
    case: Case, *, seed: int = 7, sources: Path | None = None, **options: Any
) -> Iterator[Simulation]:
    """A simulation ready to run, its inputs filled in if the point has data."""
    with Simulation(
        library_of(case.point.kernel, sources), case.point, case.cluster, seed=seed, **options
    ) as simulation:
        if case.point.data:
            simulation.fill_inputs()
        yield simulation


def result_of(case: Case, **options: Any) -> Result:
    with simulation_of(case, **options) as simulation:
        return simulation.run()


def left_in_accumulators(simulation: Simulation) -> int:
    """How many elements are not zero, over all ranks; the next launch adds to them."""
    point = simulation.point
    kernel = workload(point.kernel, point.reduction)
    buffers = kernel.buffers(point.shape, point.nodes, point.ranks_per_node, point.chunk_tiles)
    counts = [buffer.bytes // 2 for buffer in buffers if buffer.name == "accumulator"]
    return sum(
        np.count_nonzero(simulation.view(rank, simulation.heap.offsets["accumulator"], count, "u2"))
        for rank in range(point.ranks)
        for count in counts
    )
