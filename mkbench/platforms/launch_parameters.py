"""Launch parameters of a rank and the layout of its symmetric heap, the same for every platform."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkbench.build.layout import Layout
from mkbench.core.plan import Point
from mkbench.core.workloads import workload

HISTORY_ROWS = 4096
RINGS = 4
RING_DEPTH = 64

_ALIGN = 128
_POLICIES = {"static": 0, "adaptive": 1}

Record = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class HeapLayout:
    """Byte offsets in every rank's symmetric heap. Control (flags, counters, history, trace) comes first."""

    offsets: Mapping[str, int]
    control_bytes: int
    """Flags and counters, which start at offset 0."""
    control_end: int
    """Where payload starts."""
    bytes: int


def launch_parameters(
    library: ctypes.CDLL, layout: Layout, point: Point, rank: int, trace_capacity: int = 0
) -> tuple[Record, HeapLayout]:
    """Return the Params record of `rank` and the heap it describes.

    Addresses (`heap`, `abort_record`, `ring_slots`, `ring_tails`) and `epoch` (1) are the platform's to set.
    """
    kernel = workload(point.kernel)
    nodes, local_ranks = point.nodes, point.ranks_per_node
    shape = point.shape
    history_rows = HISTORY_ROWS if point.policy == "adaptive" else 0
    params = layout.new(
        "Params",
        epoch=1,
        deadline_ns=int(point.deadline_s * 1e9),
        rank=rank,
        ranks=point.ranks,
        local_rank=rank % local_ranks,
        local_ranks=local_ranks,
        node=rank // local_ranks,
        nodes=nodes,
        blocks=point.blocks,
        policy=_POLICIES[point.policy],
        comm_sms=point.start_comm_sms,
        rings=RINGS,
        ring_depth=RING_DEPTH,
        history_capacity=history_rows,
        trace_capacity=trace_capacity,
        **kernel.parameters(shape, local_ranks, point.chunk_tiles),
    )
    library.mk_control_bytes.restype = ctypes.c_longlong
    control = library.mk_control_bytes(ctypes.c_void_p(params.ctypes.data))
    history = _up(control)
    trace = history + _up(history_rows * layout.dtype("HistoryRow").itemsize)
    control_end = trace + _up(point.blocks * (trace_capacity + 1) * layout.dtype("TraceEvent").itemsize)
    params["control_offset"], params["history_offset"], params["trace_offset"] = 0, history, trace
    offsets, end = {"history": history, "trace": trace}, control_end
    for buffer in kernel.buffers(shape, nodes, local_ranks, point.chunk_tiles):
        params[buffer.name] = offsets[buffer.name] = end
        end += buffer.bytes
    return params, HeapLayout(offsets, control, control_end, end)


def _up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
