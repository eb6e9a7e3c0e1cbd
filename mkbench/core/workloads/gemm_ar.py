"""GEMM + AllReduce: C[m, n] = sum over ranks of A[m, k] @ B[k, n], the whole of C on every rank."""

from collections.abc import Mapping

from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
from mkbench.core.partition import Work, balanced
from mkbench.core.workloads.base import Buffer, Family, Matrix, Shape, SumProducts, sum_products
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_reference, gemm_tolerance

TILE_M = 128
TILE_N = 256
ELEMENT_BYTES = 2
TILE_BYTES = TILE_M * TILE_N * ELEMENT_BYTES
CHUNK_TILES = 4

_ALIGN = 128
_LEADING = 8
"""Row lengths are padded to 16 bytes, which bulk copies need."""

HISTORY_BYTES = 1 << 20
"""Room for the controller's history, as far as the question whether a point fits is concerned."""


class GemmAr:
    """The workload of `gemm_ar`."""

    name = "gemm_ar"
    summary = "GEMM + AllReduce (tensor parallel): M = N = size, K = size / ranks a rank"

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return M = N = size, K = size / ranks, rounded up."""
        if size < 1:
            raise UsageError(f"size {size} is not positive", hint="write 2048 or 4K")
        return Shape(m=size, n=size, k=-(-size // ranks))

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return the shape of {"m": ..., "n": ..., "k": ...}."""
        for name in dims:
            if name not in ("m", "n", "k"):
                raise unknown("dimension", name, ("m", "n", "k"), f" of {self.name}")
        for name in ("m", "n", "k"):
            if dims.get(name, 0) < 1:
                raise UsageError(
                    f"{self.name} needs a positive {name}, got {dims.get(name, 'none')}",
                    hint="give m, n and k (k of one rank)",
                )
        return Shape(**dims)

    def plan_tiles(self, shape: Shape) -> tuple[int, int, int]:
        """Return tiles along m, tiles along n, and all tiles of C."""
        tiles_m, tiles_n = -(-shape.m // TILE_M), -(-shape.n // TILE_N)
        return tiles_m, tiles_n, tiles_m * tiles_n

    def tiles(self, shape: Shape) -> int:
        """Return all tiles of C, cut ones included."""
        return self.plan_tiles(shape)[2]

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return 4 tiles (256 KiB), or fewer so that every rank of a node owns a chunk if it can."""
        return max(1, min(CHUNK_TILES, self.tiles(shape) // ranks_per_node))

    def slots(self, shape: Shape, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return the most tiles that one rank reduces: chunk c belongs to local rank c % ranks_per_node."""
        cycles, rest = divmod(self.tiles(shape), ranks_per_node * chunk_tiles)
        return cycles * chunk_tiles + min(rest, chunk_tiles)

    def flops_per_rank(self, shape: Shape) -> float:
        """Return 2 m n k; the additions of the reduction do not count."""
        return 2.0 * shape.m * shape.n * shape.k

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload of one rank; sizes are multiples of 128 bytes.

        a[m, lda], b[k, ldb] and out[m, ldb] are row-major with padded rows; partial, node_sum and receive
        are whole tiles, one after the other. node_sum and receive are what the network moves.
        """
        padded = self.parameters(shape, ranks_per_node, chunk_tiles)
        owned = padded["slots"] * TILE_BYTES
        sizes = {
            "a": shape.m * padded["lda"] * ELEMENT_BYTES,
            "b": shape.k * padded["ldb"] * ELEMENT_BYTES,
            "partial": self.tiles(shape) * TILE_BYTES,
            "out": shape.m * padded["ldb"] * ELEMENT_BYTES,
        }
        moved = {"node_sum": owned, "receive": (nodes - 1) * owned} if nodes > 1 else {}
        return [Buffer(name, _up(size, _ALIGN)) for name, size in sizes.items()] + [
            Buffer(name, _up(size, _ALIGN), network=True) for name, size in moved.items()
        ]

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly.

        Words are 64 bits: of each slot one a rank of the node, of each chunk one a node and a counter.
        """
        slots = self.slots(shape, ranks_per_node, chunk_tiles)
        words = slots * ranks_per_node + -(-slots // chunk_tiles) * (nodes + 1)
        return 8 * words + HISTORY_BYTES

    def parameters(self, shape: Shape, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return m, n, k, the padded row lengths, and how tiles are dealt out, as the kernel names them."""
        return {
            **shape.to_json(),
            "lda": _up(shape.k, _LEADING),
            "ldb": _up(shape.n, _LEADING),
            "chunk_tiles": chunk_tiles,
            "slots": self.slots(shape, ranks_per_node, chunk_tiles),
        }

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the compute and the communication tasks of local rank 0, which has the most.

        An owned tile is reduced once within its node and, on several nodes, once more over them.
        """
        return self.tiles(shape), self.slots(shape, ranks_per_node, chunk_tiles) * min(nodes, 2)

    def node_bytes(self, shape: Shape, ranks_per_node: int) -> float:
        """Return what enters one rank over NVLink, unpadded: others' partials, then others' results."""
        fraction = (ranks_per_node - 1) / ranks_per_node
        return 2 * fraction * shape.m * shape.n * ELEMENT_BYTES

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the bytes between nodes of one launch, over all ranks, in whole padded tiles.

        Every node sends its sum of every tile once to every other node; the ranks of a node share the tiles.
        """
        return nodes * (nodes - 1) * self.tiles(shape) * TILE_BYTES

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return the slowest of peak computation, NVLink and network, each from unpadded bytes.

        None if a rate that counts is unknown. Ranks that share a GPU share its peak and its PCIe link, which
        is their network; between them NVLink is not used. No reduction inside a switch is assumed.
        """
        hardware, network, sharing = cluster.hardware, cluster.network, cluster.ranks_per_gpu
        per_rank_network = (cluster.nodes - 1) * shape.m * shape.n * ELEMENT_BYTES / cluster.ranks_per_node
        tiers = [(self.flops_per_rank(shape) * sharing / 1e6, hardware.get("peak_tflops"))]
        if cluster.ranks_per_node > 1 and sharing == 1:
            tiers.append((self.node_bytes(shape, cluster.ranks_per_node) / 1e3, hardware.get("nvlink_gbps")))
        if cluster.nodes > 1 and sharing == 1:
            tiers.append((per_rank_network / 1e3, network.gbps_per_gpu.value if network else None))
        if cluster.nodes > 1 and sharing > 1:
            tiers.append((per_rank_network * sharing / 1e3, hardware.get("pcie_gbps")))
        times = [amount / rate for amount, rate in tiers if rate]
        return max(times) if len(times) == len(tiers) else None

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return the partition that the hardware's rates make even, or a quarter of the blocks without rates.

        A compute task is one tile of this rank; a communication task reduces one owned tile of the node's
        partials and broadcasts it, which moves ranks_per_node tiles through one block.
        """
        hardware, blocks = cluster.hardware, cluster.blocks
        rate, copy = hardware.get("gemm_tflops"), hardware.get("sm_copy_gbps")
        if rate is None or copy is None:
            return max(1, blocks // 4)
        tile_flops = 2.0 * TILE_M * TILE_N * shape.k
        overhead_us = (hardware.get("tile_overhead_ns") or 0.0) / 1e3
        compute_us = tile_flops * hardware.blocks / rate / 1e6 + overhead_us
        serve_us = cluster.ranks_per_node * TILE_BYTES / copy / 1e3
        tiles = self.tiles(shape)
        return balanced(blocks, Work(tiles / cluster.ranks_per_node, serve_us), Work(tiles, compute_us))

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> tuple[Matrix, Matrix]:
        """Return A[m, k] and B[k, n] of one rank."""
        return gemm_inputs(shape, rank, ranks, seed, family)

    def reference(
        self,
        shape: Shape,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return C[m, n]."""
        return gemm_reference(shape, ranks, seed, family, sum_products)

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family."""
        return gemm_tolerance(shape, ranks)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
