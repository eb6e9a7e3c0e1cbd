"""What runs a rank's kernel: threads of this process, or a GPU. The rest of a rank's work is the same for both."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mkbench.core.point import Point
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Launch, Record
from mkbench.dist.place import Place
from mkbench.dist.symmetric import SymmetricHeap

Bytes = NDArray[np.uint8]


class Engine(Protocol):
    """The heap of one rank and its launches, for one point.

    Collective over all ranks to create, to launch and to close.
    """

    library: KernelLibrary
    node_heaps: list[int]
    """Address of the heap of each rank of the node, as this rank's kernel sees it."""

    def mapped(self, address: int) -> int:
        """Return where the kernel sees an address of the own HostMemory."""
        ...

    def write(self, offset: int, data: Bytes) -> None:
        """Copy `data` into the own heap."""
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

    def multiply(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Return a @ b in the precision of its arguments, for the reference."""
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
        self._heap = SymmetricHeap(place.machine, place.machine_ranks, heap_bytes)
        self.node_heaps = self._heap.addresses(place.node_ranks)
        self._launch = 0

    def mapped(self, address: int) -> int:
        """Return `address`: threads see what the process sees."""
        return address

    def write(self, offset: int, data: Bytes) -> None:
        """Copy `data` into the own heap."""
        self._heap.bytes[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> Bytes:
        """Return a copy of a part of the own heap."""
        return self._heap.bytes[offset : offset + size].copy()

    def prepare(self, params: Record) -> None:
        """Create the threads, parked at a gate."""
        self._launch = self.library.prepare(params)

    def run(self) -> Launch:
        """Open the gate and wait until every thread has left."""
        return self.library.run(self._launch)

    def multiply(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Return a @ b by NumPy."""
        product: NDArray[Any] = a @ b
        return product

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
