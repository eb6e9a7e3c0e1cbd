"""MoE dispatch + grouped GEMM: tokens go to the ranks of their experts, which multiply them by weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkbench.core.cluster import ClusterProfile
from mkbench.core.errors import UsageError
from mkbench.core.names import unknown
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
from mkbench.core.workloads.gemm import ELEMENT_BYTES, aligned, ceil_div, up
from mkbench.core.workloads.gemm_inputs import gemm_inputs, gemm_tolerance
from mkbench.core.workloads.routing import Deal, routing_of

HIDDEN, INTER, EXPERTS, TOPK = 7168, 2048, 256, 8
CHUNK_TOKENS, CHUNK_BYTES = 16, 512 << 10
WINDOW = 256
"""kWindow of the kernel: tokens that are routed, and told to others, together."""

MAX_EXPERTS, MAX_TOPK, MAX_TOKENS = 2048, 128, 1 << 24
"""What a window's routing may take of a block's shared memory and of a put, and what 32 bits count."""

_MOST_PUT_BYTES = (2**18 - 1) * 16 // 128 * 128
"""A command counts bytes in units of 16, in 18 bits; the next chunk begins at a multiple of 128."""

_TOKEN_LEADING = 64
"""A row of tokens is padded to 128 bytes, since a chunk may begin with any."""

_DIMENSIONS = ("t", "hidden", "inter", "experts", "topk", "skew")


class MoeDispatchGemm:
    """The workload of `moe_dispatch_gemm`.

    Extents: `t` tokens in all, of `hidden` elements, `inter` columns of an expert's weight, `experts`,
    `topk`, and, where experts are not chosen alike, the `skew` of routing.py.
    """

    name = "moe_dispatch_gemm"
    summary = (
        "MoE dispatch + grouped GEMM (expert parallel): size = all tokens; 256 experts, top-8, 7168 x 2048"
    )
    sizes = (8192, 16384, 32768, 65536, 131072)
    small = MappingProxyType({"t": 256, "hidden": 256, "inter": 256, "experts": 16, "topk": 2})
    is_replicated = False

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return `size` tokens in all of a layer with 256 experts, uniformly chosen.

        Raises UsageError if there are too many.
        """
        layer = {"hidden": HIDDEN, "inter": INTER, "experts": EXPERTS, "topk": TOPK}
        return self.shape_from({"t": gemm.positive(size), **layer})

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return the shape of {"t": ..., "hidden": ..., "inter": ..., "experts": ..., "topk": ...}."""
        for name in dims:
            if name not in _DIMENSIONS:
                raise unknown("dimension", name, _DIMENSIONS, f" of {self.name}")
        for name in _DIMENSIONS[:-1]:
            if dims.get(name, 0) < 1:
                raise UsageError(
                    f"{self.name} needs a positive {name}, got {dims.get(name, 'none')}",
                    hint="give t (all tokens), hidden, inter, experts and topk; skew is 0 unless given",
                )
        _at_most("experts", dims["experts"], MAX_EXPERTS)
        _at_most("topk", dims["topk"], min(MAX_TOPK, dims["experts"]))
        _at_most("t", dims["t"], min(MAX_TOKENS, 2**31 // dims["topk"] - 1))
        _at_most("hidden", dims["hidden"], _MOST_PUT_BYTES // ELEMENT_BYTES)
        # A skew of 0 is left out, so that a shape has one label however it was given.
        return Shape(**{name: dims[name] for name in _DIMENSIONS if dims.get(name)})

    def skewed(self, shape: Shape, skew: int) -> Shape:
        """Return `shape` with the skew of routing.py."""
        return self.shape_from({**shape.to_json(), "skew": skew})

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return the tokens a chunk: 16, or as many as are 512 KiB."""
        return max(1, min(CHUNK_TOKENS, CHUNK_BYTES // self._token_bytes(shape)))

    def flops_per_rank(self, shape: Shape, ranks: int) -> float:
        """Return the mean over ranks: 2 hidden inter for each choice of a token."""
        return 2.0 * shape.hidden * shape.inter * shape.t * shape.topk / ranks

    def pitches(self, shape: Shape) -> dict[str, int]:
        """Return the elements from row to row of tokens and of weights."""
        return {"x": up(shape.hidden, _TOKEN_LEADING), "w": up(shape.inter, 8)}

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return what one rank keeps; sizes are multiples of 128 bytes.

        x[shard, lda] has the own tokens, w[experts * hidden, ldb] the experts one below the other. gathered
        and out have room for the worst routing: every token with all it can choose here. inbox, and outbox
        and receive, which the network moves, hold a shard for each other node. The rest is metadata.
        """
        self._check_chunk(shape, chunk_tiles)
        plan = _Plan.of(shape, nodes, ranks_per_node)
        pitch = self.pitches(shape)
        entries = plan.local_experts * plan.ranks * plan.windows
        bank = plan.windows * WINDOW * self._token_bytes(shape)
        lists = plan.windows * plan.list_bytes
        metadata = {
            "ids": 4 * plan.shard * shape.topk,
            "weights": 4 * plan.shard * shape.topk,
            "lists": nodes * lists,
            "packs": 4 * nodes * plan.windows * WINDOW,
            "counts": 2 * 4 * nodes * plan.windows,
            "segments": 8 * entries,
            "places": 16 * entries,
            "expert_rows": 16 * (plan.local_experts + 1),
            "row_blocks": 8 * plan.most_blocks,
            "order": 4 * plan.most_blocks,
            "out_rows": 4 * gemm.TILE_M * plan.most_blocks,
            "row_weights": 4 * plan.most_rows,
        }
        payload = {
            "x": plan.shard * self._token_bytes(shape),
            "w": plan.local_experts * shape.hidden * pitch["w"] * ELEMENT_BYTES,
            "gathered": plan.most_blocks * gemm.TILE_M * self._token_bytes(shape),
            "inbox": (nodes - 1) * bank,
            "out": plan.most_rows * pitch["w"] * ELEMENT_BYTES,
        }
        others = nodes - 1
        return [
            *(Buffer(name, aligned(size), metadata=True) for name, size in metadata.items()),
            *(Buffer(name, aligned(size)) for name, size in payload.items()),
            *(
                Buffer(name, aligned(others * lists), network=True, metadata=True)
                for name in ("list_outbox", "list_inbox")
            ),
            *(Buffer(name, aligned(others * bank), network=True) for name in ("outbox", "receive")),
        ]

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly.

        Words are 64 bits: of each block of rows two, of each window one a rank, of each chunk that arrives
        one.
        """
        plan = _Plan.of(shape, nodes, ranks_per_node)
        chunks = ceil_div(min(plan.shard, WINDOW), chunk_tiles)
        words = 2 * plan.most_blocks + plan.windows * (plan.ranks + nodes * (chunks + 2))
        return 8 * words + gemm.HISTORY_BYTES

    def parameters(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return the extents, the padded row lengths, and how tokens and experts are dealt out."""
        self._check_chunk(shape, chunk_tiles)
        plan = _Plan.of(shape, nodes, ranks_per_node)
        return {
            "tokens": shape.t,
            "hidden": shape.hidden,
            "inter": shape.inter,
            "experts": shape.experts,
            "topk": shape.topk,
            "lda": self.pitches(shape)["x"],
            "ldb": self.pitches(shape)["w"],
            "chunk_tokens": chunk_tiles,
            "shard": plan.shard,
            "local_experts": plan.local_experts,
            "most_blocks": plan.most_blocks,
            "list_bytes": plan.list_bytes,
        }

    def tiles(self, shape: Shape, ranks: int, rank: int) -> int:
        """Return the tiles that `rank` computes: every expert has row blocks of its own."""
        deal = Deal(shape, 1, ranks)
        experts = deal.experts(rank)
        rows = deal.expert_rows()[experts.start : experts.stop]
        blocks = sum(ceil_div(int(count), gemm.TILE_M) for count in rows)
        return blocks * ceil_div(shape.inter, gemm.TILE_N)

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the compute and the communication tasks of rank 0, those with nothing to do included.

        A rank sends and lands chunks of tokens, and gathers rows by expert and window of a source.
        """
        plan = _Plan.of(shape, nodes, ranks_per_node)
        chunks = (nodes - 1) * ceil_div(min(plan.shard, WINDOW), chunk_tiles)
        gathers = plan.local_experts * plan.ranks
        return self.tiles(shape, plan.ranks, 0), plan.windows * (2 * chunks + gathers)

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the bytes between nodes of one launch, over all ranks.

        A token crosses once to each other node that has an expert of it, as a padded row. For each window of
        a rank's tokens, every other node gets where the entries of each of its experts are, and an entry for
        each token and expert.
        """
        if nodes == 1:
            return 0
        deal, plan = Deal(shape, nodes, ranks_per_node), _Plan.of(shape, nodes, ranks_per_node)
        total = 0
        for rank in range(plan.ranks):
            choices = np.delete(deal.choices(rank), rank // ranks_per_node, axis=1)
            total += int(np.count_nonzero(choices)) * self._token_bytes(shape)
            for start in range(0, len(choices), WINDOW):
                rows = choices[start : start + WINDOW].sum(axis=0)
                total += sum(up(plan.header_bytes + 8 * int(count), 16) for count in rows)
        return total

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return the slowest of peak computation, NVLink and network, at the rank that has most of each.

        From unpadded bytes and real rows; None if a rate that counts is unknown. Over NVLink comes each token
        of the rank's own node that has an expert here, once.
        """
        deal = Deal(shape, cluster.nodes, cluster.ranks_per_node)
        hosts, token_bytes = deal.hosts(), shape.hidden * ELEMENT_BYTES
        crossing = np.zeros((deal.ranks, cluster.nodes), np.int64)  # from a rank to a node
        for rank in range(deal.ranks):
            crossing[rank] = np.count_nonzero(deal.choices(rank), axis=0)
            crossing[rank, rank // cluster.ranks_per_node] = 0
        leaving = crossing.sum(axis=1)
        rails = crossing.reshape(cluster.nodes, cluster.ranks_per_node, cluster.nodes)
        entering = rails.sum(axis=0)
        nearby = max(self._from_node(deal, hosts, rank) for rank in range(deal.ranks))
        return gemm.bound_us(
            cluster,
            flops=2.0 * shape.hidden * shape.inter * int(deal.rows().max()),
            node_bytes=float(nearby * token_bytes),
            network_bytes=float(max(leaving.max(), entering.max()) * token_bytes),
        )

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return the partition that the hardware's rates make even, or a quarter of the blocks without rates.

        What blocks copy, of a mean rank: its rows, and what it sends and lands.
        """
        deal = Deal(shape, cluster.nodes, cluster.ranks_per_node)
        rows = shape.t * shape.topk / deal.ranks
        crossing = sum(int(np.count_nonzero(deal.choices(rank))) for rank in range(deal.ranks)) / deal.ranks
        copies = rows + (2 * crossing if cluster.nodes > 1 else 0)
        tiles = sum(self.tiles(shape, deal.ranks, rank) for rank in range(deal.ranks))
        return gemm.even_partition(
            cluster,
            k=shape.hidden,
            tiles=max(1, tiles // deal.ranks),
            tasks=copies * self._token_bytes(shape) / gemm.TILE_BYTES,
            task_tiles=1,
        )

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> dict[str, Matrix]:
        """Return the tokens of one rank, and the weights of its experts, one below the other."""
        return {
            "x": self._tokens(shape, rank, ranks, seed, family),
            "w": self._weights(shape, rank, ranks, seed, family),
        }

    def metadata_inputs(self, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
        """Return what the router chose for the tokens of one rank: experts (int32) and weights (float32)."""
        tokens, routing = Deal(shape, 1, ranks).tokens(rank), routing_of(shape)
        return {
            "ids": routing.experts[tokens.start : tokens.stop],
            "weights": routing.weights[tokens.start : tokens.stop],
        }

    def metadata_outputs(self, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
        """Return the router's weight of each row of the result, which whoever combines the rows needs."""
        return {"row_weights": Deal(shape, 1, ranks).of_rank(rank)[2]}

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return a row for each choice of an expert of `rank`: by expert, then by source rank and token."""
        return Output(int(Deal(shape, 1, ranks).rows()[rank]), shape.inter, self.pitches(shape)["w"])

    def reference(
        self,
        shape: Shape,
        rank: int,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return each row's token times its expert, exactly, or from float64 for the normal family."""
        precision: Precision = np.float32 if family == "exact" else np.float64
        deal = Deal(shape, 1, ranks)
        token, expert, _ = deal.of_rank(rank)
        rows = np.empty((len(token), shape.hidden), np.float32)
        for source in range(ranks):
            first = deal.tokens(source).start
            of_source = (token >= first) & (token < deal.tokens(source).stop)
            if of_source.any():
                x = self._tokens(shape, source, ranks, seed, family)
                rows[of_source] = x[token[of_source] - first]
        weights = self._weights(shape, rank, ranks, seed, family)
        result = np.empty((len(token), shape.inter), np.float32)
        for index, chosen in enumerate(deal.experts(rank)):
            here = expert == chosen
            if here.any():
                weight = weights[index * shape.hidden : (index + 1) * shape.hidden]
                result[here] = sum_products([(rows[here], weight)], precision)
        return result

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest absolute error of a right result of the normal family; no sum is over ranks."""
        return gemm_tolerance(Shape(m=1, n=1, k=shape.hidden), 1)

    def _tokens(self, shape: Shape, rank: int, ranks: int, seed: int, family: Family) -> Matrix:
        rows = len(Deal(shape, 1, ranks).tokens(rank))
        return gemm_inputs(Shape(m=rows, n=0, k=shape.hidden), rank, 1, seed, family)[0]

    def _weights(self, shape: Shape, rank: int, ranks: int, seed: int, family: Family) -> Matrix:
        # Of the numbers that follow those of all tokens, so that no weight repeats them.
        k = len(Deal(shape, 1, ranks).experts(rank)) * shape.hidden
        return _weights(k, shape.inter, ranks + rank, seed, family)

    @staticmethod
    def _from_node(deal: Deal, hosts: NDArray[np.int32], rank: int) -> int:
        """Return the tokens of other ranks of the node that have an expert on `rank`."""
        first = rank // deal.ranks_per_node * deal.ranks_per_node
        node = [deal.tokens(first + i) for i in range(deal.ranks_per_node)]
        here = [(hosts[tokens.start : tokens.stop] == rank).any(axis=1).sum() for tokens in node]
        return int(sum(here) - here[rank - first])

    def _token_bytes(self, shape: Shape) -> int:
        return self.pitches(shape)["x"] * ELEMENT_BYTES

    def _check_chunk(self, shape: Shape, chunk_tokens: int) -> None:
        most = _MOST_PUT_BYTES // self._token_bytes(shape)
        if chunk_tokens > most:
            raise UsageError(
                f"{chunk_tokens} tokens of {self._token_bytes(shape)} bytes are more than a command can move",
                hint=f"set chunk_tiles, which counts tokens here, to at most {most}",
            )


# Whatever the tokens, and the largest of all inputs: seconds to make.
@lru_cache(maxsize=2)
def _weights(k: int, n: int, stream: int, seed: int, family: Family) -> Matrix:
    weights = gemm_inputs(Shape(m=0, n=n, k=k), stream, 1, seed, family)[1]
    weights.setflags(write=False)
    return weights


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes that hold whatever the routing."""

    ranks: int
    shard: int
    windows: int
    local_experts: int
    most_rows: int
    most_blocks: int
    header_bytes: int
    list_bytes: int

    @classmethod
    def of(cls, shape: Shape, nodes: int, ranks_per_node: int) -> "_Plan":
        deal = Deal(shape, nodes, ranks_per_node)
        local, on_node = deal.local_experts, ranks_per_node * deal.local_experts
        most_rows = shape.t * min(shape.topk, local)
        # A block of rows is of one expert; an expert has at most all tokens.
        cut = (most_rows + local * (gemm.TILE_M - 1)) // gemm.TILE_M
        # How many tokens and rows there are, and where each expert's entries begin.
        header = up(4 * (on_node + 2), 16)
        return cls(
            ranks=deal.ranks,
            shard=deal.shard,
            windows=ceil_div(deal.shard, WINDOW),
            local_experts=local,
            most_rows=most_rows,
            most_blocks=min(local * ceil_div(shape.t, gemm.TILE_M), cut),
            header_bytes=header,
            list_bytes=up(header + 8 * WINDOW * min(shape.topk, on_node), 128),
        )


def _at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise UsageError(f"{name} {value} is more than the limit of {most}", hint=f"choose at most {most}")
