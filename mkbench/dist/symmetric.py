"""The symmetric heap: equally large memory of every rank, mapped by all ranks of the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mkbench.core.errors import EnvironmentProblem

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

#: Segments are whole pages, so that every rank's heap begins at a page.
PAGE = 4096
#: The alignment that kernels rely on.
ALIGNMENT = 128


class SymmetricHeap:
    """One rank's heap of `size` bytes and the addresses at which it sees the heaps of the other ranks of its machine.

    Collective over `machine`, the communicator of the ranks that share memory, to create and to free.
    Only the ranks of the own node may be given to a kernel; the others are there for the transport `shm`.
    """

    def __init__(self, machine: Intracomm, world_ranks: Sequence[int], size: int) -> None:
        from mpi4py import MPI

        self.size = size
        try:
            self._window = MPI.Win.Allocate_shared(round_up(size, PAGE), 1, comm=machine)
        except MPI.Exception as error:
            raise EnvironmentProblem(
                f"cannot share {size} bytes per rank between {machine.size} ranks: {error}",
                "make /dev/shm larger (in a container: --shm-size), or choose a smaller size",
            ) from error
        self._addresses = {
            rank: int(self._window.Shared_query(index)[0].address) for index, rank in enumerate(world_ranks)
        }
        misaligned = [rank for rank, address in self._addresses.items() if address % ALIGNMENT]
        if misaligned:
            raise EnvironmentProblem(f"MPI gave misaligned memory to ranks {misaligned}", "use another MPI")
        own = (ctypes.c_uint8 * size).from_address(self._addresses[world_ranks[machine.rank]])
        self.bytes: NDArray[np.uint8] = np.ctypeslib.as_array(own)
        self.bytes[:] = 0
        machine.Barrier()

    def address(self, rank: int) -> int:
        """Address, in this process, of the heap of world rank `rank`, which must be on this machine."""
        return self._addresses[rank]

    def addresses(self, ranks: Sequence[int]) -> list[int]:
        return [self._addresses[rank] for rank in ranks]

    def free(self) -> None:
        """Give the memory back. Collective; views of `bytes` must not be used afterwards."""
        del self.bytes
        self._window.Free()


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
