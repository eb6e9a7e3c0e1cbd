"""What the proxy does with commands, over heaps that it can write directly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from proxy_rig import DATA, DEPTH, FLAGS, HEAP_BYTES, Proxy, flag, pack

MakeProxy = Callable[[int, int], Proxy]


@pytest.fixture
def pair(make_proxy: MakeProxy) -> tuple[Proxy, Proxy]:
    """Two nodes; the proxy of node 0 runs."""
    proxies = make_proxy(0, 2), make_proxy(1, 2)
    proxies[0].start_shm(proxies)
    return proxies


def test_a_put_copies_its_bytes_and_then_sets_the_flag(pair: tuple[Proxy, Proxy]) -> None:
    sender, receiver = pair
    data = sender.fill(1, DATA, 4096)
    sender.push(peer=1, flag=3, source=DATA, destination=2 * DATA, size=4096)
    assert sender.drain() == 0
    assert receiver.flags[3] == flag(1)
    assert np.array_equal(receiver.heap[2 * DATA : 3 * DATA], data)
    assert not receiver.heap[DATA : 2 * DATA].any()
    stats = sender.stop()
    assert (stats["commands"], stats["puts"], stats["payload_bytes"], stats["failed"]) == (1, 1, 4096, 0)


def test_the_largest_command_fits_its_fields(pair: tuple[Proxy, Proxy]) -> None:
    sender, receiver = pair
    size = ((1 << 18) - 1) * 16
    data = sender.fill(2, DATA, size)
    sender.push(peer=1, flag=FLAGS - 1, size=size)
    assert sender.drain() == 0
    assert np.array_equal(receiver.heap[DATA : DATA + size], data)
    assert receiver.flags[FLAGS - 1] == flag(1)


def test_rings_wrap_and_nothing_is_lost_or_repeated(pair: tuple[Proxy, Proxy]) -> None:
    sender, receiver = pair
    commands = 5 * DEPTH + 3
    for i in range(commands):
        for ring in (0, 1):
            sender.epoch[0] = i + 1
            sender.push(ring, peer=1, flag=ring, epoch=i + 1)
    assert sender.drain() == 0
    assert list(receiver.flags[:2]) == [flag(commands)] * 2
    assert list(sender.tails) == [commands] * 2
    assert sender.stop()["commands"] == 2 * commands


@pytest.mark.parametrize("word", [0, 1])
def test_half_a_command_is_never_carried_out(pair: tuple[Proxy, Proxy], word: int) -> None:
    sender, receiver = pair
    position, slot = sender.claim()
    words = pack(position, peer=1, flag=5)
    slot[word] = words[word] ^ 1 << 63
    slot[1 - word] = words[1 - word]
    assert sender.drain() == 0
    assert sender.tails[0] == 0
    assert not receiver.flags.any()
    slot[word] = words[word]
    assert sender.drain() == 0
    assert receiver.flags[5] == flag(1)


@pytest.mark.parametrize(
    ("now", "sent"), [(1, 1), (127, 127), (128, 128), (128, 127), (129, 128), (1000, 999), (1 << 31, 1 << 31)]
)
def test_the_epoch_is_completed_from_seven_bits(pair: tuple[Proxy, Proxy], now: int, sent: int) -> None:
    sender, receiver = pair
    sender.epoch[0] = now
    sender.push(peer=1, flag=0, epoch=sent)
    assert sender.drain() == 0
    assert receiver.flags[0] == flag(sent)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ({"peer": 2, "flag": 0}, "no such peer"),
        ({"peer": 1023, "flag": 0}, "no such peer"),
        ({"peer": 0, "flag": 0}, "no such peer"),
        ({"peer": 1, "flag": FLAGS}, "no such flag"),
        ({"peer": 1, "flag": 0, "op": 7}, "unknown operation"),
        ({"peer": 1, "flag": 0, "epoch": 5}, "it is from no launch"),
        ({"peer": 1, "flag": 0, "source": HEAP_BYTES - 128, "size": 256}, "the source is outside the heap"),
        ({"peer": 1, "flag": 0, "destination": HEAP_BYTES - 128, "size": 256}, "the destination is outside"),
        ({"peer": 1, "flag": 0, "destination": 0x7FFFFFFF * 128, "size": 16}, "the destination is outside"),
        ({"peer": 1, "flag": 0, "destination": 0, "size": 16}, "the destination overlaps the flags"),
    ],
)
def test_a_command_out_of_bounds_is_refused_and_aborts(
    pair: tuple[Proxy, Proxy], command: dict[str, int], reason: str
) -> None:
    sender, receiver = pair
    sender.fill(3, 0, 4096)
    sender.push(**command)
    text = sender.wait_for_error()
    assert f"peer node {command['peer']}: cannot accept a put" in text
    assert f"with flag {command['flag']}" in text
    assert reason in text
    assert (sender.abort["set"], sender.abort["rank"]) == (2, 40)
    assert not receiver.heap.any()
    assert sender.drain() == 2
    assert sender.stop()["failed"] == 1


def test_the_error_outlives_the_proxy(pair: tuple[Proxy, Proxy]) -> None:
    sender, _ = pair
    sender.push(peer=9, flag=0)
    text = sender.wait_for_error()
    sender.stop()
    assert sender.error() == text


def test_a_failure_leaves_an_earlier_abort_record_alone(pair: tuple[Proxy, Proxy]) -> None:
    sender, _ = pair
    sender.abort["set"], sender.abort["rank"] = 1, 3
    sender.push(peer=9, flag=0)
    sender.wait_for_error()
    assert (sender.abort["set"], sender.abort["rank"]) == (1, 3)


@pytest.mark.timeout(60)
def test_an_idle_proxy_stops_when_told(make_proxy: MakeProxy) -> None:
    proxies = make_proxy(0, 2), make_proxy(1, 2)
    for _ in range(50):
        proxies[0].start_shm(proxies)
        assert proxies[0].drain() == 0
        assert proxies[0].stop()["failed"] == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"node": 2}, "node or nodes is out of range"),
        ({"nodes": 65}, "node or nodes is out of range"),
        ({"rings": 0}, "there is no ring"),
        ({"ring_depth": 6}, "ring_depth is no power of two"),
        ({"epoch_word": 0}, "an address is missing"),
        ({"control_offset": 4}, "an address is not aligned"),
        ({"flag_words": HEAP_BYTES}, "the flags are outside the heap"),
        ({"transport": 9}, "no such transport"),
        ({"transport": 0}, "a peer's heap is missing"),
        ({"transport": 1}, "a peer's connection is missing"),
    ],
)
def test_an_unusable_configuration_is_refused(
    make_proxy: MakeProxy, library: ctypes.CDLL, changes: dict[str, int], reason: str
) -> None:
    config = make_proxy(0, 2).config(**changes)
    assert library.mk_proxy_start(config.ctypes.data) is None
    assert library.mk_proxy_error(None).decode() == f"host proxy: {reason}"
