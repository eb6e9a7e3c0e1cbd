"""AllGather + GEMM: C_r[m, n] = A[m, k] @ B_r[k, n] on rank r; the rows of A are dealt out to the ranks."""

import numpy as np

from mkbench.core.cluster import ClusterProfile
from mkbench.core.workloads import gemm
from mkbench.core.workloads.base import (
    Buffer,
    Family,
    Matrix,
    Output,
    Precision,
    Shape,
    SumProducts,
    sum_products,
)
from mkbench.core.workloads.gemm import ELEMENT_BYTES, GemmWorkload, aligned, ceil_div
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_tolerance

STRIPS = 128
"""Strips of a shard, if that makes them no smaller and no larger than the following."""
LEAST_STRIP_BYTES, MOST_STRIP_BYTES = 16 << 10, 128 << 10

_MOST_PUT_BYTES = (2**18 - 1) * 16 // 128 * 128
"""A command counts bytes in units of 16, in 18 bits; the next piece begins at a multiple of 128."""


class AgGemm(GemmWorkload):
    """The workload of `ag_gemm`."""

    name = "ag_gemm"
    summary = "AllGather + GEMM (tensor parallel): M = K = size, N = size / ranks a rank"
    sizes = (4096, 8192, 16384, 32768)
    k_is = "m and k of the whole A, n of one rank"
    is_replicated = False

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return M = K = size, N = size / ranks, rounded up."""
        return Shape(m=gemm.positive(size), n=ceil_div(size, ranks), k=size)

    def shard_rows(self, shape: Shape, ranks: int) -> int:
        """Return the rows of a shard; those of the last ranks have fewer, or none."""
        return ceil_div(shape.m, ranks)

    def rows_of(self, shape: Shape, rank: int, ranks: int) -> int:
        """Return the rows that `rank` starts with."""
        most = self.shard_rows(shape, ranks)
        return max(0, min(most, shape.m - rank * most))

    def chunks(self, shape: Shape, ranks: int) -> int:
        """Return the most chunks, the rows of one tile each, that a shard has."""
        return ceil_div(self.shard_rows(shape, ranks), gemm.TILE_M)

    def strip_rows(self, shape: Shape, ranks: int) -> int:
        """Return the rows that one communication task copies: a tile's, halved until they are few bytes.

        Few enough that there is a strip for every block that may communicate, but enough to hide the flags.
        """
        row_bytes = self._row_bytes(shape)
        even = self.shard_rows(shape, ranks) * row_bytes // STRIPS
        most, rows = max(LEAST_STRIP_BYTES, min(even, MOST_STRIP_BYTES)), gemm.TILE_M
        while rows % 2 == 0 and rows * row_bytes > most:
            rows //= 2
        return rows

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return 1: what travels is the rows of one tile."""
        return 1

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload of one rank; sizes are multiples of 128 bytes.

        a[shard, lda], b[k, ldb], out[m, ldb] and full[m, lda], where shards are gathered, are row-major with
        padded rows. outbox and inbox, which the network moves, hold whole chunks: as many as are ever sent
        with two nodes, with more nodes two shards' worth, however many nodes there are.
        """
        ranks = nodes * ranks_per_node
        sizes = {
            "a": self.shard_rows(shape, ranks) * self._row_bytes(shape),
            "b": shape.k * self.pitches(shape)["b"] * ELEMENT_BYTES,
            "out": self.output(shape, 0, ranks).bytes,
        }
        if ranks > 1:
            sizes["full"] = shape.m * self._row_bytes(shape)
        slots = min(nodes - 1, 2) * self.chunks(shape, ranks)
        box = slots * gemm.TILE_M * self._row_bytes(shape)
        return [Buffer(name, aligned(size)) for name, size in sizes.items()] + [
            Buffer(name, aligned(box), network=True) for name in ("outbox", "inbox") if box
        ]

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly.

        Words are 64 bits: of each chunk one to say that it is here and counters, of each that comes over
        the network one a piece and a credit.
        """
        chunks, pieces = self.chunks(shape, nodes * ranks_per_node), self._pieces(shape)
        words = chunks * (nodes * ranks_per_node + nodes + 1 + (nodes - 1) * (pieces + 1))
        return 8 * words + gemm.HISTORY_BYTES

    def parameters(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return m, n, k, the padded row lengths, and how rows are dealt out, as the kernel names them."""
        return {
            **shape.to_json(),
            "lda": self.pitches(shape)["a"],
            "ldb": self.pitches(shape)["b"],
            "shard_rows": self.shard_rows(shape, nodes * ranks_per_node),
            "strip_rows": self.strip_rows(shape, nodes * ranks_per_node),
        }

    def tiles(self, shape: Shape, ranks: int) -> int:
        """Return all tiles of C, which are cut where shards end."""
        shards = (self.rows_of(shape, rank, ranks) for rank in range(ranks))
        return sum(ceil_div(rows, gemm.TILE_M) for rows in shards) * ceil_div(shape.n, gemm.TILE_N)

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the compute and the communication tasks of local rank 0, which has the most.

        A rank copies every strip of its own shard and of those of its rail peers once, to its whole node.
        """
        ranks = nodes * ranks_per_node
        shards = (self.rows_of(shape, rank, ranks) for rank in range(0, ranks, ranks_per_node))
        strips = sum(ceil_div(rows, self.strip_rows(shape, ranks)) for rows in shards)
        return self.tiles(shape, ranks), strips if ranks > 1 else 0

    def node_bytes(self, shape: Shape, ranks_per_node: int) -> float:
        """Return what enters one rank over NVLink, unpadded: the shards of all other rails."""
        return (ranks_per_node - 1) / ranks_per_node * shape.m * shape.k * ELEMENT_BYTES

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the bytes between nodes of one launch, over all ranks, in padded rows.

        Every row crosses once to every other node.
        """
        return (nodes - 1) * shape.m * self._row_bytes(shape)

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return a time that no run can beat, from unpadded bytes; None if a rate that counts is unknown."""
        others = (cluster.nodes - 1) / cluster.nodes
        return gemm.bound_us(
            cluster,
            flops=self.flops_per_rank(shape),
            node_bytes=self.node_bytes(shape, cluster.ranks_per_node),
            network_bytes=others * shape.m * shape.k * ELEMENT_BYTES / cluster.ranks_per_node,
        )

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return the partition that the hardware's rates make even, or a quarter of the blocks without rates.

        A communication task writes a strip to every rank of the node. What is gathered last is computed after
        it: as in the controller, communication is to end a tile earlier, if that is no more than a quarter.
        """
        tiles, strips = self.tasks(shape, cluster.nodes, cluster.ranks_per_node, 1)
        strip_bytes = self.strip_rows(shape, cluster.ranks) * self._row_bytes(shape)
        return gemm.even_partition(
            cluster,
            k=shape.k,
            tiles=tiles - min(cluster.blocks, tiles // 4),
            tasks=strips,
            task_tiles=cluster.ranks_per_node * strip_bytes / gemm.TILE_BYTES,
        )

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> dict[str, Matrix]:
        """Return this rank's rows of A, and B[k, n]."""
        rows = self.rows_of(shape, rank, ranks)
        a, b = gemm_inputs(Shape(m=rows, n=shape.n, k=shape.k), rank, 1, seed, family)
        return {"a": a, "b": b}

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return C[m, n] of any rank."""
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
        """Return C[m, n] of `rank`, exactly, or from float64 for the normal family."""
        precision: Precision = np.float32 if family == "exact" else np.float64
        b = self.inputs(shape, rank, ranks, seed, family)["b"]
        c = np.empty((shape.m, shape.n), np.float32)
        row = 0
        for owner in range(ranks):
            rows = self.rows_of(shape, owner, ranks)
            # A is made before B, so it is the same without one.
            a, _ = gemm_inputs(Shape(m=rows, n=0, k=shape.k), owner, 1, seed, family)
            c[row : row + rows] = sum_products([(a, b)], precision)
            row += rows
        return c

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family, summed by one rank."""
        return gemm_tolerance(shape, 1)

    def _row_bytes(self, shape: Shape) -> int:
        return self.pitches(shape)["a"] * ELEMENT_BYTES

    def _pieces(self, shape: Shape) -> int:
        """The puts of one chunk."""
        return ceil_div(gemm.TILE_M * self._row_bytes(shape), _MOST_PUT_BYTES)
