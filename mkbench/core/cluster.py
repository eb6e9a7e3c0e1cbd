"""Clusters: how many nodes and ranks, of which hardware, joined by which network."""

import re

from pydantic import Field

from mkbench.core.hardware import HardwareProfile, load_hardware
from mkbench.core.partition import group_sms
from mkbench.core.profile import Sourced, Strict, profile_names, read_profile

_COUNTS = re.compile(r"\d+x\d+-")


class NetworkProfile(Strict):
    """The network between nodes, per GPU and direction (gbps is 1e9 bytes a second).

    `ordered`: a flag written after data on the same connection arrives after it. `message_ns`: what one
    message costs the sending NIC besides its bytes.
    """

    name: str
    gbps_per_gpu: Sourced
    latency_ns: Sourced
    message_ns: Sourced
    ordered: bool


class ClusterFile(Strict):
    """configs/clusters/<name>.toml."""

    name: str
    description: str
    nodes: int = Field(ge=1)
    ranks_per_node: int = Field(ge=1)
    ranks_per_gpu: int = Field(default=1, ge=1)
    hardware: str
    network: NetworkProfile | None = None


class ClusterProfile(Strict):
    """A cluster with its hardware. `network` is None where no rate of it is claimed.

    A virtual cluster has several ranks on one GPU (`ranks_per_gpu`), each on a group of its SMs.
    """

    name: str
    description: str
    nodes: int
    ranks_per_node: int
    ranks_per_gpu: int
    hardware: HardwareProfile
    network: NetworkProfile | None

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def blocks(self) -> int:
        """Blocks of one rank: one for each SM that it has. Raises UsageError if too many share a GPU."""
        return group_sms(self.hardware.blocks, self.ranks_per_gpu)

    def sharing(self, ranks_per_gpu: int | None) -> "ClusterProfile":
        """Return this cluster with so many ranks on each GPU; a virtual one has all on one unless told."""
        if ranks_per_gpu is None:
            ranks_per_gpu = self.ranks if self.ranks_per_gpu > 1 else 1
        return self.model_copy(update={"ranks_per_gpu": ranks_per_gpu})

    def resized(self, nodes: int | None, ranks_per_node: int | None) -> "ClusterProfile":
        """Return this cluster with other counts; "2x8-h200-ib" of 4 nodes becomes "4x8-h200-ib"."""
        counts = (nodes or self.nodes, ranks_per_node or self.ranks_per_node)
        if counts == (self.nodes, self.ranks_per_node):
            return self
        name = f"{counts[0]}x{counts[1]}-{_COUNTS.sub('', self.name, count=1)}"
        return self.model_copy(update={"name": name, "nodes": counts[0], "ranks_per_node": counts[1]})


def cluster_names() -> list[str]:
    """Return the names of the shipped clusters."""
    return profile_names("clusters")


def load_cluster(name: str) -> ClusterProfile:
    """Return the shipped cluster `name` with its hardware. Raises UsageError with the near name."""
    file = read_profile(ClusterFile, "clusters", "cluster", name)
    return ClusterProfile(
        name=file.name,
        description=file.description,
        nodes=file.nodes,
        ranks_per_node=file.ranks_per_node,
        ranks_per_gpu=file.ranks_per_gpu,
        hardware=load_hardware(file.hardware),
        network=file.network,
    )
