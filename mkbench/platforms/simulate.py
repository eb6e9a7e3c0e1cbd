"""One simulated run: the kernel's own code under the discrete-event scheduler of kernels/sim."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkbench.build.layout import Layout
from mkbench.build.library import Library
from mkbench.core.bf16 import to_bf16
from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.plan import Point
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import metadata_inputs, metadata_outputs
from mkbench.dist.verify import POISON, POISON_BYTE
from mkbench.platforms.launch_parameters import HeapLayout, Record, launch_parameters

JITTER = 0.002
"""Relative spread of simulated costs: what one seed differs by from another."""

STATUSES = ("ok", "deadlock", "protocol_error", "time_limit")


@lru_cache(maxsize=4)
def load(path: Path) -> SimLibrary:
    """Load a library that `mkbench.build.cpu` built, once."""
    return SimLibrary(path)


class SimLibrary(Library):
    """A kernel's shared object with the simulator's entry points."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        handle = ctypes.c_void_p
        self.create = self.function("mk_sim_create", handle, handle, handle, ctypes.c_uint64)
        self.heap = self.function("mk_sim_heap", handle, handle, ctypes.c_int32)
        self.run = self.function("mk_sim_run", None, handle, handle)
        self.latency_ns = self.function("mk_sim_latency_ns", ctypes.c_double, handle, ctypes.c_int32)
        self.report = self.function("mk_sim_report", ctypes.c_char_p, handle)
        self.destroy = self.function("mk_sim_destroy", None, handle)


class Simulation:
    """All ranks of one point, ready to run once.

    `launches` run back to back, each with the next epoch. `stress` takes events in random order instead of
    the order of time. `trace_capacity` events a block are recorded. Raises EnvironmentProblem if the heaps do
    not fit into the address space. Free it with close(), or use it in a with statement.
    """

    def __init__(
        self,
        library: SimLibrary,
        point: Point,
        cluster: ClusterProfile,
        *,
        seed: int,
        launches: int = 1,
        stress: bool = False,
        trace_capacity: int = 0,
    ) -> None:
        self.point = point
        self._library = library
        ranks = [
            launch_parameters(library.handle, library.layout, point, rank, trace_capacity)
            for rank in range(point.ranks)
        ]
        self.heap: HeapLayout = ranks[0][1]
        # Not np.array(list): NumPy would pack the struct and drop its padding.
        self._params: Record = np.empty(point.ranks, library.layout.dtype("Params"))
        for rank, (record, _) in enumerate(ranks):
            self._params[rank] = record
        config = sim_config(library.layout, point, cluster, self.heap, seed, launches, stress)
        self._handle = library.create(
            config.ctypes.data, self._params.ctypes.data, self._params.dtype.itemsize
        )
        if not self._handle:
            size = self.heap.bytes + self.heap.network_bytes
            raise EnvironmentProblem(
                f"{point.ranks} heaps of {size} bytes do not fit into the address space",
                hint="choose a smaller size",
            )
        self.launches = launches
        self._write_metadata()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free heaps and stacks; views into them must not be used any more."""
        self._library.destroy(self._handle)

    def view(self, rank: int, offset: int, count: int, dtype: Any) -> NDArray[Any]:
        """Return `count` elements of a rank's heap from byte `offset`, in place."""
        if count == 0:
            return np.empty(0, dtype)
        base = self._library.heap(self._handle, rank)
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(base + offset), dtype=dtype, count=count)

    def fill_inputs(self) -> None:
        """Write every rank's inputs and poison its output. Needs data on."""
        point, kernel = self.point, workload(self.point.kernel)
        pitches = kernel.pitches(point.shape)
        for rank in range(point.ranks):
            inputs = kernel.inputs(point.shape, rank, point.ranks, point.seed, "exact")
            for name, values in inputs.items():
                rows, columns = values.shape
                self._matrix(rank, name, rows, pitches[name])[:, :columns] = to_bf16(values)
            self._output(rank).fill(POISON)
            for name, values in metadata_outputs(kernel, point.shape, rank, point.ranks).items():
                self.metadata(rank, name, values.nbytes).fill(POISON_BYTE)

    def _write_metadata(self) -> None:
        point = self.point
        for rank in range(point.ranks):
            metadata = metadata_inputs(workload(point.kernel), point.shape, rank, point.ranks)
            for name, values in metadata.items():
                self.view(rank, self.heap.offsets[name], values.size, values.dtype)[:] = values.reshape(-1)

    def metadata(self, rank: int, name: str, size: int) -> NDArray[np.uint8]:
        """Return `size` bytes of buffer `name` of a rank, in place."""
        return self.view(rank, self.heap.offsets[name], size, np.uint8)

    def output(self, rank: int) -> NDArray[np.uint16]:
        """Return what a rank ended up with as bf16 bits, rows x columns, in place."""
        end = workload(self.point.kernel).output(self.point.shape, rank, self.point.ranks)
        return self._output(rank)[:, : end.columns]

    def _output(self, rank: int) -> NDArray[np.uint16]:
        end = workload(self.point.kernel).output(self.point.shape, rank, self.point.ranks)
        return self._matrix(rank, "out", end.rows, end.pitch)

    def _matrix(self, rank: int, buffer: str, rows: int, stride: int) -> NDArray[np.uint16]:
        return self.view(rank, self.heap.offsets[buffer], rows * stride, np.uint16).reshape(rows, stride)

    def run(self) -> Result:
        """Run to the end, or until nothing can run any more."""
        record = self._library.layout.new("SimResult")
        self._library.run(self._handle, record.ctypes.data)
        latency = self._library.latency_ns
        return Result(
            status=STATUSES[int(record["status"])],
            report=self._library.report(self._handle).decode(),
            latencies_us=tuple(latency(self._handle, i) / 1e3 for i in range(self.launches)),
            payload_bytes=int(record["payload_bytes"]),
            commands=int(record["commands"]),
            events=int(record["events"]),
        )

    def history(self, rank: int = 0) -> Record:
        """Return the rows that the controller of `rank` wrote: time_ns, target, done and block counts."""
        dtype = self._library.layout.dtype("HistoryRow")
        capacity = int(self._params["history_capacity"][rank])
        rows = self.view(rank, self.heap.offsets["history"], capacity, dtype)
        written: Record = rows[rows["used"] == 1].copy()
        return written

    def trace(self, rank: int) -> list[Record]:
        """Return the events of each block of `rank`: begin_ns, end_ns, role, task."""
        dtype = self._library.layout.dtype("TraceEvent")
        capacity = int(self._params["trace_capacity"][rank])
        rows = self.view(rank, self.heap.offsets["trace"], self.point.blocks * (capacity + 1), dtype)
        blocks = rows.reshape(self.point.blocks, capacity + 1)
        return [block[1 : 1 + int(block["task"][0])].copy() for block in blocks]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to. Latencies are of each launch, the slowest rank's."""

    status: str
    report: str
    latencies_us: tuple[float, ...]
    payload_bytes: int
    commands: int
    events: int


def sim_config(
    layout: Layout,
    point: Point,
    cluster: ClusterProfile,
    heap: HeapLayout,
    seed: int,
    launches: int,
    stress: bool,
) -> Record:
    """Return the simulator's costs, from the cluster's hardware and network.

    Raises UsageError for a missing rate.
    """
    hardware, network = cluster.hardware, cluster.network
    if point.nodes > 1 and network is None:
        raise UsageError(
            f"cluster {cluster.name!r} describes no network between nodes",
            hint="choose a cluster of several nodes",
        )
    rates = network.gbps_per_gpu.value if network else 1.0
    slow_from, slow_factor = _network_slow(point)
    return layout.new(
        "SimConfig",
        seed=seed,
        heap_bytes=heap.bytes + heap.network_bytes,
        control_end=heap.control_end,
        kept_end=heap.kept_end,
        network_offset=heap.bytes,
        network_control=heap.network_control_bytes,
        network_kept=heap.network_kept,
        time_limit_ns=int(point.deadline_s * 1e9),
        gemm_flops=hardware.rate("gemm_tflops") * 1e3 / hardware.blocks,
        tile_overhead_ns=hardware.rate("tile_overhead_ns"),
        kernel_start_ns=hardware.rate("kernel_start_ns"),
        copy_bytes=hardware.rate("sm_copy_gbps"),
        hbm_bytes=hardware.rate("hbm_tbps") * 1e3,
        nvlink_bytes=hardware.rate("nvlink_gbps"),
        nvlink_latency_ns=hardware.rate("nvlink_latency_ns"),
        flag_gpu_ns=hardware.rate("flag_gpu_ns"),
        flag_system_ns=hardware.rate("flag_system_ns"),
        poll_ns=hardware.rate("poll_ns"),
        role_switch_ns=hardware.rate("role_switch_ns"),
        proxy_command_ns=hardware.rate("proxy_command_ns"),
        network_bytes=rates,
        network_latency_ns=network.latency_ns.value if network else 0.0,
        network_message_ns=network.message_ns.value if network else 0.0,
        jitter=JITTER,
        slow_from_ns=slow_from,
        slow_factor=slow_factor,
        launches=launches,
        payload=int(point.data),
        stress=int(stress),
    )


def _network_slow(point: Point) -> tuple[float, float]:
    for fault in point.faults:
        if fault.kind != "network_slow":
            raise UsageError(
                f"the simulator knows no fault {fault.kind!r}",
                hint="it knows network_slow, e.g. network_slow@500usx2",
            )
        return fault.at_us * 1e3, fault.factor
    return float("inf"), 1.0
