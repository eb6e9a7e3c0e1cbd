"""One point on one rank: its heap, inputs, proxy and launches. All methods are collective over all ranks."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import to_bf16
from mkbench.core.errors import UsageError
from mkbench.core.measurement import Check
from mkbench.core.point import Point
from mkbench.core.workloads import workload
from mkbench.dist import abort, verify
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.library import KernelLibrary, Launch
from mkbench.dist.place import Place
from mkbench.dist.proxy import Proxy, Rings, Traffic
from mkbench.dist.symmetric import ALIGNMENT, SymmetricHeap, round_up
from mkbench.platforms.launch_parameters import launch_parameters

#: At least so long may a phase take that loads, connects or computes outside of the kernel.
_SETUP_S = 30.0
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

    def __init__(self, place: Place, point: Point, beats: HeartbeatFile, library: KernelLibrary) -> None:
        self._place, self.point, self._beats, self.library = place, point, beats, library
        self._enter("connect", self._setup_s)
        self._params, self._layout = launch_parameters(library.handle, library.layout, point, place.rank)
        # In shared memory, behind what proxies may write: ranks of one machine tell each other to give up.
        self._network_offset = round_up(self._layout.bytes, ALIGNMENT)
        self._abort_offset = round_up(self._network_offset + self._layout.network_bytes, ALIGNMENT)
        size = self._abort_offset + library.layout.dtype("AbortRecord").itemsize
        self._heap = SymmetricHeap(place.machine, place.machine_ranks, size)
        self._params["heap"][: len(place.node_ranks)] = self._heap.addresses(place.node_ranks)
        self._params["network"] = self._heap.address(place.rank) + self._network_offset
        self._params["abort_record"] = self._heap.address(place.rank) + self._abort_offset
        self._params["epoch"] = 0
        self._proxy = self._start_proxy(Rings(self._params))
        self._enter("inputs", self._setup_s)
        self._fill()
        self.hosts = sorted(set(place.world.allgather(socket.gethostname())))

    def poison(self) -> None:
        """Make every element of the output wrong, so that one which the next launch leaves out is found."""
        self._matrix("out", self.point.shape.m, int(self._params["ldb"]))[:] = verify.POISON
        self._heap.bytes[self._history] = 0

    def launch(self, index: int) -> Round:
        """Run the kernel once on all ranks with an epoch of its own. `index` only names the phase."""
        patience = self.point.deadline_s + _GRACE_S
        self._enter(f"prepare {index}", patience)
        self._params["epoch"] += 1
        prepared = self.library.prepare(self._params)
        # The phase ends before the others are met: who waits for a rank is ahead of it.
        self._enter(f"ready {index}", patience)
        self._place.world.Barrier()
        self._enter(f"launch {index}", patience)
        launch = self.library.run(prepared)
        if launch.abort is not None:
            self._tell_to_give_up()
        self._enter(f"gather {index}", patience if launch.abort is None else _GRACE_S)
        gathered = self._place.world.allgather((launch, self._proxy.error() if self._proxy else None))
        return Round([launch for launch, _ in gathered], [error for _, error in gathered])

    def verify(self) -> Check:
        """Compare every element of every rank's output with the reference."""
        self._enter("verify", self._setup_s)
        point, kernel = self.point, workload(self.point.kernel)
        reference = np.empty((point.shape.m, point.shape.n), dtype=np.float32)
        if self._place.rank == 0:
            reference[:] = kernel.reference(point.shape, point.ranks, point.seed, self._family)
        self._place.world.Bcast(reference)
        found = self._matrix("out", point.shape.m, int(self._params["ldb"]))[:, : point.shape.n]
        tolerance = None if point.family == "exact" else kernel.tolerance(point.shape, point.ranks)
        comparison = verify.compare(self._place.rank, found, reference, tolerance)
        return verify.merge(self._place.world.allgather(comparison))

    def history(self) -> NDArray[Any]:
        """The rows that this rank's controller wrote in the last launch, in order."""
        rows = self._heap.bytes[self._history].view(self.library.layout.dtype("HistoryRow"))
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
        self._heap.free()
        return Traffic(sum(t.bytes for t in traffic), sum(t.commands for t in traffic))

    def _tell_to_give_up(self) -> None:
        """Have the ranks of this machine leave too, instead of each at the end of its own deadline."""
        fields = self.library.layout.dtype("AbortRecord").fields
        assert fields is not None
        for rank in self._place.machine_ranks:
            address = self._heap.address(rank) + self._abort_offset + fields["set"][1]
            told = ctypes.c_uint32.from_address(address)
            # Not atomic: a rank that gives up at this moment may lose its report, but leaves anyway.
            if told.value == 0:
                told.value = abort.ELSEWHERE

    @property
    def _setup_s(self) -> float:
        return max(self.point.deadline_s, _SETUP_S)

    @property
    def _family(self) -> Any:
        return self.point.family

    @property
    def _history(self) -> slice:
        first = self._layout.offsets["history"]
        rows = int(self._params["history_capacity"])
        return slice(first, first + rows * self.library.layout.dtype("HistoryRow").itemsize)

    def _start_proxy(self, rings: Rings) -> Proxy | None:
        self._rings = rings
        if self._place.nodes == 1:
            return None
        if self.point.transport == "shm" and not self._place.is_one_machine:
            raise UsageError("transport shm needs all nodes on one machine", "use --transport tcp")
        return Proxy(
            self.library,
            self._place,
            self._heap,
            self._params,
            rings,
            network_offset=self._network_offset,
            network_bytes=self._layout.network_bytes,
            flag_words=self._layout.network_control_bytes // 8,
            transport=self.point.transport,
            connect_timeout_s=_SETUP_S,
        )

    def _fill(self) -> None:
        point = self.point
        a, b = workload(point.kernel).inputs(
            point.shape, self._place.rank, point.ranks, point.seed, self._family
        )
        for name, values, stride in (("a", a, "lda"), ("b", b, "ldb")):
            # The heap is zero, and so stays what is beyond the last column.
            self._matrix(name, values.shape[0], int(self._params[stride]))[:, : values.shape[1]] = to_bf16(
                values
            )

    def _matrix(self, name: str, rows: int, stride: int) -> NDArray[np.uint16]:
        first = self._layout.offsets[name]
        return self._heap.bytes[first : first + 2 * rows * stride].view(np.uint16).reshape(rows, stride)

    def _enter(self, phase: str, deadline_s: float) -> None:
        self._beats.enter(phase, deadline_s=deadline_s, point=self.point.key)
