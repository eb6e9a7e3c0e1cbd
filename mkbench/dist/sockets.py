"""Authenticated TCP connections between rail peers, made in Python and handed to the proxy as file
descriptors.

Addresses and a random key of this run travel over MPI. Both sides prove that they know the key before a
connection
counts, so a stranger that reaches the port (or a rank of another run) is turned away and cannot write into
a heap.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from mkbench.core.errors import EnvironmentProblem

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

KEY_BYTES = 32
_NONCE_BYTES = 32
_DIGEST_BYTES = 32
_HELLO = struct.Struct(f"!8sII{_NONCE_BYTES}s")
_MAGIC = b"mkbench1"
#: A stranger that says nothing must not use up the time of the peers.
_HANDSHAKE_S = 2.0
_UNREACHABLE = "see that no firewall separates the ranks' hosts, or use --transport shm on one machine"
Address = tuple[str, int]


class PeerUnreachable(EnvironmentProblem):
    """A rail peer cannot be connected, or has failed before it was."""


class HandshakeRefused(Exception):
    """The other side did not prove that it belongs to this run."""


@dataclass(frozen=True, slots=True)
class Member:
    """One side of the mesh: who I am and the key of this run."""

    rank: int
    key: bytes

    def connect(self, address: Address, peer: int, deadline: float) -> socket.socket:
        """Connect to rank `peer` and prove each other. `deadline` is of time.monotonic()."""
        connection = socket.create_connection(address, timeout=_left(deadline))
        try:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            connection.sendall(_HELLO.pack(_MAGIC, self.rank, peer, nonce))
            answer = _receive(connection, _NONCE_BYTES + _DIGEST_BYTES, deadline)
            challenge, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
            if not hmac.compare_digest(proof, self._proof(b"accept", self.rank, peer, nonce, challenge)):
                raise HandshakeRefused(f"whoever listens on {address} does not know the key of this run")
            connection.sendall(self._proof(b"connect", self.rank, peer, nonce, challenge))
            if _receive(connection, 1, deadline) != b"\x01":
                raise HandshakeRefused(f"rank {peer} turned the connection away")
        except BaseException:
            connection.close()
            raise
        return connection

    def accept(self, connection: socket.socket, expected: Sequence[int], deadline: float) -> int:
        """Prove an incoming connection; returns the rank at its other end. Raises HandshakeRefused or
        OSError.
        """
        magic, peer, me, nonce = _HELLO.unpack(_receive(connection, _HELLO.size, deadline))
        if magic != _MAGIC or me != self.rank or peer not in expected:
            raise HandshakeRefused("not a peer that is expected here")
        challenge = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(challenge + self._proof(b"accept", peer, me, nonce, challenge))
        proof = _receive(connection, _DIGEST_BYTES, deadline)
        if not hmac.compare_digest(proof, self._proof(b"connect", peer, me, nonce, challenge)):
            raise HandshakeRefused("wrong key")
        connection.sendall(b"\x01")
        return int(peer)

    def _proof(self, side: bytes, connector: int, acceptor: int, nonce: bytes, challenge: bytes) -> bytes:
        # The side and both ranks are part of it: a proof cannot be reflected or used for another pair.
        text = _MAGIC + side + struct.pack("!II", connector, acceptor) + nonce + challenge
        return hmac.digest(self.key, text, "sha256")


def open_listener(address: str) -> socket.socket:
    """A listening socket on a free port of the interface `address`."""
    try:
        return socket.create_server((address, 0), backlog=128)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {address}: {error}", "check the network set-up"
        ) from error


def build_mesh(
    member: Member,
    listener: socket.socket,
    addresses: Mapping[int, Address],
    timeout_s: float,
) -> dict[int, socket.socket]:
    """Connect to every peer in `addresses`: to the higher ranks actively, the lower ones are waited for.

    Returns one blocking TCP_NODELAY socket per peer. Raises PeerUnreachable, with the peer's rank and
    address, if not all are there in `timeout_s` seconds.
    """
    deadline = monotonic() + timeout_s
    connections: dict[int, socket.socket] = {}
    try:
        for peer in sorted(peer for peer in addresses if peer > member.rank):
            connections[peer] = _connect(member, addresses[peer], peer, deadline)
        awaited = {peer for peer in addresses if peer < member.rank}
        while awaited:
            peer, connection = _accept(member, listener, sorted(awaited), addresses, deadline)
            connections[peer] = connection
            awaited.remove(peer)
    except BaseException:
        for connection in connections.values():
            connection.close()
        raise
    for connection in connections.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
    return connections


def connect_rail_peers(
    world: Intracomm, peers: Sequence[int], *, is_one_machine: bool, timeout_s: float
) -> dict[int, socket.socket]:
    """The mesh between this rank and its `peers`, arranged over MPI. Collective."""
    key = world.bcast(secrets.token_bytes(KEY_BYTES) if world.rank == 0 else None)
    with open_listener("127.0.0.1" if is_one_machine else own_address()) as listener:
        addresses: list[Address] = world.allgather(listener.getsockname()[:2])
        member = Member(world.rank, key)
        return build_mesh(member, listener, {peer: addresses[peer] for peer in peers}, timeout_s)


def own_address() -> str:
    """The IPv4 address by which other machines reach this one: that of its host name, else of its default
    route.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    if not address.startswith("127."):
        return address
    # Debian maps the host name to 127.0.1.1. To connect a datagram socket sends nothing, it picks the route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            raise EnvironmentProblem(
                "this host has no address that other hosts could reach", "give its host name a real address"
            ) from error
        return str(probe.getsockname()[0])


def _connect(member: Member, address: Address, peer: int, deadline: float) -> socket.socket:
    try:
        return member.connect(address, peer, deadline)
    except (OSError, HandshakeRefused) as error:
        raise PeerUnreachable(
            f"rank {member.rank} cannot connect to rank {peer} at {address[0]}:{address[1]}: {error}",
            _UNREACHABLE,
        ) from error


def _accept(
    member: Member,
    listener: socket.socket,
    awaited: Sequence[int],
    addresses: Mapping[int, Address],
    deadline: float,
) -> tuple[int, socket.socket]:
    while True:
        try:
            listener.settimeout(_left(deadline))
            connection, _ = listener.accept()
        except TimeoutError as error:
            peer = awaited[0]
            raise PeerUnreachable(
                f"rank {peer} at {addresses[peer][0]} did not connect to rank {member.rank} in time",
                _UNREACHABLE,
            ) from error
        try:
            return member.accept(connection, awaited, min(deadline, monotonic() + _HANDSHAKE_S)), connection
        except (OSError, HandshakeRefused):
            # Not one of us: the real peer may still come.
            connection.close()


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        connection.settimeout(_left(deadline))
        part = connection.recv(count - len(data))
        if not part:
            raise HandshakeRefused("the other side closed the connection")
        data += part
    return data
