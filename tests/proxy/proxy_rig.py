"""One rank's memory and its host proxy, driven from Python without a kernel: commands are packed by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mkbench.build.cpu import build_library
from mkbench.build.layout import Layout

HEAP_BYTES = 8 << 20
FLAGS = 16
DATA = 4096
"""Where payload may start; flags come first in the heap."""
RINGS = 2
DEPTH = 4
MAX_NODES = 64
DRAIN_NS = 20_000_000_000

_U64 = np.dtype(np.uint64)


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "mk_proxy_start": (ctypes.c_void_p, ctypes.c_void_p),
    "mk_proxy_drain": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64),
    "mk_proxy_stop": (None, ctypes.c_void_p, ctypes.c_void_p),
    "mk_proxy_error": (ctypes.c_char_p, ctypes.c_void_p),
    "mk_host_prepare": (ctypes.c_void_p, ctypes.c_void_p),
    "mk_host_run": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "mk_host_discard": (None, ctypes.c_void_p),
    "mk_host_error": (ctypes.c_char_p,),
    "mk_control_bytes": (ctypes.c_longlong, ctypes.c_void_p),
    "mk_network_control_bytes": (ctypes.c_longlong, ctypes.c_void_p),
}


def load_library(path: Path | None = None) -> ctypes.CDLL:
    """The library at `path`, or that of gemm_ar as it is, with the types that proxies and launches need."""
    library = ctypes.CDLL(str(path or build_library("gemm_ar")))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def aligned(dtype: np.dtype[Any], count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """A zeroed array that begins at a multiple of 128 bytes."""
    raw = np.zeros(dtype.itemsize * count + 128, dtype=np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + dtype.itemsize * count].view(dtype)


def pack(
    position: int, *, peer: int, flag: int, source: int = DATA, destination: int = DATA, size: int = 0,
    epoch: int = 1, op: int = 1, depth: int = DEPTH,
) -> tuple[int, int]:  # fmt: skip
    """The two words of the `position`-th command of a ring, as kernels/mk/command_queue.h describes them."""
    lap = (position // depth + 1) & 1
    first = lap << 63 | source // 128 << 31 | destination // 128
    second = lap << 63 | op << 59 | peer << 49 | flag << 25 | size // 16 << 7 | epoch & 127
    return first, second


class Proxy:
    """A heap of 8 MiB that starts with flags, two rings of four commands, and the proxy that serves them."""

    def __init__(self, library: ctypes.CDLL, layout: Layout, node: int, nodes: int) -> None:
        self._library, self._layout = library, layout
        self.node, self.nodes = node, nodes
        self.heap = aligned(np.dtype(np.uint8), HEAP_BYTES)
        self.flags = self.heap[: 8 * FLAGS].view(np.uint64)
        self.slots = aligned(_U64, RINGS * DEPTH * 2)
        self.tails = aligned(_U64, RINGS)
        self.epoch = aligned(_U64, 1)
        self.epoch[0] = 1
        self.abort = layout.new("AbortRecord")
        self._positions = [0] * RINGS
        self._handle: int | None = None

    def config(self, **changes: Any) -> np.ndarray[Any, np.dtype[Any]]:
        fields: dict[str, Any] = {
            "heap": self.heap.ctypes.data,
            "heap_bytes": HEAP_BYTES,
            "control_offset": 0,
            "flag_words": FLAGS,
            "ring_slots": self.slots.ctypes.data,
            "ring_tails": self.tails.ctypes.data,
            "epoch_word": self.epoch.ctypes.data,
            "abort_record": self.abort.ctypes.data,
            "fds": [-1] * MAX_NODES,
            "rings": RINGS,
            "ring_depth": DEPTH,
            "node": self.node,
            "nodes": self.nodes,
            "rank": 40 + self.node,
        }
        return self._layout.new("ProxyConfig", **fields | changes)

    def start(self, **changes: Any) -> Proxy:
        config = self.config(**changes)
        self._handle = self._library.mk_proxy_start(config.ctypes.data)
        assert self._handle, self._library.mk_proxy_error(None)
        return self

    def start_shm(self, peers: Sequence[Proxy]) -> Proxy:
        heaps = [peer.heap.ctypes.data for peer in peers]
        return self.start(transport=0, peer_heaps=heaps + [0] * (MAX_NODES - len(heaps)))

    def start_tcp(self, fds: Mapping[int, int]) -> Proxy:
        return self.start(transport=1, fds=[fds.get(node, -1) for node in range(MAX_NODES)])

    def claim(self, ring: int = 0) -> tuple[int, np.ndarray[Any, np.dtype[np.uint64]]]:
        """The next position of a ring and its slot, free by the time it is returned."""
        position = self._positions[ring]
        if position >= int(self.tails[ring]) + DEPTH:
            assert self.drain() == 0
        self._positions[ring] += 1
        start = 2 * (ring * DEPTH + position % DEPTH)
        return position, self.slots[start : start + 2]

    def push(self, ring: int = 0, **command: int) -> None:
        position, slot = self.claim(ring)
        first, second = pack(position, **command)
        slot[1] = second
        slot[0] = first

    def drain(self, timeout_ns: int = DRAIN_NS) -> int:
        return int(self._library.mk_proxy_drain(self._handle, timeout_ns))

    def error(self) -> str | None:
        text = self._library.mk_proxy_error(self._handle)
        return text.decode() if text else None

    def wait_for_error(self) -> str:
        while (text := self.error()) is None:
            self.drain(1_000_000)
        return text

    def wait_for_flag(self, index: int, value: int) -> None:
        while int(self.flags[index]) != value:
            assert self.drain() == 0, self.error()

    def stop(self) -> dict[str, int]:
        if self._handle is None:
            return {}
        stats = self._layout.new("ProxyStats")
        self._library.mk_proxy_stop(self._handle, stats.ctypes.data)
        self._handle = None
        return {name: int(stats[name]) for name in stats.dtype.names or ()}

    def fill(self, seed: int, offset: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
        self.heap[offset : offset + size] = data
        return data


def flag(epoch: int) -> int:
    """What a flag holds once a put of `epoch` has arrived."""
    return epoch << 32 | 1
