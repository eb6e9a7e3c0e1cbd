"""Where a rank stands: its communicators, its node and its peers, for one number of ranks per node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mkbench.core.errors import UsageError
from mkbench.dist.nodes import Topology, machine_communicator, require_block_order, subdivide

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Place:
    """A rank among the others. `machine_ranks` are the world ranks that share its memory, in machine order.

    Collective to create and to free. Raises UsageError if the ranks do not make nodes of `ranks_per_node`.
    """

    def __init__(self, world: Intracomm, ranks_per_node: int) -> None:
        self.world = world
        self.rank = world.rank
        self.machine = machine_communicator(world)
        self.machine_ranks: Sequence[int] = self.machine.allgather(self.rank)
        machines = sorted(set(world.allgather(tuple(self.machine_ranks))))
        self.is_one_machine = len(machines) == 1
        self.topology: Topology = subdivide(machines, ranks_per_node)
        require_block_order(self.topology)
        self.node_index = self.topology.node_of(self.rank)
        self.local_rank = self.topology.local_rank(self.rank)
        self.node_ranks = self.topology.nodes[self.node_index]
        self.rail_peers = self.topology.rail_peers(self.rank)
        self.node = world.Split(self.node_index, self.local_rank)

    @property
    def nodes(self) -> int:
        return len(self.topology.nodes)

    def require(self, nodes: int, ranks_per_node: int) -> None:
        """Raise UsageError unless this is what was planned."""
        have = (self.nodes, self.topology.ranks_per_node)
        if have != (nodes, ranks_per_node):
            raise UsageError(
                f"the plan has {nodes} nodes of {ranks_per_node} ranks, "
                f"but {have[0]} nodes of {have[1]} were started",
                "start as many ranks as the plan has, or set --nodes and --ranks-per-node",
            )

    def free(self) -> None:
        self.node.Free()
        self.machine.Free()
