"""The compiled library and proxies that are stopped when a test ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
from proxy_rig import Proxy, load_library

from mkbench.build.layout import Layout


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return load_library()


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
