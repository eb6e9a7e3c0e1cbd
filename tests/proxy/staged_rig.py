"""Proxies whose payload is in another memory than the wire's; run with lazy_cuda as the driver."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from lazy_cuda import CONTEXT, LazyCuda
from proxy_rig import DATA, DEPTH, FLAGS, HEAP_BYTES, MAX_NODES, Proxy, aligned, flag

from mkbench.build.layout import Layout

CHUNK = 128
LANE_DEPTH = 4
"""Steps that a copy engine has under way in one direction."""
FEW, MANY = 100, 200
"""Puts that may wait for a step all at once; more than wait for it, in batches and in the ring."""
WAIT_NS = 5_000_000_000
"""Far longer than any wait of a right build takes."""
_MOMENT_NS = 20_000_000

Array = np.ndarray[Any, np.dtype[np.uint8]]


class StagedProxy(Proxy):
    """A proxy with a second memory that stands for its GPU's, whose flags are those that count."""

    def __init__(self, library: ctypes.CDLL, layout: Layout, node: int, nodes: int) -> None:
        super().__init__(library, layout, node, nodes)
        self.gpu = aligned(np.dtype(np.uint8), HEAP_BYTES)
        self.flags = self.gpu[: 8 * FLAGS].view(np.uint64)

    def chunks(self, count: int) -> Array:
        return self.gpu[DATA : DATA + count * CHUNK].reshape(count, CHUNK)

    def takes(self, count: int) -> bool:
        """Wait until so many commands of the first ring are taken; false once the proxy has failed."""
        while int(self.tails[0]) < count:
            if self.error():
                return False
            os.sched_yield()
        return True


@contextlib.contextmanager
def staged(
    library: ctypes.CDLL, layout: Layout, transport: str, *, nodes: int = 2, chunks: int = 0
) -> Iterator[list[StagedProxy]]:
    """A running proxy for each node; node 0 had random `chunks` before.

    ThreadSanitizer does not see how Python waits for a flag: for it, memory is filled before the proxies run
    and looked at after they have stopped.
    """
    proxies = [StagedProxy(library, layout, node, nodes) for node in range(nodes)]
    proxies[0].chunks(chunks)[:] = np.random.default_rng(6).integers(0, 256, (chunks, CHUNK), dtype=np.uint8)
    fds = [[-1] * MAX_NODES for _ in proxies]
    rest = [0] * (MAX_NODES - nodes)
    with contextlib.ExitStack() as stack:
        for a, b in itertools.combinations(range(nodes), 2):
            ends = [stack.enter_context(end) for end in socket.socketpair()]
            fds[a][b], fds[b][a] = ends[0].fileno(), ends[1].fileno()
        for proxy in proxies:
            proxy.start(
                context=CONTEXT,
                gpu_memory=proxy.gpu.ctypes.data,
                transport=("shm", "tcp").index(transport),
                peer_heaps=[peer.heap.ctypes.data for peer in proxies] + rest,
                peer_gpu_memory=[peer.gpu.ctypes.data for peer in proxies] + rest,
                fds=fds[proxy.node],
            )
        try:
            yield proxies
        finally:
            for proxy in proxies:
                proxy.stop()


def burst(
    library: ctypes.CDLL, layout: Layout, driver: LazyCuda, transport: str, *, held: int, puts: int
) -> Iterator[str]:
    """Yield what is wrong if puts that continue each other pile up behind copies of the kind `held`."""
    before = driver.copies(held)
    asked: list[int] = []

    def let_go() -> None:
        asked.append(driver.copies(held) - before)
        driver.hold(0)

    with staged(library, layout, transport, chunks=puts) as (sender, receiver):
        driver.hold(held)
        push_all(sender, puts, stuck=let_go if puts > FEW else None)
        if transport == "tcp" and held == driver.TO_GPU:
            # The sender is rid of them, and the receiver has seen all that is on the way.
            if sender.drain(WAIT_NS) or receiver.drain(WAIT_NS):
                yield f"copies to the GPU keep puts from being sent: {sender.error()}, {receiver.error()}"
        elif not asked and sender.takes(puts) and sender.drain(_MOMENT_NS) != 1:
            yield f"drained while puts wait for copies: {sender.error()}"
        let_go()
        if sender.drain(WAIT_NS) or receiver.drain(WAIT_NS):
            yield f"not drained: {sender.error()}, {receiver.error()}"
        if not comes(receiver, FLAGS - 1):
            yield "the last flag does not come"
    if asked[0] > LANE_DEPTH:
        yield f"{asked[0]} copies under way at once"
    if puts <= FEW and driver.copies(held) - before > LANE_DEPTH + 1:
        yield "what piled up did not become one copy"
    if not (receiver.flags == flag(1)).all():
        yield "a flag is missing"
    if not np.array_equal(receiver.chunks(puts), sender.chunks(puts)):
        yield "the last flag came before all payload"


def push_all(sender: StagedProxy, puts: int, stuck: Callable[[], None] | None) -> None:
    """Push puts that continue each other, the last with the last flag; a ring that stays full is `stuck`."""
    for index in range(puts):
        since = time.monotonic_ns()
        while index >= int(sender.tails[0]) + DEPTH:
            if sender.error():
                return
            if stuck and time.monotonic_ns() - since > _MOMENT_NS:
                stuck()
            os.sched_yield()
        place = DATA + index * CHUNK
        word = FLAGS - 1 if index == puts - 1 else index % (FLAGS - 1)
        sender.push(peer=1, flag=word, source=place, destination=place, size=CHUNK)


def stopped(library: ctypes.CDLL, layout: Layout, driver: LazyCuda, transport: str) -> Iterator[str]:
    """Yield what is wrong if a proxy is stopped while copies are under way: their memory is freed next."""
    with staged(library, layout, transport, chunks=1) as proxies:
        sender = proxies[0]
        driver.hold(driver.FROM_GPU | driver.TO_GPU)
        push_all(sender, 1, None)
        sender.takes(1)
        sender.stop()
        driver.hold(0)
        if not np.array_equal(sender.heap[DATA : DATA + CHUNK], sender.chunks(1)[0]):
            yield "stopped before the copies under way had ended"


def mixed(library: ctypes.CDLL, layout: Layout, driver: LazyCuda, transport: str) -> Iterator[str]:
    """Yield what is wrong with puts that may not all share copies with those before."""
    with staged(library, layout, transport, nodes=3, chunks=FEW) as proxies:
        sender = proxies[0]
        driver.hold(driver.FROM_GPU)
        for index in range(FEW):
            peer, source, destination = _mixed(index)
            sender.takes(index + 1 - DEPTH)
            sender.push(
                peer=peer, flag=index % 10, size=CHUNK if index % 10 else 0,
                source=DATA + source * CHUNK, destination=DATA + destination * CHUNK,
            )  # fmt: skip
        for peer in (1, 2):
            sender.takes(FEW + peer - DEPTH)
            sender.push(peer=peer, flag=FLAGS - 1)
        sender.takes(FEW + 2)
        driver.hold(0)
        if not all(comes(proxy, FLAGS - 1) for proxy in proxies[1:]):
            yield "the last flag does not come"
    expected = np.zeros((3, FEW, CHUNK), np.uint8)
    for index in range(FEW):
        peer, source, destination = _mixed(index)
        if index % 10:
            expected[peer, destination] = sender.chunks(FEW)[source]
    for proxy in proxies[1:]:
        if not (proxy.flags[:10] == flag(1)).all():
            yield f"node {proxy.node}: a flag is missing"
        if not np.array_equal(proxy.chunks(FEW), expected[proxy.node]):
            yield f"node {proxy.node}: wrong payload"


def _mixed(index: int) -> tuple[int, int, int]:
    """Peer, source and destination of a put: only in the first two quarters do puts go on at both ends."""
    quarter = index // (FEW // 4)
    return 1 + quarter % 2, index ^ (quarter == 3), index ^ (quarter == 2)


def comes(proxy: StagedProxy, word: int) -> bool:
    """Whether a flag of the first epoch comes."""
    end = time.monotonic_ns() + WAIT_NS
    while int(proxy.flags[word]) != flag(1):
        if proxy.drain(_MOMENT_NS) == 2 or time.monotonic_ns() > end:
            return False
    return True


def one_by_one(library: ctypes.CDLL, layout: Layout, transport: str, puts: int = 300) -> Iterator[str]:
    """Yield what is wrong with puts in both directions, each between two random places."""
    size = 4096
    rng = np.random.default_rng(5)
    with staged(library, layout, transport) as proxies:
        for index in range(puts):
            sender, receiver = proxies[index % 2], proxies[1 - index % 2]
            sender.epoch[0] = epoch = index // (2 * FLAGS) + 1
            word = index // 2 % FLAGS
            source, destination = (DATA + size * int(place) for place in rng.integers(0, 500, 2))
            data = rng.integers(0, 256, size, dtype=np.uint8)
            sender.gpu[source : source + size] = data
            sender.push(
                ring=index % 2, peer=receiver.node, flag=word, source=source, destination=destination,
                size=size, epoch=epoch,
            )  # fmt: skip
            while int(receiver.flags[word]) != flag(epoch):
                if error := sender.error() or receiver.error():
                    yield error
                    return
            if not np.array_equal(receiver.gpu[destination : destination + size], data):
                yield f"put {index} was announced before it had arrived"


def complaints(library: ctypes.CDLL, layout: Layout, driver: LazyCuda, transport: str) -> Iterator[str]:
    """Yield what is wrong with a transport; ThreadSanitizer may watch."""
    for held in (driver.FROM_GPU, driver.TO_GPU):
        for puts in (FEW, MANY):
            yield from burst(library, layout, driver, transport, held=held, puts=puts)
    yield from stopped(library, layout, driver, transport)
    yield from mixed(library, layout, driver, transport)
