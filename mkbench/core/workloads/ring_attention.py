"""Ring attention: the positions of a sequence are dealt out to the ranks, which exchange keys and values."""

from collections.abc import Mapping
from types import MappingProxyType

from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
from mkbench.core.partition import Work, balanced
from mkbench.core.workloads import gemm
from mkbench.core.workloads.attention_inputs import (
    attention_inputs,
    attention_reference,
    attention_tolerance,
    piece_rows,
    pieces,
    rows_of,
)
from mkbench.core.workloads.base import Buffer, Family, Matrix, Output, Shape, SumProducts, sum_products
from mkbench.core.workloads.gemm import ELEMENT_BYTES, aligned, ceil_div

TILE_ROWS = 128
"""Positions of a tile, of queries and of keys: kQueryRows and kKeyRows of kernels/mk/attention.h."""

CHUNK_TILES = 4

_DEFAULTS = {"b": 4, "h": 16, "d": 128, "causal": 0}
_DIMENSIONS = ("b", "h", "g", "s", "d", "causal")
_HINT = "s is the whole sequence; b batch, h heads, g heads of keys, d their dimension, causal 0 or 1"
_HEAD_DIMENSIONS = (64, 128)
_MOST_POSITIONS = 2**31 - 1


class RingAttention:
    """The workload of `ring_attention`."""

    name = "ring_attention"
    summary = "Ring attention (sequence parallel): total sequence = size, batch 4, 16 heads of dimension 128"
    sizes = (12288, 24576, 49152, 98304, 196608)
    small = MappingProxyType({"b": 1, "h": 4, "s": 512, "d": 64})
    is_replicated = False

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return a sequence of `size` in all, batch 4, 16 heads of dimension 128, of queries as of keys."""
        return self.shape_from({"s": gemm.positive(size)})

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return the shape of {"s": ...} and what differs from the defaults; g is h unless given."""
        for name in dims:
            if name not in _DIMENSIONS:
                raise unknown("dimension", name, _DIMENSIONS, f" of {self.name}")
        given = {**_DEFAULTS, "g": dims.get("h", _DEFAULTS["h"]), **dims}
        for name in ("b", "h", "g", "s"):
            if not 1 <= given.get(name, 0) <= _MOST_POSITIONS:
                raise UsageError(
                    f"{self.name} needs {name} from 1 to {_MOST_POSITIONS}, got {given.get(name, 'none')}",
                    hint=_HINT,
                )
        if given["h"] % given["g"]:
            raise UsageError(f"{given['h']} heads do not share {given['g']} heads of keys evenly", hint=_HINT)
        for name, allowed in (("d", _HEAD_DIMENSIONS), ("causal", (0, 1))):
            if given[name] not in allowed:
                choice = " or ".join(map(str, allowed))
                raise UsageError(f"{self.name} has no {name} = {given[name]}", hint=f"choose {choice}")
        return Shape(**{name: given[name] for name in _DIMENSIONS})

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return 4 tiles of keys and values, 256 KiB with d = 128."""
        return CHUNK_TILES

    def flops_per_rank(self, shape: Shape, ranks: int) -> float:
        """Return 4 d for each score, for two products; the mean over ranks."""
        scores = shape.s * (shape.s + 1) // 2 if shape.causal else shape.s**2
        return 4.0 * shape.b * shape.h * scores * shape.d / ranks

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload of one rank; sizes are multiples of 128 bytes.

        q and out[b, h, rows, d], k and v[b, g, rows, d] are of the own positions, kv of all. outbox and
        inbox, which the network moves, hold whole chunks: as many as are ever sent with two nodes, with more
        nodes about two shards' worth, however many nodes there are.
        """
        ranks = nodes * ranks_per_node
        most = max(rows_of(shape, rank, ranks) for rank in range(ranks))
        queries = shape.b * shape.h * most * shape.d * ELEMENT_BYTES
        keys = shape.b * shape.g * most * shape.d * ELEMENT_BYTES
        sizes = {"q": queries, "k": keys, "v": keys, "out": queries}
        if ranks > 1:
            sizes["kv"] = self.sequence_bytes(shape)
        box = self._slots(shape, nodes, ranks, chunk_tiles) * chunk_tiles * TILE_ROWS * _row_bytes(shape)
        return [Buffer(name, aligned(size)) for name, size in sizes.items()] + [
            Buffer(name, aligned(box), network=True) for name in ("outbox", "inbox") if box
        ]

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly.

        Words are 64 bits: of each chunk one to say that it is here and counters, of each that comes over
        the network an arrival and a credit.
        """
        ranks = nodes * ranks_per_node
        chunks = ceil_div(self._most_strips(shape, ranks), chunk_tiles)
        return 8 * chunks * (ranks + nodes + 1 + 2 * (nodes - 1)) + gemm.HISTORY_BYTES

    def parameters(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return the extents, and how positions are dealt out, as the kernel names them."""
        ranks = nodes * ranks_per_node
        return {**shape.to_json(), "piece_rows": piece_rows(shape, ranks), "chunk_tiles": chunk_tiles}

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the most compute and communication tasks of a rank.

        One is a tile of keys that a tile of queries sees, or a tile of keys and values that is copied: those
        of the own shard and of its rail peers, each once, to the whole node.
        """
        ranks = nodes * ranks_per_node
        computed = max(self._tiles_seen(shape, rank, ranks) for rank in range(ranks))
        rails = range(ranks_per_node)
        copied = (
            sum(self._tiles(shape, rank, ranks) for rank in range(r, ranks, ranks_per_node)) for r in rails
        )
        return computed, shape.b * shape.g * max(copied) if ranks > 1 else 0

    def sequence_bytes(self, shape: Shape) -> int:
        """Return the bytes of all keys and values."""
        return shape.b * shape.g * shape.s * _row_bytes(shape)

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the bytes between nodes of one launch, over all ranks: all keys and values cross to each."""
        return (nodes - 1) * self.sequence_bytes(shape)

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return the slowest of peak computation, NVLink and network.

        Causal or not, rank 0 needs all keys: what is not its own comes from its node or over the network, of
        which the ranks of its node bring in equal parts.
        """
        node, nodes = cluster.ranks_per_node, cluster.nodes
        everything = self.sequence_bytes(shape)
        return gemm.bound_us(
            cluster,
            flops=self.flops_per_rank(shape, cluster.ranks),
            node_bytes=(node - 1) / node * everything,
            network_bytes=(nodes - 1) / nodes * everything / node,
        )

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return the partition that the hardware's rates make even, or a quarter of the blocks without rates.

        A communication task writes the keys and values of a tile to every rank of the node.
        """
        hardware, blocks = cluster.hardware, cluster.blocks
        rate, copy = hardware.get("gemm_tflops"), hardware.get("sm_copy_gbps")
        if rate is None or copy is None:
            return max(1, blocks // 4)
        computed, copied = self.tasks(shape, cluster.nodes, cluster.ranks_per_node, CHUNK_TILES)
        compute_us = 4.0 * TILE_ROWS**2 * shape.d * hardware.blocks / rate / 1e6
        copy_us = cluster.ranks_per_node * TILE_ROWS * _row_bytes(shape) / copy / 1e3
        return balanced(blocks, Work(copied, copy_us), Work(0.75 * computed, compute_us))

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> dict[str, Matrix]:
        """Return q[b * h * rows, d], k and v[b * g * rows, d] of one rank."""
        return attention_inputs(shape, rank, ranks, seed, family)

    def pitches(self, shape: Shape) -> dict[str, int]:
        """Return d: no padding."""
        return {"q": shape.d, "k": shape.d, "v": shape.d}

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return out[b * h * rows, d] of the own positions, of which there may be none."""
        return Output(shape.b * shape.h * rows_of(shape, rank, ranks), shape.d, shape.d)

    def reference(
        self,
        shape: Shape,
        rank: int,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return out[b * h * rows, d] of `rank`, exactly, or in float32 for the normal family."""
        return attention_reference(shape, rank, ranks, seed, family, sum_products)

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family."""
        return attention_tolerance()

    def _tiles(self, shape: Shape, rank: int, ranks: int) -> int:
        """Tiles of one head of a rank."""
        return sum(ceil_div(piece.rows, TILE_ROWS) for piece in pieces(shape, rank, ranks))

    def _most_strips(self, shape: Shape, ranks: int) -> int:
        """Room for the tiles of keys of one rank, over all heads."""
        return shape.b * shape.g * (1 + shape.causal) * ceil_div(piece_rows(shape, ranks), TILE_ROWS)

    def _slots(self, shape: Shape, nodes: int, ranks: int, chunk_tiles: int) -> int:
        """Chunks of outbox and inbox: a shard's, and as many for all lanes that only pass through."""
        chunks = ceil_div(self._most_strips(shape, ranks), chunk_tiles)
        if nodes < 3:
            return (nodes - 1) * chunks
        return chunks + (nodes - 2) * ceil_div(chunks, nodes - 2)

    def _tiles_seen(self, shape: Shape, rank: int, ranks: int) -> int:
        """Tiles of keys that the tiles of a rank's queries see, over all heads."""
        if not shape.causal:
            seen = self._tiles(shape, rank, ranks) * sum(self._tiles(shape, r, ranks) for r in range(ranks))
            return shape.b * shape.h * seen
        full = ceil_div(piece_rows(shape, ranks), TILE_ROWS)
        counts = ((piece.index, ceil_div(piece.rows, TILE_ROWS)) for piece in pieces(shape, rank, ranks))
        # A tile sees all of the pieces before, and of its own those up to itself.
        return (
            shape.b
            * shape.h
            * sum(count * index * full + count * (count + 1) // 2 for index, count in counts)
        )


def _row_bytes(shape: Shape) -> int:
    """The key and the value of one position of a head."""
    return 2 * shape.d * ELEMENT_BYTES
