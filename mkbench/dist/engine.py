"""What runs a rank's kernel: threads of this process, or a GPU. The rest of a rank is the same for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mkbench.core.point import Point
from mkbench.core.workloads.base import Matrix, Precision, sum_products
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Launch, Record
from mkbench.dist.place import Place
from mkbench.dist.symmetric import SymmetricHeap

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GpuNetwork:
    """The network region, flags and all, in GPU memory, for proxies that use the GPU's copy engines.

    `context` is the CUcontext that owns it, `address` the own one's, `peers` that of each rail peer (by world
    rank), as mapped here; empty where another transport than shm leads to them.
    """

    context: int
    address: int
    peers: Mapping[int, int]


class Engine(Protocol):
    """The heap of one rank and its launches, for one point.

    Collective over all ranks to create, to launch and to close.
    """

    library: KernelLibrary
    node_heaps: list[int]
    """Address of the heap of each rank of the node, as this rank's kernel sees it."""
    gpu_network: GpuNetwork | None
    """Where the network region lies, unless the kernel uses that of HostMemory."""

    def mapped(self, address: int) -> int:
        """Return where the kernel sees an address of the own HostMemory."""
        ...

    def write(self, offset: int, data: Bytes) -> None:
        """Copy `data` into the own heap."""
        ...

    def fill(self, offset: int, size: int, byte: int) -> None:
        """Set `size` bytes of the own heap to `byte`."""
        ...

    def read(self, offset: int, size: int) -> Bytes:
        """Return a copy of a part of the own heap."""
        ...

    def prepare(self, params: Record) -> None:
        """Get ready to launch with `params`, which stay as they are until `run` returns."""
        ...

    def run(self) -> Launch:
        """Launch and wait for the end."""
        ...

    def sum_products(self, pairs: Iterable[tuple[Matrix, Matrix]], precision: Precision) -> Matrix:
        """Return the sum of a @ b over pairs (a, b), computed in `precision`, for the reference."""
        ...

    def keep(self, values: Matrix) -> Matrix:
        """Return a copy of `values` in the engine's memory, or themselves if that is this process's or full.

        It is freed with the last reference to it.
        """
        ...

    def view(self, offset: int, size: int, beside: Matrix) -> AbstractContextManager[Bytes]:
        """Enter a part of the own heap as an array, in the memory where `beside` is, which `keep` returned.

        What was computed from it in that memory is given back on leaving.
        """
        ...

    def details(self) -> dict[str, Any]:
        """Return what a record should say about the machine during the launches: clocks, power and so on."""
        ...

    def close(self) -> None:
        """Free the heap."""
        ...


class EngineMaker(Protocol):
    """How a platform makes engines."""

    def __call__(
        self, place: Place, point: Point, library: KernelLibrary, heap_bytes: int, host: HostMemory
    ) -> Engine: ...


class ThreadEngine:
    """Platform `host`: a block is a thread, the heap is memory that the ranks of the machine share."""

    def __init__(
        self, place: Place, point: Point, library: KernelLibrary, heap_bytes: int, host: HostMemory
    ) -> None:
        self.library = library
        self.gpu_network: GpuNetwork | None = None
        self._heap = SymmetricHeap(place.machine, place.machine_ranks, heap_bytes)
        self.node_heaps = self._heap.addresses(place.node_ranks)
        self._launch = 0

    def mapped(self, address: int) -> int:
        """Return `address`: threads see what the process sees."""
        return address

    def write(self, offset: int, data: Bytes) -> None:
        """Copy `data` into the own heap."""
        self._heap.bytes[offset : offset + len(data)] = data

    def fill(self, offset: int, size: int, byte: int) -> None:
        """Set `size` bytes of the own heap to `byte`."""
        self._heap.bytes[offset : offset + size] = byte

    def read(self, offset: int, size: int) -> Bytes:
        """Return a copy of a part of the own heap."""
        return self._heap.bytes[offset : offset + size].copy()

    def prepare(self, params: Record) -> None:
        """Create the threads, parked at a gate."""
        self._launch = self.library.prepare(params)

    def run(self) -> Launch:
        """Open the gate and wait until every thread has left."""
        return self.library.run(self._launch)

    def sum_products(self, pairs: Iterable[tuple[Matrix, Matrix]], precision: Precision) -> Matrix:
        """Return the sum of a @ b by NumPy."""
        return sum_products(pairs, precision)

    def keep(self, values: Matrix) -> Matrix:
        """Return `values` themselves."""
        return values

    @contextmanager
    def view(self, offset: int, size: int, beside: Matrix) -> Iterator[Bytes]:
        """Enter a part of the own heap, in place."""
        yield self._heap.bytes[offset : offset + size]

    def details(self) -> dict[str, Any]:
        """Return nothing: processor clocks are not read."""
        return {}

    def close(self) -> None:
        """Free the heap. Collective."""
        self._heap.free()


def engine_for(platform: str) -> EngineMaker:
    """Return how `platform` makes engines; CuPy is imported only where it is needed."""
    if platform == "host":
        return ThreadEngine
    from mkbench.platforms.cuda_engine import CudaEngine

    return CudaEngine
