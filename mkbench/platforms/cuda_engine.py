"""A rank's GPU: its context, its heap and its launches."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cupy
import numpy as np
from cupy.cuda import driver, runtime

from mkbench.build.nvrtc import compile_cubin, cubin_file
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.point import Point
from mkbench.core.workloads.base import Matrix, Precision
from mkbench.dist.engine import Bytes, GpuNetwork
from mkbench.dist.errors import OutOfDeviceMemory
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Launch, Record
from mkbench.dist.place import Place
from mkbench.dist.symmetric import ALIGNMENT, SymmetricHeap, round_up
from mkbench.dist.verify import bands
from mkbench.platforms.gpu_state import GpuState
from mkbench.platforms.green_context import GreenContext, require_mps
from mkbench.platforms.residency import KERNEL as AUDIT
from mkbench.platforms.residency import Grid, audit, require_all

THREADS = 256
"""Threads of a block: kThreads of the device library."""

_SHARED_BYTES = "mk_dynamic_shared_bytes"
_PORTABLE_AND_MAPPED = 3
_BARRIER_DEADLINE_NS = 2_000_000_000
_WORD = 8
_PRODUCT_BAND = 1 << 26
"""Elements of a product that are computed at once."""


class CudaEngine:
    """Platform `cuda`: a block is a CUDA block, the heap is GPU memory that the node's ranks map by CUDA IPC.

    Nothing is allocated, freed or mapped while a kernel runs. Raises EnvironmentProblem if the grid cannot be
    resident or CUDA refuses, OutOfDeviceMemory on all ranks if the heap does not fit on one.
    """

    def __init__(
        self, place: Place, point: Point, library: KernelLibrary, heap_bytes: int, host: HostMemory
    ) -> None:
        self.library = library
        self._place, self._point = place, point
        gpu = _select_gpu(place.machine.rank, point.ranks_per_gpu)
        self._stream = gpu.stream
        self._state = GpuState(gpu.device)
        self._kernel, grid = _load(point.kernel, point.blocks)
        _require_residency(place, grid, gpu.stream)
        self._shared_bytes = grid.shared_bytes
        network = round_up(heap_bytes, ALIGNMENT)
        in_gpu = point.network_memory == "device"
        self._heap = _allocate(place, network + host.network_bytes if in_gpu else heap_bytes)
        rails = place.rail_peers if in_gpu and point.transport == "shm" else ()
        heaps = _map_heaps(place, self._heap, {*place.node_ranks, *rails})
        self._opened = [address for rank, address in heaps.items() if rank != place.rank]
        self.node_heaps = [heaps[rank] for rank in place.node_ranks]
        self.gpu_network: GpuNetwork | None = None
        if in_gpu:
            peers = {rank: heaps[rank] + network for rank in rails}
            self.gpu_network = GpuNetwork(driver.ctxGetCurrent(), self._heap + network, peers)
        self._host, self._host_base = host, host.base(place.rank)
        self._host_mapped = _register(self._host_base, host.size)
        self._barrier = _RankBarrier(place)
        self._begin, self._end = cupy.cuda.Event(), cupy.cuda.Event()
        self._params: Record | None = None

    def mapped(self, address: int) -> int:
        """Return where the GPU sees an address of the own HostMemory."""
        return address - self._host_base + self._host_mapped

    def write(self, offset: int, data: Bytes) -> None:
        """Copy `data` to the own heap."""
        runtime.memcpy(self._heap + offset, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice)

    def fill(self, offset: int, size: int, byte: int) -> None:
        """Set `size` bytes of the own heap to `byte`."""
        runtime.memset(self._heap + offset, byte, size)

    def read(self, offset: int, size: int) -> Bytes:
        """Return a copy of a part of the own heap."""
        data = np.empty(size, dtype=np.uint8)
        runtime.memcpy(data.ctypes.data, self._heap + offset, size, runtime.memcpyDeviceToHost)
        return data

    def prepare(self, params: Record) -> None:
        """Keep `params` for the launch; what was written before is on the GPU."""
        self._params = params
        runtime.deviceSynchronize()

    def run(self) -> Launch:
        """Meet the other ranks on the GPU, launch, wait. CUDA events around the launch give the time."""
        assert self._params is not None
        start_ns = time.monotonic_ns()
        with self._stream:
            self._barrier.meet()
            self._begin.record()
            self._kernel(
                (self._point.blocks,), (THREADS,), (self._params[()],), shared_mem=self._shared_bytes
            )
            self._end.record()
        self._stream.synchronize()
        self._state.sample()
        elapsed_ns = round(cupy.cuda.get_elapsed_time(self._begin, self._end) * 1e6)
        return Launch(start_ns, start_ns + elapsed_ns, self._abort())

    def _abort(self) -> dict[str, int] | None:
        record = self.library.record_at("AbortRecord", self._host.abort_record)
        return {name: int(record[name]) for name in record.dtype.names or ()} if record["set"] else None

    def sum_products(self, pairs: Iterable[tuple[Matrix, Matrix]], precision: Precision) -> Matrix:
        """Return the sum of a @ b by cuBLAS: an arithmetic other than the kernel's."""
        with _scratch_memory():
            return _sum_products(pairs, precision)

    def keep(self, values: Matrix) -> Matrix:
        """Return a copy of `values` in GPU memory, or themselves if those of all ranks do not fit well."""
        free, _ = runtime.memGetInfo()
        # The next sum of products has to fit beside them.
        if values.nbytes * self._point.ranks_per_gpu > free // 4:
            return values
        # Not from CuPy's pool, which would not give it back for the next heap.
        memory = cupy.cuda.MemoryPointer(cupy.cuda.Memory(values.nbytes), 0)
        copy = cupy.ndarray(values.shape, values.dtype, memory)
        copy.set(values)
        kept: Matrix = copy
        return kept

    @contextmanager
    def view(self, offset: int, size: int, beside: Matrix) -> Iterator[Bytes]:
        """Enter a part of the own heap in place, or a copy of it in this process's memory."""
        if isinstance(beside, np.ndarray):
            yield self.read(offset, size)
            return
        memory = cupy.cuda.UnownedMemory(self._heap + offset, size, self)
        with _scratch_memory():
            yield cupy.ndarray((size,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def details(self) -> dict[str, Any]:
        """Return clocks, power and reasons for throttling during the launches, if NVML tells."""
        return self._state.summary()

    def close(self) -> None:
        """Free everything. Collective."""
        runtime.deviceSynchronize()
        self._place.world.Barrier()
        for pointer in self._opened:
            runtime.ipcCloseMemHandle(pointer)
        self._place.world.Barrier()
        runtime.free(self._heap)
        runtime.hostUnregister(self._host_base)
        self._barrier.free()


@contextmanager
def _scratch_memory() -> Iterator[None]:
    """Give back to the driver what CuPy allocates meanwhile, or heaps could not have it."""
    try:
        yield
    finally:
        cupy.get_default_memory_pool().free_all_blocks()
        # Copies to the GPU pass through it.
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def _sum_products(pairs: Iterable[tuple[Matrix, Matrix]], precision: Precision) -> Matrix:
    total: Any = None
    for a, b in pairs:
        left, right = (cupy.asarray(matrix).astype(precision, copy=False) for matrix in (a, b))
        if total is None:
            total = cupy.zeros((len(a), b.shape[1]), precision)
        # By bands: the product needs no second matrix of the result's size.
        for band in bands(len(a), b.shape[1], _PRODUCT_BAND):
            part = total[band]
            part += left[band] @ right
    result: Matrix = cupy.asnumpy(total.astype(np.float32, copy=False))
    return result


class _RankBarrier:
    """The meeting of all ranks of the machine before a launch."""

    def __init__(self, place: Place) -> None:
        self._ranks, self._rank, self._meetings = place.machine.size, place.machine.rank, 0
        self._heap = SymmetricHeap(place.machine, place.machine_ranks, self._ranks * _WORD)
        self._base = self._heap.address(place.machine_ranks[0])
        self._words = _register(self._base, self._heap.size)
        self._kernel = cupy.RawModule(path=str(cubin_file("cuda/rank_barrier", _arch()))).get_function(
            "rank_barrier"
        )

    def meet(self) -> None:
        """Launch the barrier on the current stream."""
        self._meetings += 1
        arguments = (
            np.uint64(self._words),
            np.uint32(self._ranks),
            np.uint32(self._rank),
            np.uint64(self._meetings),
            np.uint64(_BARRIER_DEADLINE_NS),
        )
        self._kernel((1,), (32,), arguments)

    def free(self) -> None:
        """Give the words back. Collective."""
        runtime.hostUnregister(self._base)
        self._heap.free()


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A device, and the stream of this rank's kernels on it: on all SMs, or on those of its group."""

    device: int
    stream: Any


@lru_cache(maxsize=1)
def _select_gpu(machine_rank: int, ranks_per_gpu: int) -> _Gpu:
    """Take this rank's share of the machine's GPUs, once for the life of the process."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    device, group = divmod(machine_rank, ranks_per_gpu)
    try:
        cupy.cuda.Device(device).use()
        runtime.free(0)  # makes the context
    except runtime.CUDARuntimeError as error:
        raise EnvironmentProblem(
            f"GPU {device} cannot be used: {error}",
            "look with `nvidia-smi` whether it is there, and in compute mode Default",
        ) from error
    if ranks_per_gpu == 1:
        return _Gpu(device, cupy.cuda.Stream(non_blocking=True))
    require_mps(device)
    return _Gpu(device, cupy.cuda.ExternalStream(GreenContext.create(device, ranks_per_gpu, group).stream))


@lru_cache(maxsize=1)
def _arch() -> str:
    major, minor = divmod(int(cupy.cuda.Device().compute_capability), 10)
    # The instructions of one architecture alone, such as wgmma, need its own target.
    return f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}"


@lru_cache
def _load(kernel: str, blocks: int) -> tuple[Any, Grid]:
    """Load the kernel and say how it is launched, refusing a grid that does not fit.

    A cooperative launch of more blocks than fit would be made smaller without a word.
    """
    module = cupy.RawModule(path=str(cubin_file(kernel, _arch())))
    function = module.get_function(kernel)
    shared = np.empty(1, dtype=np.int32)
    address = module.get_global(_SHARED_BYTES).ptr
    runtime.memcpy(shared.ctypes.data, address, shared.nbytes, runtime.memcpyDeviceToHost)
    grid = Grid(blocks, THREADS, int(shared[0]))
    function.max_dynamic_shared_size_bytes = grid.shared_bytes
    resident = driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function.kernel.ptr, grid.threads, grid.shared_bytes
    )
    if resident < 1:
        raise EnvironmentProblem(
            f"a block of {kernel} with {grid.shared_bytes} bytes of shared memory does not fit on an SM",
            "use a GPU with more shared memory",
        )
    return function, grid


_audited: set[tuple[int, Grid]] = set()


def _require_residency(place: Place, grid: Grid, stream: Any) -> None:
    """Have all blocks of all ranks meet once for each grid. Collective."""
    key = (place.topology.ranks_per_node, grid)
    if key in _audited:
        return
    ranks = place.machine_ranks
    cubin = compile_cubin(AUDIT, _arch())
    require_all(audit(place.machine, ranks, cubin, grid, stream=stream.ptr), ranks)
    _audited.add(key)


def _allocate(place: Place, size: int) -> int:
    pointer, error = 0, None
    try:
        pointer = runtime.malloc(size)
        runtime.memset(pointer, 0, size)
    except runtime.CUDARuntimeError as problem:
        error = f"rank {place.rank}: {size} bytes of GPU memory: {problem}"
    failed = next(filter(None, place.world.allgather(error)), None)
    if failed is not None:
        if pointer:
            runtime.free(pointer)
        raise OutOfDeviceMemory(failed, "choose a smaller size, or fewer ranks a GPU")
    return int(pointer)


def _map_heaps(place: Place, heap: int, wanted: Collection[int]) -> dict[int, int]:
    """Return the address of each wanted rank's heap as mapped here, by world rank. Collective."""
    handles = place.world.allgather(runtime.ipcGetMemHandle(heap))
    return {
        rank: heap if rank == place.rank else int(runtime.ipcOpenMemHandle(handles[rank]))
        for rank in sorted(wanted)
    }


def _register(address: int, size: int) -> int:
    """Map host memory and return its address on the GPU."""
    runtime.hostRegister(address, size, _PORTABLE_AND_MAPPED)
    return int(runtime.pointerGetAttributes(address).devicePointer)
