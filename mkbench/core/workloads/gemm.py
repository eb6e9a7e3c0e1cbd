"""What fused kernels around a GEMM have in common: tiles of C, padded rows, shapes."""

from collections.abc import Mapping

from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
from mkbench.core.partition import Work, balanced
from mkbench.core.workloads.base import Shape
from mkbench.core.workloads.gemm_inputs import gemm_tolerance

TILE_M = 128
TILE_N = 256
ELEMENT_BYTES = 2
TILE_BYTES = TILE_M * TILE_N * ELEMENT_BYTES

HISTORY_BYTES = 1 << 20
"""Room for the controller's history, as far as the question whether a point fits is concerned."""

_ALIGN = 128
_LEADING = 8
"""Row lengths are padded to 16 bytes, which bulk copies need."""
_DIMENSIONS = ("m", "n", "k")


class GemmWorkload:
    """A rank computes C[m, n] in tiles; `k_is` tells people what k is."""

    name: str
    k_is: str
    small = 512

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return the shape of {"m": ..., "n": ..., "k": ...}."""
        for name in dims:
            if name not in _DIMENSIONS:
                raise unknown("dimension", name, _DIMENSIONS, f" of {self.name}")
        for name in _DIMENSIONS:
            if dims.get(name, 0) < 1:
                raise UsageError(
                    f"{self.name} needs a positive {name}, got {dims.get(name, 'none')}",
                    hint=f"give m, n and k ({self.k_is})",
                )
        return Shape(**dims)

    def flops_per_rank(self, shape: Shape, ranks: int = 1) -> float:
        """Return 2 m n k; the additions of a reduction do not count."""
        return 2.0 * shape.m * shape.n * shape.k

    def pitches(self, shape: Shape) -> dict[str, int]:
        """Return the elements from row to row of a and b."""
        return {"a": up(shape.k, _LEADING), "b": up(shape.n, _LEADING)}

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family."""
        return gemm_tolerance(shape, ranks)


def bound_us(
    cluster: ClusterProfile, *, flops: float, node_bytes: float, network_bytes: float
) -> float | None:
    """Return the slowest of peak computation, NVLink and network, from what one rank does and what enters it.

    None if a rate that counts is unknown. Ranks that share a GPU share its peak and its PCIe link, which is
    their network; between them NVLink is not used. No reduction inside a switch is assumed.
    """
    hardware, network, sharing = cluster.hardware, cluster.network, cluster.ranks_per_gpu
    tiers = [(flops * sharing / 1e6, hardware.get("peak_tflops"))]
    if cluster.ranks_per_node > 1 and sharing == 1:
        tiers.append((node_bytes / 1e3, hardware.get("nvlink_gbps")))
    if cluster.nodes > 1 and sharing == 1:
        tiers.append((network_bytes / 1e3, network.gbps_per_gpu.value if network else None))
    if cluster.nodes > 1 and sharing > 1:
        tiers.append((network_bytes * sharing / 1e3, hardware.get("pcie_gbps")))
    times = [amount / rate for amount, rate in tiers if rate]
    return max(times) if len(times) == len(tiers) else None


def even_partition(cluster: ClusterProfile, *, k: int, tiles: int, tasks: float, task_tiles: float) -> int:
    """Return the communication blocks that the hardware's rates make even, or a quarter of all without rates.

    A rank computes `tiles` of depth `k`; its communication has `tasks`, each of which moves `task_tiles`
    tiles through one block.
    """
    hardware, blocks = cluster.hardware, cluster.blocks
    rate, copy = hardware.get("gemm_tflops"), hardware.get("sm_copy_gbps")
    if rate is None or copy is None:
        return max(1, blocks // 4)
    tile_flops = 2.0 * TILE_M * TILE_N * k
    overhead_us = (hardware.get("tile_overhead_ns") or 0.0) / 1e3
    compute_us = tile_flops * hardware.blocks / rate / 1e6 + overhead_us
    return balanced(blocks, Work(tasks, task_tiles * TILE_BYTES / copy / 1e3), Work(tiles, compute_us))


def positive(size: int) -> int:
    """Return `size`. Raises UsageError if it is none."""
    if size < 1:
        raise UsageError(f"size {size} is not positive", hint="write 2048 or 4K")
    return size


def plan_tiles(rows: int, columns: int) -> int:
    """Return the tiles of a matrix, cut ones included."""
    return ceil_div(rows, TILE_M) * ceil_div(columns, TILE_N)


def aligned(size: int) -> int:
    """Return the bytes that a buffer of `size` bytes takes."""
    return up(size, _ALIGN)


def ceil_div(value: int, divisor: int) -> int:
    """Return value / divisor, rounded up."""
    return -(-value // divisor)


def up(value: int, multiple: int) -> int:
    """Return `value` rounded up to a multiple."""
    return ceil_div(value, multiple) * multiple
