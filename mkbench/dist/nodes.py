"""Nodes: which ranks share NVLink, found from MPI's shared-memory groups and never from host names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkbench.core.errors import UsageError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@dataclass(frozen=True, slots=True)
class Topology:
    """`nodes[n]` are the world ranks of node n, in order of their local rank; all nodes are equally large."""

    nodes: tuple[tuple[int, ...], ...]

    @property
    def ranks_per_node(self) -> int:
        return len(self.nodes[0])

    def node_of(self, rank: int) -> int:
        return next(index for index, ranks in enumerate(self.nodes) if rank in ranks)

    def local_rank(self, rank: int) -> int:
        return self.nodes[self.node_of(rank)].index(rank)

    def rail_peers(self, rank: int) -> tuple[int, ...]:
        """The ranks with the same local rank on every other node, in node order."""
        local = self.local_rank(rank)
        return tuple(ranks[local] for ranks in self.nodes if rank not in ranks)


def subdivide(machines: Sequence[Sequence[int]], ranks_per_node: int) -> Topology:
    """Cut each machine's ranks (one shared-memory group each) into nodes of `ranks_per_node`.

    Nodes are numbered by their lowest rank. Raises UsageError if a machine's ranks cannot be divided.
    """
    for ranks in machines:
        if len(ranks) % ranks_per_node:
            raise UsageError(
                f"{len(ranks)} ranks share a machine (ranks {_abbreviate(ranks)}), "
                f"which is no multiple of --ranks-per-node {ranks_per_node}",
                "start a multiple of it on every machine, or choose --ranks-per-node "
                f"{' or '.join(map(str, _divisors(len(ranks))))}",
            )
    nodes = [
        tuple(sorted(ranks)[first : first + ranks_per_node])
        for ranks in machines
        for first in range(0, len(ranks), ranks_per_node)
    ]
    return Topology(tuple(sorted(nodes)))


def require_block_order(topology: Topology) -> None:
    """Raise UsageError unless node n holds the ranks n*G to n*G + G-1, as kernels number them."""
    flat = [rank for ranks in topology.nodes for rank in ranks]
    if flat != list(range(len(flat))):
        raise UsageError(
            f"the launcher placed ranks round robin: the nodes are {topology.nodes}",
            "place consecutive ranks on a node: MPICH -ppn N, Open MPI --map-by ppr:N:node, Slurm -m block",
        )


def machine_communicator(world: Intracomm) -> Intracomm:
    """The ranks that can share memory with this one. Collective; the caller frees it."""
    from mpi4py import MPI

    machine = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    assert isinstance(machine, MPI.Intracomm)
    return machine


def _divisors(count: int) -> list[int]:
    return [d for d in range(1, count + 1) if count % d == 0]


def _abbreviate(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]} to {ranks[-1]}"
