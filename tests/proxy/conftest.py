"""The compiled library and proxies that are stopped when a test ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proxy_rig import Proxy

from mkbench.build.cpu import build_library
from mkbench.build.layout import Layout

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


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build_library("gemm_ar")))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture(scope="session")
def layout(library: ctypes.CDLL) -> Layout:
    return Layout(library)


@pytest.fixture
def make_proxy(library: ctypes.CDLL, layout: Layout) -> Iterator[Callable[[int, int], Proxy]]:
    """Makes the proxy of a node, out of how many; it is not started yet."""
    made: list[Proxy] = []

    def make(node: int, nodes: int) -> Proxy:
        made.append(Proxy(library, layout, node, nodes))
        return made[-1]

    yield make
    for proxy in made:
        proxy.stop()
