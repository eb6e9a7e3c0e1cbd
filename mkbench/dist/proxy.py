"""The host proxy of one rank: its command rings, its transport, and what it counted."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from socket import socket

from mkbench.core.errors import EnvironmentProblem, HangError
from mkbench.dist.engine import GpuNetwork
from mkbench.dist.host_memory import HostMemory
from mkbench.dist.library import KernelLibrary, Record, address_of
from mkbench.dist.place import Place
from mkbench.dist.sockets import connect_rail_peers


@dataclass(frozen=True, slots=True)
class Traffic:
    """What proxies moved: payload bytes, and commands, those without payload included."""

    bytes: int
    commands: int


class PeerLost(HangError):
    """The proxy of this rank failed because a rail peer did."""


class Proxy:
    """The thread that carries out the commands of this rank's blocks.

    Collective to create with transport `tcp`, which connects the rail peers first.
    """

    def __init__(
        self,
        library: KernelLibrary,
        place: Place,
        host: HostMemory,
        params: Record,
        gpu: GpuNetwork | None,
        *,
        transport: str,
        pace_fs_per_byte: int,
        connect_timeout_s: float,
    ) -> None:
        self._drain = library.function("mk_proxy_drain", ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
        self._stop = library.function("mk_proxy_stop", None, ctypes.c_void_p, ctypes.c_void_p)
        self._error = library.function("mk_proxy_error", ctypes.c_char_p, ctypes.c_void_p)
        self._stats = library.layout.new("ProxyStats")
        # The library's threads use what these hold.
        self._kept = (host, params)
        self._sockets: Mapping[int, socket] = {}
        config = library.layout.new(
            "ProxyConfig",
            heap=host.network(place.rank),
            heap_bytes=host.network_bytes,
            flag_words=host.flag_words,
            ring_slots=host.ring_slots,
            ring_tails=host.ring_tails,
            epoch_word=address_of(params, "epoch"),
            abort_record=host.abort_record,
            pace_fs_per_byte=pace_fs_per_byte,
            transport=library.layout.names["transports"].index(transport),
            rings=int(params["rings"]),
            ring_depth=int(params["ring_depth"]),
            rank=place.rank,
            node=place.node_index,
            nodes=place.nodes,
        )
        if transport == "tcp":
            self._sockets = connect_rail_peers(
                place.world,
                place.rail_peers,
                is_one_machine=place.is_one_machine,
                timeout_s=connect_timeout_s,
            )
            for peer, connection in self._sockets.items():
                config["fds"][place.topology.node_of(peer)] = connection.fileno()
        else:
            for peer in place.rail_peers:
                config["peer_heaps"][place.topology.node_of(peer)] = host.network(peer)
        if gpu is not None:
            config["context"], config["gpu_memory"] = gpu.context, gpu.address
            for peer, address in gpu.peers.items():
                config["peer_gpu_memory"][place.topology.node_of(peer)] = address
        start = library.function("mk_proxy_start", ctypes.c_void_p, ctypes.c_void_p)
        self._proxy = start(config.ctypes.data)
        if not self._proxy:
            raise EnvironmentProblem(f"rank {place.rank}: {self._text(None)}", "use fewer ranks")

    def error(self) -> str | None:
        """Why the proxy failed, or None: which peer, which command, what happened."""
        return self._text(self._proxy)

    def drain(self, timeout_s: float) -> None:
        """Wait until all commands have left this end. Raises PeerLost if it failed or took longer."""
        if self._drain(self._proxy, int(timeout_s * 1e9)) != 0:
            raise PeerLost(f"commands are left to send: {self.error() or 'no progress'}")

    def stop(self) -> Traffic:
        """End the thread. Close the connections only when all proxies have ended: one that runs takes it for a fault."""
        self._stop(self._proxy, self._stats.ctypes.data)
        return Traffic(int(self._stats["payload_bytes"]), int(self._stats["commands"]))

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets.values():
            connection.close()

    def _text(self, proxy: int | None) -> str | None:
        text = self._error(proxy)
        return text.decode() if text else None
