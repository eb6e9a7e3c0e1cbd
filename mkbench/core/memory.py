"""Does a point fit? Asked before anything is started."""

from mkbench.core.cluster import ClusterProfile
from mkbench.core.environment import memory_available_bytes
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.point import Point
from mkbench.core.units import format_bytes
from mkbench.core.workloads import workload


def heap_bytes(point: Point, *, data: bool) -> int:
    """Return about all memory of one rank, heap and network region; without data, what is kept even so."""
    kernel = workload(point.kernel, point.reduction)
    where = (point.nodes, point.ranks_per_node, point.chunk_tiles)
    buffers = kernel.buffers(point.shape, *where)
    kept = sum(buffer.bytes for buffer in buffers if data or buffer.metadata)
    return kept + kernel.control_bytes(point.shape, *where)


def network_bytes(point: Point) -> int:
    """Return the memory of one rank that host proxies move from or to; control words are few."""
    where = (point.nodes, point.ranks_per_node, point.chunk_tiles)
    buffers = workload(point.kernel, point.reduction).buffers(point.shape, *where)
    return sum(buffer.bytes for buffer in buffers if buffer.network)


def gpu_bytes(point: Point) -> int:
    """Return about what one rank has in GPU memory. A simulated NIC reads GPU memory, so there it is all."""
    in_host = network_bytes(point) if point.platform == "cuda" and point.network_memory == "host" else 0
    return heap_bytes(point, data=True) - in_host


def shared_bytes(point: Point) -> int:
    """Return about what one rank shares with others in this machine's memory.

    On platform `cuda` that is the network region alone, which is pinned: the buffers themselves, or, with
    network memory "device", what they pass through.
    """
    return network_bytes(point) if point.platform == "cuda" else heap_bytes(point, data=True)


def check_memory(point: Point, cluster: ClusterProfile) -> None:
    """Raise EnvironmentProblem, with need and have, if a GPU or this machine is too small for `point`.

    A simulated GPU has to hold the heap too, moved or not. Ranks that share a GPU share its memory. On
    `host`, and on `sim` with data, the heaps of all ranks are in this machine's memory.
    """
    capacity_gb = cluster.hardware.get("memory_gb")
    if capacity_gb is not None:
        need, have = point.ranks_per_gpu * gpu_bytes(point), int(capacity_gb * 1e9)
        who = f"for {point.ranks_per_gpu} ranks " if point.ranks_per_gpu > 1 else ""
        _fit(point, need, have, f"{who}one {cluster.hardware.name} has")
    if point.platform != "cuda":
        need = point.ranks * heap_bytes(point, data=point.data)
        _fit(point, need, memory_available_bytes(), f"for {point.ranks} ranks this machine has")


def _fit(point: Point, need: int, have: int, who: str) -> None:
    if need > have:
        raise EnvironmentProblem(
            f"{point.kernel} {point.shape.label} needs {format_bytes(need)}, {who} {format_bytes(have)}",
            hint="choose a smaller size, or fewer ranks",
        )
