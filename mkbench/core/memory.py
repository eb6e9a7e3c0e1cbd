"""Does a point fit? Asked before anything is started."""

from mkbench.core.cluster import ClusterProfile
from mkbench.core.environment import memory_available_bytes
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.point import Point
from mkbench.core.units import format_bytes
from mkbench.core.workloads import workload


def heap_bytes(point: Point, *, data: bool) -> int:
    """Return about the symmetric heap of one rank; without data, its control part."""
    kernel, where = workload(point.kernel), (point.nodes, point.ranks_per_node, point.chunk_tiles)
    payload = sum(buffer.bytes for buffer in kernel.buffers(point.shape, *where)) if data else 0
    return payload + kernel.control_bytes(point.shape, *where)


def check_memory(point: Point, cluster: ClusterProfile) -> None:
    """Raise EnvironmentProblem, with need and have, if a GPU or this machine is too small for `point`.

    A simulated GPU has to hold the heap too, moved or not. On `host`, and on `sim` with data, the heaps of
    all ranks are in this machine's memory.
    """
    capacity_gb = cluster.hardware.get("memory_gb")
    if capacity_gb is not None:
        have = int(capacity_gb * 1e9)
        _fit(point, heap_bytes(point, data=True), have, f"one {cluster.hardware.name} has")
    if point.platform != "cuda":
        need = point.ranks * heap_bytes(point, data=point.data)
        _fit(point, need, memory_available_bytes(), f"for {point.ranks} ranks this machine has")


def _fit(point: Point, need: int, have: int, who: str) -> None:
    if need > have:
        raise EnvironmentProblem(
            f"{point.kernel} {point.shape.label} needs {format_bytes(need)}, {who} {format_bytes(have)}",
            hint="choose a smaller size, or fewer ranks",
        )
