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
from mkbench.core.point import Point
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import Family, Matrix, Shape
from mkbench.dist import abort, verify
from mkbench.dist.engine import EngineMaker
from mkbench.dist.errors import OutOfDeviceMemory
from mkbench.dist.heartbeat import HeartbeatFile
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Launch
from mkbench.dist.place import Place
from mkbench.dist.proxy import Proxy, Traffic
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

    def __init__(
        self, place: Place, point: Point, beats: HeartbeatFile, library: KernelLibrary, engine: EngineMaker
    ) -> None:
        self._place, self.point, self._beats, self.library = place, point, beats, library
        self._enter("connect", self._setup_s)
        self._params, self._layout = launch_parameters(library.handle, library.layout, point, place.rank)
        self._host = HostMemory(place, self._layout, library.layout)
        try:
            self._engine = engine(place, point, library, self._layout.bytes, self._host)
        except OutOfDeviceMemory:
            self._host.free()
            raise
        params, mapped = self._params, self._engine.mapped
        params["heap"][: len(place.node_ranks)] = self._engine.node_heaps
        params["network"] = mapped(self._host.network(place.rank))
        params["abort_record"] = mapped(self._host.abort_record)
        params["ring_slots"] = mapped(self._host.ring_slots)
        params["ring_tails"] = mapped(self._host.ring_tails)
        params["epoch"] = 0
        self._proxy = self._start_proxy()
        self.hosts = sorted(set(place.world.allgather(socket.gethostname())))

    def fill(self, seed: int, family: Family) -> None:
        """Write this rank's inputs of a seed and family, which the next check goes by."""
        self._enter("inputs", self._setup_s)
        self._seed, self._family, point = seed, family, self.point
        inputs = _inputs(point.kernel, point.shape, self._place.rank, point.ranks, seed, family)
        for name, values, stride in zip("ab", inputs, ("lda", "ldb"), strict=True):
            padded = np.zeros((values.shape[0], int(self._params[stride])), dtype=np.uint16)
            padded[:, : values.shape[1]] = values
            self._engine.write(self._layout.offsets[name], padded.reshape(-1).view(np.uint8))

    def poison(self) -> None:
        """Make every element of the output wrong, so that one which the next launch leaves out is found."""
        poisoned = np.full(self._out_bytes, 0xFF, dtype=np.uint8)
        self._engine.write(self._layout.offsets["out"], poisoned)
        first, size = self._history
        self._engine.write(first, np.zeros(size, dtype=np.uint8))

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
        """Compare every element of every rank's output with the reference."""
        self._enter("verify", self._setup_s)
        point, kernel = self.point, workload(self.point.kernel)
        reference = np.empty((point.shape.m, point.shape.n), dtype=np.float32)
        if self._place.rank == 0:
            reference[:] = self._reference()
        self._place.world.Bcast(reference)
        out = self._engine.read(self._layout.offsets["out"], self._out_bytes).view(np.uint16)
        found = out.reshape(point.shape.m, -1)[:, : point.shape.n]
        tolerance = None if self._family == "exact" else kernel.tolerance(point.shape, point.ranks)
        comparison = verify.compare(self._place.rank, found, reference, tolerance)
        return verify.merge(self._place.world.allgather(comparison))

    def _reference(self) -> Matrix:
        """Return what every rank must end up with; the points of a sweep share it."""
        point = self.point
        key = (point.kernel, point.shape, point.ranks, self._seed, self._family)
        if key not in _references:
            if len(_references) == _KEPT:
                _references.pop(next(iter(_references)))
            _references[key] = workload(point.kernel).reference(*key[1:], self._engine.multiply)
        return _references[key]

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

    @property
    def _out_bytes(self) -> int:
        return 2 * self.point.shape.m * int(self._params["ldb"])

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
            transport=self.point.transport,
            connect_timeout_s=_SETUP_S,
        )

    def machine(self) -> dict[str, Any]:
        """Return what the engine says about the machine during the launches."""
        return self._engine.details()

    def _enter(self, phase: str, deadline_s: float) -> None:
        self._beats.enter(phase, deadline_s=deadline_s, point=self.point.key)


# The points of a sweep share shapes and seeds, and large matrices take seconds to make: one of each family is kept.
_KEPT = 2
_references: dict[tuple[str, Shape, int, int, Family], Matrix] = {}


@lru_cache(maxsize=_KEPT)
def _inputs(
    kernel: str, shape: Shape, rank: int, ranks: int, seed: int, family: Family
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the inputs of a rank as bf16 bits."""
    a, b = workload(kernel).inputs(shape, rank, ranks, seed, family)
    return to_bf16(a), to_bf16(b)
