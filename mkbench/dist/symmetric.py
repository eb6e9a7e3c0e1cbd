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

#: Segments are whole pages, with one to spare for alignment.
PAGE = 4096
#: The alignment that kernels rely on.
ALIGNMENT = 128


class SymmetricHeap:
    """One rank's heap of `size` bytes, and where it sees the heaps of the other ranks of its machine.

    Collective over `machine`, the communicator of the ranks that share memory, to create and to free.
    Only the ranks of the own node may be given to a kernel; the others are there for the transport `shm`.
    """

    def __init__(self, machine: Intracomm, world_ranks: Sequence[int], size: int) -> None:
        from mpi4py import MPI

        self.size = size
        try:
            self._window = MPI.Win.Allocate_shared(round_up(size, PAGE) + PAGE, 1, comm=machine)
        except MPI.Exception as error:
            raise EnvironmentProblem(
                f"cannot share {size} bytes per rank between {machine.size} ranks: {error}",
                "make /dev/shm larger (in a container: --shm-size), or choose a smaller size",
            ) from error
        bases = [int(self._window.Shared_query(index)[0].address) for index in range(machine.size)]
        # MPI promises no alignment (a lone rank gets malloc's): each owner says where its heap begins.
        shifts: list[int] = machine.allgather(-bases[machine.rank] % ALIGNMENT)
        starts = [base + shift for base, shift in zip(bases, shifts, strict=True)]
        if any(start % ALIGNMENT for start in starts):
            raise EnvironmentProblem(
                "MPI maps shared memory at addresses that are not aligned alike", "use another MPI"
            )
        self._addresses = dict(zip(world_ranks, starts, strict=True))
        own = (ctypes.c_uint8 * size).from_address(starts[machine.rank])
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
