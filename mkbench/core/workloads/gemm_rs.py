"""GEMM + ReduceScatter: C[m, n] = sum over ranks of A[m, k] @ B[k, n], each rank with a shard of its rows."""

from mkbench.core.cluster import ClusterProfile
from mkbench.core.workloads import gemm
from mkbench.core.workloads.base import Family, Matrix, Output, Shape, SumProducts, sum_products
from mkbench.core.workloads.gemm import ELEMENT_BYTES, ceil_div
from mkbench.core.workloads.gemm_inputs import gemm_reference
from mkbench.core.workloads.reduction import Deal, GemmReduction


class GemmRs(GemmReduction):
    """The workload of `gemm_rs`."""

    name = "gemm_rs"
    summary = "GEMM + ReduceScatter (tensor parallel): M = N = size, K = size / ranks a rank"
    sizes = (2048, 4096, 8192, 16384, 32768, 65536)
    is_replicated = False

    def rows(self, shape: Shape, rank: int, ranks: int) -> range:
        """Return the rows of C that are the rank's shard; the last shards may be shorter or empty."""
        size = ceil_div(shape.m, ranks)
        return range(min(rank * size, shape.m), min((rank + 1) * size, shape.m))

    def shard_tiles(self, shape: Shape, rank: int, ranks: int) -> int:
        """Return the tiles of a shard, which are cut at its end."""
        return gemm.plan_tiles(len(self.rows(shape, rank, ranks)), shape.n)

    def tiles(self, shape: Shape, ranks: int) -> int:
        """Return the tiles of all shards."""
        return sum(self.shard_tiles(shape, rank, ranks) for rank in range(ranks))

    def deal(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> Deal:
        """Return how tiles are dealt out: local rank l of a node sums the shards of all local ranks l."""
        ranks = nodes * ranks_per_node
        shard = self.shard_tiles(shape, 0, ranks)
        return Deal(tiles=self.tiles(shape, ranks), slots=nodes * shard, bank=shard)

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the compute and the communication tasks of rank 0, which has the most.

        It sums the partials of one shard of every node and, on several nodes, the node sums of its own.
        """
        ranks = nodes * ranks_per_node
        summed = [self.shard_tiles(shape, rank, ranks) for rank in range(0, ranks, ranks_per_node)]
        return self.tiles(shape, ranks), sum(summed) + (summed[0] if nodes > 1 else 0)

    def node_bytes(self, shape: Shape, ranks_per_node: int) -> float:
        """Return what enters one rank over NVLink, unpadded: others' partials of the shards that it sums."""
        fraction = (ranks_per_node - 1) / ranks_per_node
        return fraction * shape.m * shape.n * ELEMENT_BYTES

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the bytes between nodes of one launch, over all ranks, in whole padded tiles.

        A shard's tiles come to its rank once from every other node.
        """
        return (nodes - 1) * self.tiles(shape, nodes * ranks_per_node) * gemm.TILE_BYTES

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return the slowest of peak computation, NVLink and network, each from unpadded bytes."""
        return gemm.bound_us(
            cluster,
            flops=self.flops_per_rank(shape),
            node_bytes=self.node_bytes(shape, cluster.ranks_per_node),
            network_bytes=(cluster.nodes - 1) * shape.m * shape.n * ELEMENT_BYTES / cluster.ranks,
        )

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return an even partition: each owned tile is summed over the ranks of a node, or read and cleared.

        On several nodes one in so many owned tiles is of the own shard, and summed over the nodes too.
        """
        tiles, ranks = self.tiles(shape, cluster.ranks), cluster.ranks_per_node
        task_tiles = (2 if self.is_atomic else ranks) + (cluster.nodes > 1)
        return gemm.even_partition(
            cluster, k=shape.k, tiles=tiles, tasks=tiles / ranks, task_tiles=task_tiles
        )

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return the rank's shard of C."""
        return Output(len(self.rows(shape, rank, ranks)), shape.n, self.pitches(shape)["b"])

    def reference(
        self,
        shape: Shape,
        rank: int,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return the rank's shard of C."""
        return gemm_reference(shape, ranks, seed, family, sum_products, self.rows(shape, rank, ranks))
