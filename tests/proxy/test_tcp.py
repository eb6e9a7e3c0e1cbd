"""The proxy over connected sockets: large and small puts, peers that leave, break off or send nonsense."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from proxy_rig import DATA, DEPTH, FLAGS, Proxy, flag

MakeProxy = Callable[[int, int], Proxy]
Pair = tuple[Proxy, Proxy]
HEADER_BYTES = 48


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    # Small buffers, so that writes and reads are cut anywhere.
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.settimeout(20)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def pair(make_proxy: MakeProxy, sockets: tuple[socket.socket, socket.socket]) -> Pair:
    """Two nodes over one connection."""
    proxies = make_proxy(0, 2), make_proxy(1, 2)
    proxies[0].start_tcp({1: sockets[0].fileno()})
    proxies[1].start_tcp({0: sockets[1].fileno()})
    return proxies


@pytest.fixture
def victim(make_proxy: MakeProxy, sockets: tuple[socket.socket, socket.socket]) -> Proxy:
    """Node 0 of two; the other end of its connection, sockets[1], is the test's."""
    return make_proxy(0, 2).start_tcp({1: sockets[0].fileno()})


def test_both_directions_at_once_with_cut_writes(pair: Pair) -> None:
    size = 3 << 20
    data = [proxy.fill(seed, DATA, size) for seed, proxy in enumerate(pair)]
    for i in range(0, size, size // 8):
        for proxy in pair:
            proxy.push(
                peer=1 - proxy.node,
                flag=i * 8 // size,
                source=DATA + i,
                destination=4 << 20 | i,
                size=size // 8,
            )
    for proxy in pair:
        for index in range(8):
            proxy.wait_for_flag(index, flag(1))
        arrived = proxy.heap[4 << 20 : (4 << 20) + size]
        assert np.array_equal(arrived, data[1 - proxy.node])
    for proxy in pair:
        stats = proxy.stop()
        assert (stats["payload_bytes"], stats["received_bytes"], stats["puts"]) == (size, size, 8)


def test_a_put_without_payload_only_sets_its_flag(pair: Pair) -> None:
    for epoch in range(1, 3 * DEPTH):
        pair[0].epoch[0] = epoch
        pair[0].push(peer=1, flag=4, epoch=epoch)
    pair[1].wait_for_flag(4, flag(3 * DEPTH - 1))
    assert not pair[1].heap[8 * FLAGS :].any()
    assert pair[1].stop()["received_bytes"] == 0


def test_a_peer_that_leaves_in_good_order_is_no_error(
    pair: Pair, sockets: tuple[socket.socket, socket.socket]
) -> None:
    pair[0].push(peer=1, flag=1)
    assert pair[0].drain() == 0
    pair[0].stop()
    sockets[0].close()
    pair[1].wait_for_flag(1, flag(1))
    assert pair[1].drain() == 0
    assert pair[1].stop()["failed"] == 0


def test_nothing_can_be_sent_to_a_peer_that_has_left(pair: Pair) -> None:
    pair[0].stop()
    assert pair[1].drain() == 0
    pair[1].push(peer=0, flag=1, size=256)
    text = pair[1].wait_for_error()
    assert "peer node 0: cannot send a put of 256 bytes" in text
    assert "the peer has left" in text


def test_a_peer_that_dies_is_named(victim: Proxy, sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[1].close()
    assert victim.wait_for_error() == "peer node 1: no command under way: it closed the connection"
    assert victim.abort["set"] == 2


@pytest.mark.parametrize(
    ("kept", "reason"), [(1, "in the header"), (47, "in the header"), (148, "put of 256 bytes")]
)
def test_a_frame_that_breaks_off_sets_no_flag(
    make_proxy: MakeProxy, sockets: tuple[socket.socket, socket.socket], victim: Proxy, kept: int, reason: str
) -> None:
    frame = wire_frame_to(make_proxy, size=256)
    sockets[1].sendall(frame[:kept])
    sockets[1].close()
    text = victim.wait_for_error()
    assert text.startswith("peer node 1: ")
    assert reason in text
    assert not victim.flags.any()


def wire_frame_to(make_proxy: MakeProxy, size: int) -> bytes:
    """A frame of node 1 to node 0, as a real proxy sends it."""
    ends = socket.socketpair()
    with ends[0], ends[1]:
        sender = make_proxy(1, 2).start_tcp({0: ends[0].fileno()})
        sender.fill(8, DATA, size)
        sender.push(peer=0, flag=2, size=size)
        frame = b""
        while len(frame) < HEADER_BYTES + size:
            frame += ends[1].recv(1 << 16)
        sender.stop()
    return frame


def test_a_recorded_frame_is_accepted(
    make_proxy: MakeProxy, sockets: tuple[socket.socket, socket.socket], victim: Proxy
) -> None:
    frame = wire_frame_to(make_proxy, size=256)
    for i in range(len(frame)):
        sockets[1].sendall(frame[i : i + 1])
    victim.wait_for_flag(2, flag(1))
    assert victim.heap[DATA : DATA + 256].tobytes() == frame[HEADER_BYTES:]


def test_any_change_of_a_header_is_found(make_proxy: MakeProxy) -> None:
    frame = wire_frame_to(make_proxy, size=256)
    rng = random.Random(5)
    for byte in range(HEADER_BYTES):
        ends = socket.socketpair()
        with ends[0], ends[1]:
            proxy = make_proxy(0, 2).start_tcp({1: ends[0].fileno()})
            changed = bytearray(frame)
            changed[byte] ^= 1 << rng.randrange(8)
            ends[1].sendall(changed)
            assert "corrupt stream" in proxy.wait_for_error()
            proxy.stop()
        assert not proxy.heap.any()


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_end_in_an_error_and_write_nothing(
    victim: Proxy, sockets: tuple[socket.socket, socket.socket], seed: int
) -> None:
    rng = random.Random(seed)
    sockets[1].sendall(rng.randbytes(rng.choice([1, 40, 48, 49, 500, 2000])))
    sockets[1].close()
    assert victim.wait_for_error().startswith("peer node 1: ")
    assert not victim.heap.any()
    assert victim.abort["set"] == 2


def test_a_frame_of_another_node_is_refused(make_proxy: MakeProxy) -> None:
    frame = wire_frame_to(make_proxy, size=256)
    ends = socket.socketpair()
    with ends[0], ends[1]:
        proxy = make_proxy(0, 3)
        other = socket.socketpair()
        with other[0], other[1]:
            proxy.start_tcp({1: other[0].fileno(), 2: ends[0].fileno()})
            ends[1].sendall(frame)
            assert "peer node 2: cannot receive" in (text := proxy.wait_for_error())
            assert "the frame is from another node" in text
            proxy.stop()


def test_drain_times_out_while_the_peer_does_not_read(victim: Proxy) -> None:
    victim.push(peer=1, flag=0, size=1 << 20)
    assert victim.drain(50_000_000) == 1
    assert victim.error() is None
