"""GEMM + AllReduce: C[m, n] = sum over ranks of A[m, k] @ B[k, n], the whole of C on every rank."""

from mkbench.core.cluster import ClusterProfile
from mkbench.core.workloads import gemm
from mkbench.core.workloads.base import Family, Matrix, Output, Shape, SumProducts, sum_products
from mkbench.core.workloads.gemm import ELEMENT_BYTES
from mkbench.core.workloads.gemm_inputs import gemm_reference
from mkbench.core.workloads.reduction import Deal, GemmReduction


class GemmAr(GemmReduction):
    """The workload of `gemm_ar`."""

    name = "gemm_ar"
    summary = "GEMM + AllReduce (tensor parallel): M = N = size, K = size / ranks a rank"
    sizes = (2048, 4096, 8192, 16384, 32768)
    is_replicated = True

    def tiles(self, shape: Shape) -> int:
        """Return all tiles of C, cut ones included."""
        return gemm.plan_tiles(shape.m, shape.n)

    def slots(self, shape: Shape, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return the most tiles that one rank reduces: chunk c belongs to local rank c % ranks_per_node."""
        cycles, rest = divmod(self.tiles(shape), ranks_per_node * chunk_tiles)
        return cycles * chunk_tiles + min(rest, chunk_tiles)

    def deal(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> Deal:
        """Return how tiles are dealt out: the ranks of one rail own the same tiles."""
        slots = self.slots(shape, ranks_per_node, chunk_tiles)
        return Deal(tiles=self.tiles(shape), slots=slots, bank=slots)

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
        return nodes * (nodes - 1) * self.tiles(shape) * gemm.TILE_BYTES

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return the slowest of peak computation, NVLink and network, each from unpadded bytes."""
        return gemm.bound_us(
            cluster,
            flops=self.flops_per_rank(shape),
            node_bytes=self.node_bytes(shape, cluster.ranks_per_node),
            network_bytes=(cluster.nodes - 1) * shape.m * shape.n * ELEMENT_BYTES / cluster.ranks_per_node,
        )

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return an even partition: a communication task reduces one owned tile and broadcasts it."""
        tiles, ranks = self.tiles(shape), cluster.ranks_per_node
        task_tiles = ranks + self.is_atomic  # which clears an accumulator
        return gemm.even_partition(
            cluster, k=shape.k, tiles=tiles, tasks=tiles / ranks, task_tiles=task_tiles
        )

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return C[m, n], the same on every rank."""
        return Output(shape.m, shape.n, self.pitches(shape)["b"])

    def reference(
        self,
        shape: Shape,
        rank: int,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return C[m, n]."""
        return gemm_reference(shape, ranks, seed, family, sum_products)
