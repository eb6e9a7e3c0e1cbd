"""What workloads have in common that sum the products of all ranks."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from mkbench.core.workloads import gemm
from mkbench.core.workloads.base import REDUCTIONS, Buffer, Family, Matrix, Output, Reduction, Shape
from mkbench.core.workloads.gemm import ELEMENT_BYTES, GemmWorkload, aligned, ceil_div
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_tolerance

CHUNK_TILES = 4


@dataclass(frozen=True, slots=True)
class Deal:
    """How tiles are dealt out.

    Every rank computes `tiles`; one rank sums the partials of at most `slots` of them for its node, and gets
    the sums of at most `bank` tiles from each other node.
    """

    tiles: int
    slots: int
    bank: int


class GemmReduction(GemmWorkload, ABC):
    """C[m, n] = sum over ranks of A[m, k] @ B[k, n]: every rank has an A and a B of its own."""

    k_is = "k of one rank"

    def __init__(self, reduction: Reduction = "ordered") -> None:
        self.reduction = reduction

    def reducing(self, reduction: Reduction) -> Self:
        """Return this workload with another way to sum the partials of a node.

        "ordered": every rank keeps its partials, and a tile's owner reads them in rank order. "atomic": every
        rank adds its own to the owner's accumulator, in whatever order they come.
        """
        return type(self)(reduction)

    @property
    def is_atomic(self) -> bool:
        """Whether ranks add to accumulators."""
        return self.reduction == "atomic"

    @abstractmethod
    def deal(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> Deal:
        """Return how tiles are dealt out."""

    @abstractmethod
    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return how much of C one rank ends up with; rank 0 has the most."""

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return M = N = size, K = size / ranks, rounded up."""
        return Shape(m=gemm.positive(size), n=size, k=ceil_div(size, ranks))

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return 4 tiles (256 KiB), or fewer so that every rank of a node owns a chunk if it can."""
        return max(1, min(CHUNK_TILES, gemm.plan_tiles(shape.m, shape.n) // ranks_per_node))

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload of one rank; sizes are multiples of 128 bytes.

        a[m, lda], b[k, ldb] and out[rows, ldb] are row-major with padded rows; partial or accumulator,
        node_sum and receive are whole tiles, one after the other. node_sum and receive are what the network
        moves.
        """
        pitches = self.pitches(shape)
        deal = self.deal(shape, nodes, ranks_per_node, chunk_tiles)
        summed = ("accumulator", deal.slots) if self.is_atomic else ("partial", deal.tiles)
        sizes = {
            "a": shape.m * pitches["a"] * ELEMENT_BYTES,
            "b": shape.k * pitches["b"] * ELEMENT_BYTES,
            summed[0]: summed[1] * gemm.TILE_BYTES,
            "out": self.output(shape, 0, nodes * ranks_per_node).bytes,
        }
        moved = {"node_sum": deal.slots, "receive": (nodes - 1) * deal.bank} if nodes > 1 else {}
        return [Buffer(name, aligned(size)) for name, size in sizes.items()] + [
            Buffer(name, aligned(tiles * gemm.TILE_BYTES), network=True) for name, tiles in moved.items()
        ]

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly.

        Words are 64 bits: of each slot one a rank of the node, of each own chunk a counter, and of each chunk
        that arrives one a node.
        """
        deal = self.deal(shape, nodes, ranks_per_node, chunk_tiles)
        arriving = ceil_div(deal.bank, chunk_tiles)
        words = deal.slots * ranks_per_node + arriving * (deal.slots // deal.bank + nodes)
        return 8 * words + gemm.HISTORY_BYTES

    def parameters(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return m, n, k, the padded row lengths, and how tiles are dealt out, as the kernel names them."""
        return {
            **shape.to_json(),
            "lda": self.pitches(shape)["a"],
            "ldb": self.pitches(shape)["b"],
            "chunk_tiles": chunk_tiles,
            "slots": self.deal(shape, nodes, ranks_per_node, chunk_tiles).slots,
            "reduction": REDUCTIONS.index(self.reduction),
        }

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family.

        The ordered reduction rounds three times, as `gemm_tolerance` says. Atomic additions round instead of
        the node sum each sum on the way to it, of which there is one a rank of the node. None of them is
        larger than the node sum by its deviation, so their errors add up, in quadrature, to at most
        sqrt(ranks) times that of one rounding, and all errors to sqrt((ranks + 2) / 3) times those of three.
        """
        roundings = ranks + 2 if self.is_atomic else 3
        return gemm_tolerance(shape, ranks) * math.sqrt(roundings / 3)

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> dict[str, Matrix]:
        """Return A[m, k] and B[k, n] of one rank."""
        a, b = gemm_inputs(shape, rank, ranks, seed, family)
        return {"a": a, "b": b}
