"""Before the first launch: are all blocks of all ranks of this machine resident at the same time?

A persistent kernel waits for blocks of other ranks. One that does not get an SM is waited for until the
deadline, and what failed then looks like a fault of the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

from mkbench.core.errors import EnvironmentProblem

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

#: The kernel for `mkbench.build.nvrtc.compile_cubin`.
KERNEL = "cuda/residency_audit"
_WORD = 8
_HOST_REGISTER_PORTABLE_AND_MAPPED = 3


@dataclass(frozen=True, slots=True)
class Grid:
    """How the real kernel is launched: blocks, threads and bytes of dynamic shared memory of each block."""

    blocks: int
    threads: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Attendance:
    """Of a rank's `blocks`, those that came before any block left, and those that saw all others there."""

    blocks: int
    resident: int
    met: int


def audit(
    machine: Intracomm,
    ranks: Sequence[int],
    cubin: bytes,
    grid: Grid,
    *,
    stream: int = 0,
    deadline_ns: int = 3_000_000_000,
) -> list[Attendance]:
    """Launch `grid` on all ranks of the machine at once, each on its `stream`; who came, by rank.

    Collective over `machine`; `ranks` are its world ranks, in its order; `cubin` is KERNEL's; `stream` is a
    CUstream, a green context's for one. It takes at most `deadline_ns` nanoseconds and a launch. Raises
    EnvironmentProblem if CUDA refuses on this rank; the others then wait for it and have to be ended.
    """
    from mkbench.dist.symmetric import SymmetricHeap

    heap = SymmetricHeap(machine, ranks, (len(ranks) + 1) * _WORD)
    kernel = _AuditKernel(cubin, grid, stream)
    with _Mapped(heap.address(ranks[0]), heap.size) as words:
        # All are ready, so that the deadlines begin together.
        machine.Barrier()
        mine = kernel.launch(words, len(ranks), machine.rank, deadline_ns)
        # Nobody takes the memory away while another one's blocks still look at it.
        machine.Barrier()
    heap.free()
    gathered: list[Attendance] = machine.allgather(mine)
    return gathered


def require_all(attendances: Sequence[Attendance], ranks: Sequence[int]) -> None:
    """Raise EnvironmentProblem, naming the first rank that lacks blocks, unless all blocks met."""
    for rank, found in zip(ranks, attendances, strict=True):
        if found.resident < found.blocks:
            raise EnvironmentProblem(
                f"rank {rank}: {found.resident} of {found.blocks} blocks became resident",
                "another program uses the GPU (see nvidia-smi), or put fewer ranks on it",
            )
    for rank, found in zip(ranks, attendances, strict=True):
        if found.met < found.blocks:
            raise EnvironmentProblem(
                f"rank {rank}: {found.met} of {found.blocks} blocks saw the others before the deadline",
                "another program uses the GPU (see nvidia-smi): try again without it",
            )


class _AuditKernel:
    """The loaded kernel with its counters: nothing is allocated or loaded once it is launched."""

    def __init__(self, cubin: bytes, grid: Grid, stream: int) -> None:
        import cupy

        self._grid = grid
        self._stream = cupy.cuda.ExternalStream(stream) if stream else cupy.cuda.Stream.null
        try:
            with NamedTemporaryFile(suffix=".cubin") as file:
                file.write(cubin)
                file.flush()
                self._function: Any = cupy.RawModule(path=file.name).get_function("residency_audit")
                # This loads it.
                self._function.max_dynamic_shared_size_bytes = grid.shared_bytes
            self._counts = cupy.zeros(2, dtype=np.uint32)
            cupy.cuda.get_current_stream().synchronize()
        except _cuda_errors() as error:
            raise EnvironmentProblem(f"the residency audit cannot be loaded: {error}") from error

    def launch(self, words: int, ranks: int, rank: int, deadline_ns: int) -> Attendance:
        """Hold the meeting at `words`, an address on the device: a word for each rank, then one more."""
        grid = self._grid
        arguments = (
            np.uint64(words),
            np.uint64(words + ranks * _WORD),
            np.uint32(ranks),
            np.uint32(rank),
            np.uint64(1),
            np.uint64(deadline_ns),
            self._counts,
        )
        try:
            with self._stream:
                self._function((grid.blocks,), (grid.threads,), arguments, shared_mem=grid.shared_bytes)
            self._stream.synchronize()
            resident, met = (int(count) for count in self._counts.get())
        except _cuda_errors() as error:
            raise EnvironmentProblem(
                f"{grid.blocks} blocks of {grid.threads} threads with {grid.shared_bytes} bytes of shared "
                f"memory cannot be launched: {error}"
            ) from error
        return Attendance(grid.blocks, resident, met)


def _cuda_errors() -> tuple[type[Exception], ...]:
    from cupy.cuda import driver, runtime

    return driver.CUDADriverError, runtime.CUDARuntimeError


class _Mapped:
    """Host memory that the GPU sees; entering gives its address there."""

    def __init__(self, address: int, size: int) -> None:
        self._address, self._size = address, size

    def __enter__(self) -> int:
        from cupy.cuda import runtime

        try:
            runtime.hostRegister(self._address, self._size, _HOST_REGISTER_PORTABLE_AND_MAPPED)
            return int(runtime.pointerGetAttributes(self._address).devicePointer)
        except runtime.CUDARuntimeError as error:
            raise EnvironmentProblem(f"the GPU cannot map the memory that ranks share: {error}") from error

    def __exit__(self, *error: object) -> None:
        from cupy.cuda import runtime

        runtime.hostUnregister(self._address)
