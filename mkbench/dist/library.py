"""The compiled kernel as Python calls it on platform host."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkbench.build.library import Library
from mkbench.core.errors import EnvironmentProblem

Record = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank's launch. Times are ns of CLOCK_MONOTONIC; `abort` holds an AbortRecord's fields if it was
    given up.
    """

    start_ns: int
    end_ns: int
    abort: dict[str, int] | None


class KernelLibrary(Library):
    """A kernel's shared object with the host platform's entry points."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.roles = self.layout.names["roles"]
        self._prepare = self.function("mk_host_prepare", ctypes.c_void_p, ctypes.c_void_p)
        self._run = self.function("mk_host_run", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._error = self.function("mk_host_error", ctypes.c_char_p)

    def prepare(self, params: Record) -> int:
        """Create the launch's threads, one a block, parked at a gate; `params` must live until the launch
        is over.

        Raises EnvironmentProblem if the operating system gives no more threads.
        """
        launch = self._prepare(params.ctypes.data)
        if not launch:
            raise EnvironmentProblem(self._error().decode(), "use fewer ranks, or raise the limit: ulimit -u")
        return int(launch)

    def run(self, launch: int) -> Launch:
        """Open the gate and wait until every block has left."""
        result = self.layout.new("HostResult")
        gave_up = self._run(launch, result.ctypes.data)
        fields = self.layout.dtype("AbortRecord").names or ()
        abort = {name: int(result[name]) for name in fields} if gave_up else None
        return Launch(int(result["start_ns"]), int(result["end_ns"]), abort)

    def record_at(self, name: str, address: int) -> Record:
        """Return a copy of the struct `name` at an address of this process."""
        dtype = self.layout.dtype(name)
        record: Record = np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype=dtype)[0]
        return record


def address_of(record: Record, field: str) -> int:
    """Where `field` of a structured 0-d record lies in memory."""
    fields = record.dtype.fields
    assert fields is not None
    return record.ctypes.data + fields[field][1]
