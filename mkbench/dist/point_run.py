"""One point on one rank: its heap, inputs, proxy and launches. All methods are collective over all ranks."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import to_bf16
from mkbench.core.errors import UsageError
from mkbench.core.measurement import Check
from mkbench.core.pace import fs_per_byte
from mkbench.core.point import Point
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Family, Output, Shape, metadata_inputs, metadata_outputs
from mkbench.dist import abort, verify
from mkbench.dist.engine import Bytes, EngineMaker
from mkbench.dist.errors import OutOfDeviceMemory
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Launch
from mkbench.dist.place import Place
from mkbench.dist.proxy import Proxy, Traffic
from mkbench.dist.references import References
from mkbench.platforms.launch_parameters import launch_parameters

#: At least so long may a phase take that loads, connects or computes outside of the kernel.
_SETUP_S = 30.0
#: Elements of inputs that any machine makes in a second.
_INPUTS_PER_S = 1e7
#: The kernel's own deadline comes first, since its report says more than a heartbeat that stands still; and
#: once one rank has given up, the others follow within this time.
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Round:
    """One launch on all ranks: the launches by rank, and what proxies said that failed."""

    launches: Sequence[Launch]
    proxy_errors: Sequence[str | None]

    @property
    def slowest_us(self) -> float:
        """The time of the rank that took longest; it includes waiting for ranks that started later."""
        return max(launch.end_ns - launch.start_ns for launch in self.launches) / 1e3

    @property
    def skew_us(self) -> float:
        """How far apart the ranks started, by the clock that the processes of one machine share."""
        starts = [launch.start_ns for launch in self.launches]
        return (max(starts) - min(starts)) / 1e3

    @property
    def has_hung(self) -> bool:
        return any(launch.abort is not None for launch in self.launches)

    def why(self, library: KernelLibrary) -> str:
        """Why it was given up. A proxy that failed is the cause of waits that passed their deadline."""
        failed = next((f"rank {r}: {error}" for r, error in enumerate(self.proxy_errors) if error), None)
        gave_up = abort.culprit([launch.abort for launch in self.launches])
        waits = abort.describe(*gave_up, library.roles, library.layout.flags) if gave_up else None
        return "; ".join(filter(None, (failed, waits)))


class PointRun:
    """A point that is set up on this rank and can be launched."""

    def __init__(
        self, place: Place, point: Point, beats: HeartbeatFile, library: KernelLibrary, engine: EngineMaker
    ) -> None:
        self._place, self.point, self._beats, self.library = place, point, beats, library
        self._enter("connect", self._setup_s)
        _references.evict_others(point)
        self._params, self._layout = launch_parameters(library.handle, library.layout, point, place.rank)
        self._host = HostMemory(place, self._layout, library.layout)
        try:
            self._engine = engine(place, point, library, self._layout.bytes, self._host)
        except OutOfDeviceMemory:
            self._host.free()
            raise
        params, mapped = self._params, self._engine.mapped
        params["heap"][: len(place.node_ranks)] = self._engine.node_heaps
        gpu = self._engine.gpu_network
        params["network"] = gpu.address if gpu is not None else mapped(self._host.network(place.rank))
        params["abort_record"] = mapped(self._host.abort_record)
        params["ring_slots"] = mapped(self._host.ring_slots)
        params["ring_tails"] = mapped(self._host.ring_tails)
        params["epoch"] = 0
        self._proxy = self._start_proxy()
        self.hosts = sorted(set(place.world.allgather(socket.gethostname())))

    def fill(self, seed: int, family: Family) -> None:
        """Write this rank's inputs of a seed and family, which the next check goes by."""
        self._enter("inputs", self._making_s(1))
        self._seed, self._family, point = seed, family, self.point
        inputs = _inputs(point.kernel, point.shape, self._place.rank, point.ranks, seed, family)
        for name, values in inputs.items():
            self._engine.write(self._layout.offsets[name], values)

    def poison(self) -> None:
        """Make every element of the output wrong, so that one which the next launch leaves out is found."""
        self._engine.fill(self._layout.offsets["out"], self._output.bytes, verify.POISON_BYTE)
        for name, values in self._metadata_outputs.items():
            self._engine.fill(self._layout.offsets[name], values.nbytes, verify.POISON_BYTE)
        self._engine.fill(*self._history, 0)

    def launch(self, index: int) -> Round:
        """Run the kernel once on all ranks with an epoch of its own. `index` only names the phase."""
        patience = self.point.deadline_s + _GRACE_S
        self._enter(f"prepare {index}", patience)
        self._params["epoch"] += 1
        self._engine.prepare(self._params)
        # The phase ends before the others are met: who waits for a rank is ahead of it.
        self._enter(f"ready {index}", patience)
        self._place.world.Barrier()
        self._enter(f"launch {index}", patience)
        launch = self._engine.run()
        if launch.abort is not None:
            self._host.tell_to_give_up(abort.ELSEWHERE)
        self._enter(f"gather {index}", patience if launch.abort is None else _GRACE_S)
        gathered = self._place.world.allgather((launch, self._proxy.error() if self._proxy else None))
        return Round([launch for launch, _ in gathered], [error for _, error in gathered])

    def verify(self) -> Check:
        """Compare every element of every rank's output, and the metadata beside it, with what it must be."""
        point, shape, end = self.point, self.point.shape, self._output
        # The reference may have to be made, and for it the inputs of all ranks.
        self._enter("verify", self._making_s(point.ranks))
        reference = _references.get(self._place.world, self._engine, point, self._seed, self._family)
        kernel = workload(point.kernel, point.reduction)
        tolerance = None if self._family == "exact" else kernel.tolerance(shape, point.ranks)
        with self._engine.view(self._layout.offsets["out"], end.bytes, reference) as out:
            found = out.view(np.uint16).reshape(end.rows, end.pitch)[:, : end.columns]
            comparisons = [verify.compare(self._place.rank, found, reference, tolerance)]
        for name, values in self._metadata_outputs.items():
            written = self._engine.read(self._layout.offsets[name], values.nbytes)
            comparisons.append(verify.compare_metadata(self._place.rank, name, written, values))
        gathered = self._place.world.allgather(comparisons)
        return verify.merge([comparison for of_rank in gathered for comparison in of_rank])

    def history(self) -> NDArray[Any]:
        """The rows that this rank's controller wrote in the last launch, in order."""
        rows = self._engine.read(*self._history).view(self.library.layout.dtype("HistoryRow"))
        written: NDArray[Any] = rows[rows["used"] == 1].copy()
        return written

    def skews_us(self, rounds: Sequence[Round]) -> list[float] | None:
        """How far apart the ranks started in each round; None where machines do not share a clock."""
        return [round_.skew_us for round_ in rounds] if self._place.is_one_machine else None

    def close(self, *, drain: bool) -> Traffic:
        """Stop proxies, free the memory; returns what all proxies together moved in all launches."""
        self._enter("report", self.point.deadline_s + _GRACE_S)
        if drain and self._proxy is not None:
            self._proxy.drain(self.point.deadline_s)
        # Nobody stops before all have sent what others still count on.
        self._place.world.Barrier()
        mine = self._proxy.stop() if self._proxy else Traffic(0, 0)
        traffic = self._place.world.allgather(mine)
        if self._proxy is not None:
            self._proxy.close()
        self._engine.close()
        self._host.free()
        return Traffic(sum(t.bytes for t in traffic), sum(t.commands for t in traffic))

    @property
    def _setup_s(self) -> float:
        return max(self.point.deadline_s, _SETUP_S)

    def _making_s(self, ranks: int) -> float:
        """How long it may take to make the inputs of `ranks` ranks."""
        point = self.point
        kernel = workload(point.kernel)
        pitches = kernel.pitches(point.shape)
        buffers = kernel.buffers(point.shape, point.nodes, point.ranks_per_node, point.chunk_tiles)
        elements = sum(buffer.bytes for buffer in buffers if buffer.name in pitches) / 2
        return max(self._setup_s, ranks * elements / _INPUTS_PER_S)

    @property
    def _output(self) -> Output:
        return workload(self.point.kernel).output(self.point.shape, self._place.rank, self.point.ranks)

    @property
    def _metadata_outputs(self) -> dict[str, NDArray[Any]]:
        return metadata_outputs(
            workload(self.point.kernel), self.point.shape, self._place.rank, self.point.ranks
        )

    @property
    def _history(self) -> tuple[int, int]:
        rows = int(self._params["history_capacity"])
        return self._layout.offsets["history"], rows * self.library.layout.dtype("HistoryRow").itemsize

    def _start_proxy(self) -> Proxy | None:
        if self._place.nodes == 1:
            return None
        if self.point.transport == "shm" and not self._place.is_one_machine:
            raise UsageError("transport shm needs all nodes on one machine", "use --transport tcp")
        return Proxy(
            self.library,
            self._place,
            self._host,
            self._params,
            self._engine.gpu_network,
            transport=self.point.transport,
            pace_fs_per_byte=fs_per_byte(self.point.rank_pace.network_gbps),
            connect_timeout_s=_SETUP_S,
        )

    def machine(self) -> dict[str, Any]:
        """Return what the engine says about the machine during the launches."""
        return self._engine.details()

    def _enter(self, phase: str, deadline_s: float) -> None:
        self._beats.enter(phase, deadline_s=deadline_s, point=self.point.key)


# The points of a sweep share shapes and seeds, and large matrices take seconds to make.
_references = References()


@lru_cache(maxsize=2)
def _inputs(
    kernel: str,
    shape: Shape,
    rank: int,
    ranks: int,
    seed: int,
    family: Family,
) -> dict[str, Bytes]:
    """Return the inputs of a rank by buffer, as bytes: bf16 in rows padded with zeros, and metadata."""
    chosen = workload(kernel)
    inputs, pitches = chosen.inputs(shape, rank, ranks, seed, family), chosen.pitches(shape)
    metadata = metadata_inputs(chosen, shape, rank, ranks)
    return {name: _padded(to_bf16(values), pitches[name]) for name, values in inputs.items()} | {
        name: values.reshape(-1).view(np.uint8) for name, values in metadata.items()
    }


def _padded(values: NDArray[np.uint16], pitch: int) -> Bytes:
    columns = values.shape[1]
    if columns < pitch:
        values = np.pad(values, ((0, 0), (0, pitch - columns)))
    return values.reshape(-1).view(np.uint8)
