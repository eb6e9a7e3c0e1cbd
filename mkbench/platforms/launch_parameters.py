"""Launch parameters of a rank and the layout of its symmetric heap, the same for every platform."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkbench.build.layout import Layout
from mkbench.core.pace import fs_per_byte
from mkbench.core.plan import Point
from mkbench.core.workloads import workload

HISTORY_ROWS = 16384
RINGS = 4
RING_DEPTH = 2048
"""Enough for a large launch: blocks that wait for a slot poll the host and hold up its proxies."""

_ALIGN = 128
_POLICIES = {"static": 0, "adaptive": 1}

Record = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class HeapLayout:
    """Byte offsets in every rank's symmetric heap, and in its network region for what the proxies move.

    Both start with control words: the heap with flags, counters, history and trace up to `control_end`, the
    network region with its flags. Metadata follows, up to `kept_end` and `network_kept`; then comes payload.
    """

    offsets: Mapping[str, int]
    control_end: int
    kept_end: int
    bytes: int
    network_control_bytes: int
    network_kept: int
    network_bytes: int


def launch_parameters(
    library: ctypes.CDLL, layout: Layout, point: Point, rank: int, trace_capacity: int = 0
) -> tuple[Record, HeapLayout]:
    """Return the Params record of `rank` and the heap it describes.

    Addresses (`heap`, `network`, `abort_record`, `ring_slots`, `ring_tails`) and `epoch` (1) are the
    platform's to set.
    """
    kernel = workload(point.kernel, point.reduction)
    nodes, local_ranks = point.nodes, point.ranks_per_node
    shape = point.shape
    history_rows = HISTORY_ROWS if point.policy == "adaptive" else 0
    params = layout.new(
        "Params",
        epoch=1,
        deadline_ns=int(point.deadline_s * 1e9),
        pace_fs_per_byte=fs_per_byte(point.rank_pace.nvlink_gbps),
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
        **kernel.parameters(shape, nodes, local_ranks, point.chunk_tiles),
    )
    history = _up(_size(library.mk_control_bytes, params))
    network_control = _up(_size(library.mk_network_control_bytes, params))
    trace = history + _up(history_rows * layout.dtype("HistoryRow").itemsize)
    control_end = trace + _up(point.blocks * (trace_capacity + 1) * layout.dtype("TraceEvent").itemsize)
    params["control_offset"], params["history_offset"], params["trace_offset"] = 0, history, trace
    offsets = {"history": history, "trace": trace}
    ends, kept = [control_end, network_control], [control_end, network_control]
    # A sort that keeps the order otherwise.
    for buffer in sorted(
        kernel.buffers(shape, nodes, local_ranks, point.chunk_tiles), key=lambda buffer: not buffer.metadata
    ):
        params[buffer.name] = offsets[buffer.name] = ends[buffer.network]
        ends[buffer.network] += buffer.bytes
        if buffer.metadata:
            kept[buffer.network] = ends[buffer.network]
    return params, HeapLayout(
        offsets, control_end, kept[False], ends[False], network_control, kept[True], ends[True]
    )


def _size(function: Any, params: Record) -> int:
    function.restype = ctypes.c_longlong
    return int(function(ctypes.c_void_p(params.ctypes.data)))


def _up(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
