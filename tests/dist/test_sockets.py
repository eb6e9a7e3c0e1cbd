"""Handshakes and the mesh, between threads of one process."""

from __future__ import annotations

import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from mkbench.core.errors import EnvironmentProblem
from mkbench.dist.sockets import HandshakeRefused, Member, build_mesh, open_listener

KEY = secrets.token_bytes(32)
PATIENCE_S = 20.0


def mesh_of(keys: dict[int, bytes], timeout_s: float = PATIENCE_S) -> dict[int, dict[int, socket.socket]]:
    listeners = {rank: open_listener("127.0.0.1") for rank in keys}
    addresses = {rank: listener.getsockname() for rank, listener in listeners.items()}
    with ThreadPoolExecutor(len(keys)) as pool:
        futures = {
            rank: pool.submit(
                build_mesh,
                Member(rank, key),
                listeners[rank],
                {peer: address for peer, address in addresses.items() if peer != rank},
                timeout_s,
            )
            for rank, key in keys.items()
        }
    for listener in listeners.values():
        listener.close()
    return {rank: future.result() for rank, future in futures.items()}


def test_every_pair_is_joined_by_one_connection():
    meshes = mesh_of(dict.fromkeys((1, 3, 5, 7), KEY))
    for rank, mesh in meshes.items():
        assert sorted(mesh) == [peer for peer in (1, 3, 5, 7) if peer != rank]
        for peer, connection in mesh.items():
            connection.sendall(bytes([rank]))
            assert meshes[peer][rank].recv(1) == bytes([rank])
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection.gettimeout() is None
    for mesh in meshes.values():
        for connection in mesh.values():
            connection.close()


def test_a_wrong_key_is_refused_by_both_sides():
    with pytest.raises(EnvironmentProblem, match="rank 1 cannot connect to rank 2"):
        mesh_of({1: KEY, 2: secrets.token_bytes(32)}, timeout_s=1.0)


def test_a_stranger_does_not_keep_the_peer_out():
    with open_listener("127.0.0.1") as listener, ThreadPoolExecutor(2) as pool:
        address = listener.getsockname()
        stranger = socket.create_connection(address)
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: mkbench\r\n\r\n" + bytes(64))
        accepted = pool.submit(build_mesh, Member(2, KEY), listener, {1: ("127.0.0.1", 1)}, PATIENCE_S)
        connected = Member(1, KEY).connect(address, 2, monotonic() + PATIENCE_S)
        assert list(accepted.result()) == [1]
        for connection in (stranger, connected, *accepted.result().values()):
            connection.close()


@pytest.mark.parametrize(("claimed", "meant"), [(9, 2), (1, 3)])
def test_only_the_expected_peer_and_target_are_accepted(claimed: int, meant: int):
    with open_listener("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        address = listener.getsockname()
        connecting = pool.submit(Member(claimed, KEY).connect, address, meant, monotonic() + PATIENCE_S)
        incoming, _ = listener.accept()
        with pytest.raises(HandshakeRefused):
            Member(2, KEY).accept(incoming, [1], monotonic() + PATIENCE_S)
        incoming.close()
        with pytest.raises((HandshakeRefused, OSError)):
            connecting.result()


def test_a_reflected_proof_does_not_pass():
    """An attacker that only echoes what the victim computes must not get in."""
    with open_listener("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(build_mesh, Member(2, KEY), listener, {1: ("127.0.0.1", 1)}, 1.0)
        with socket.create_connection(listener.getsockname()) as attacker:
            attacker.sendall(b"mkbench1" + (1).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes(32))
            answer = attacker.recv(64, socket.MSG_WAITALL)
            attacker.sendall(answer[32:])
            assert attacker.recv(1) == b""
        with pytest.raises(EnvironmentProblem, match="rank 1"):
            accepting.result()


def test_a_peer_that_does_not_come_is_named():
    with open_listener("127.0.0.1") as listener, pytest.raises(EnvironmentProblem) as caught:
        build_mesh(Member(2, KEY), listener, {0: ("10.0.0.1", 5)}, timeout_s=0.05)
    assert "rank 0 at 10.0.0.1 did not connect to rank 2" in str(caught.value)
    assert "firewall" in (caught.value.hint or "")


def test_a_closed_port_is_reported_with_its_address():
    with open_listener("127.0.0.1") as gone:
        address = gone.getsockname()
    with open_listener("127.0.0.1") as listener, pytest.raises(EnvironmentProblem) as caught:
        build_mesh(Member(2, KEY), listener, {3: address}, timeout_s=PATIENCE_S)
    assert f"rank 2 cannot connect to rank 3 at 127.0.0.1:{address[1]}" in str(caught.value)
