from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Shape, sum_products
from mkbench.dist import references
from mkbench.dist.references import References


class World:
    """The communicator of one of two ranks; `sent` is what rank 0 puts on it and rank 1 takes."""

    def __init__(self, rank: int, sent: list[np.ndarray]) -> None:
        self.rank, self._sent = rank, sent

    def Bcast(self, piece: np.ndarray) -> None:
        if self.rank == 0:
            self._sent.append(piece.copy())
        else:
            piece[:] = self._sent.pop(0)


class Memory(np.ndarray):
    """An array in the memory of an engine."""


class FakeEngine:
    def __init__(self) -> None:
        self.sums, self.most = 0, 0
        self._kept: list[weakref.ref[Memory]] = []

    def sum_products(self, pairs, precision):
        self.sums += 1
        self.most = max(self.most, self.in_memory)
        return sum_products(pairs, precision)

    def keep(self, values: np.ndarray) -> Memory:
        kept = values.copy().view(Memory)
        self._kept.append(weakref.ref(kept))
        return kept

    @property
    def in_memory(self) -> int:
        gc.collect()
        return sum(kept() is not None for kept in self._kept)


@pytest.fixture
def point(make_point):
    return make_point(shape=Shape(m=20, n=12, k=8), ranks=2)


def test_every_rank_gets_what_rank_0_makes_and_keeps_it_in_its_engine(point, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(references, "_PIECE", 3 * 12)
    sent: list[np.ndarray] = []
    engines = FakeEngine(), FakeEngine()
    found = [
        References().get(World(rank, sent), engine, point, 7, "exact") for rank, engine in enumerate(engines)
    ]
    expected = workload(point.kernel).reference(point.shape, 0, 2, 7, "exact")
    for values in found:
        assert isinstance(values, Memory)
        assert np.array_equal(values, expected)
    assert [engine.sums for engine in engines] == [1, 0]
    assert not sent


def test_it_is_made_once_for_the_points_that_share_it(point):
    kept, engine, world = References(), FakeEngine(), World(0, [])
    for other in (point, replace(point, comm_sms=3), replace(point, policy="adaptive")):
        kept.evict_others(other)
        for family in ("exact", "normal", "exact"):
            kept.get(world, engine, other, 7, family)
    assert engine.sums == 2


@pytest.mark.parametrize("change", [{"shape": Shape(m=20, n=12, k=9)}, {"ranks": 3}])
def test_a_point_that_cannot_use_them_finds_the_memory_free(point, change):
    kept, engine, world = References(), FakeEngine(), World(0, [])
    for family in ("exact", "normal"):
        kept.get(world, engine, point, 7, family)
    assert engine.in_memory == 2
    kept.evict_others(replace(point, **change))
    assert engine.in_memory == 0


def test_many_seeds_do_not_fill_the_memory(point):
    kept, engine, world = References(), FakeEngine(), World(0, [])
    for seed in range(5):
        kept.get(world, engine, point, seed, "exact")
        assert engine.in_memory <= 2
    # The oldest one has gone before the next one is computed.
    assert engine.most == 1
