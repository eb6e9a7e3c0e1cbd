"""What results are compared with: made once, kept for the points that share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mkbench.core.point import Point
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Family, Matrix, Shape
from mkbench.dist.engine import Engine
from mkbench.dist.verify import bands

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

#: A point needs one of each family.
_KEPT = 2
#: Elements that are sent at once: MPI counts them, and some MPIs count bytes, in 31 bits.
_PIECE = 1 << 26

Key = tuple[str, Shape, int, int, Family]


class References:
    """The references of one rank, in the memory of its engine."""

    def __init__(self) -> None:
        self._kept: dict[Key, Matrix] = {}

    def evict_others(self, point: Point) -> None:
        """Free those that `point` has no use for, before its heap is allocated."""
        mine = (point.kernel, point.shape, point.ranks)
        for key in [key for key in self._kept if key[:3] != mine]:
            del self._kept[key]

    def get(self, world: Intracomm, engine: Engine, point: Point, seed: int, family: Family) -> Matrix:
        """Return what this rank must end up with, as `engine.keep` returned it.

        Collective, with the same arguments on all ranks.
        """
        key = (point.kernel, point.shape, point.ranks, seed, family)
        if key not in self._kept:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            made = _received if workload(point.kernel).is_replicated else _made
            self._kept[key] = engine.keep(made(world, engine, key))
        return self._kept[key]


def _made(world: Intracomm, engine: Engine, key: Key) -> Matrix:
    kernel, shape, ranks, seed, family = key
    return workload(kernel).reference(shape, world.rank, ranks, seed, family, engine.sum_products)


def _received(world: Intracomm, engine: Engine, key: Key) -> Matrix:
    """Return what rank 0 made, which all share."""
    kernel, shape, ranks = key[:3]
    end = workload(kernel).output(shape, 0, ranks)
    values = _made(world, engine, key) if world.rank == 0 else np.empty((end.rows, end.columns), np.float32)
    for band in bands(end.rows, end.columns, _PIECE):
        world.Bcast(values[band])
    return values
