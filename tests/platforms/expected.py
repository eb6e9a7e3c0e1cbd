"""What a launch must come to, counted here from a shape alone and not by the code under test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim_rig import TILE_BYTES, TILE_M, TILE_N, Case

from mkbench.core.workloads.routing import routing_of

WINDOW = 256
#: A command counts bytes in units of 16, in 18 bits; the next piece of a chunk begins at a multiple of 128.
MOST_PUT_BYTES = (2**18 - 1) * 16


@dataclass(frozen=True)
class Expected:
    """Elements that are compared, bytes between nodes and commands of the proxies, over all ranks."""

    elements: int
    payload_bytes: int
    commands: int


def expected(case: Case) -> Expected:
    """One launch of `case`."""
    return _OF[case.point.kernel](case)


def shards(total: int, ranks: int) -> list[int]:
    """The part of each rank: equal ones, the last ones cut or empty."""
    size = ceil_div(total, ranks)
    return [min(size, max(0, total - rank * size)) for rank in range(ranks)]


def row_bytes(case: Case) -> int:
    """A row of A of ag_gemm."""
    return ceil_div(case.point.shape.k, 8) * 16


def shard_tiles(case: Case) -> list[int]:
    """Tiles of each rank's shard of C of gemm_rs."""
    columns = ceil_div(case.point.shape.n, TILE_N)
    return [ceil_div(rows, TILE_M) * columns for rows in shards(case.point.shape.m, case.point.ranks)]


def strips(case: Case) -> list[int]:
    """Tiles of keys of each rank of ring_attention, over all heads."""
    shape, ranks = case.point.shape, case.point.ranks
    pieces = shards(shape.s, (1 + shape.causal) * ranks)
    # Causal: the first piece and the last to rank 0, and so on inward.
    own = [(pieces[r], pieces[-1 - r]) if shape.causal else (pieces[r],) for r in range(ranks)]
    return [shape.b * shape.g * sum(ceil_div(rows, TILE_M) for rows in each) for each in own]


def crossings(case: Case) -> Iterator[list[set[int]]]:
    """For each window of a rank's tokens and other node: the experts there of each token that crosses."""
    point = case.point
    chosen = routing_of(point.shape).experts.tolist()
    share, first = ceil_div(point.shape.experts, point.ranks), 0
    for rank, count in enumerate(shards(point.shape.t, point.ranks)):
        tokens = chosen[first : first + count]
        first += count
        for start in range(0, count, WINDOW):
            for node in set(range(point.nodes)) - {rank // point.ranks_per_node}:
                there = (
                    {expert for expert in token if expert // share // point.ranks_per_node == node}
                    for token in tokens[start : start + WINDOW]
                )
                yield [experts for experts in there if experts]


def _gemm_ar(case: Case) -> Expected:
    """Each node sends its sum of every tile to each other node, and each rank that owns any a credit."""
    point, own = case.point, [case.own_tiles(rank) for rank in range(case.point.ranks)]
    puts = sum(ceil_div(tiles, point.chunk_tiles) + (tiles > 0) for tiles in own)
    return Expected(
        elements=point.ranks * point.shape.m * point.shape.n,
        payload_bytes=point.nodes * (point.nodes - 1) * case.tiles * TILE_BYTES,
        commands=(point.nodes - 1) * puts,
    )


def _gemm_rs(case: Case) -> Expected:
    """Each other node sends its sum of a shard's tiles, and gets a credit if there are any."""
    point, tiles = case.point, shard_tiles(case)
    puts = sum(ceil_div(each, point.chunk_tiles) + (each > 0) for each in tiles)
    return Expected(
        elements=point.shape.m * point.shape.n,
        payload_bytes=(point.nodes - 1) * sum(tiles) * TILE_BYTES,
        commands=(point.nodes - 1) * puts,
    )


def _ag_gemm(case: Case) -> Expected:
    """Every row crosses once to every other node, the rows of a tile at a time; each has a credit."""
    point = case.point
    piece = _piece_bytes(case)
    puts = 0
    for rows in shards(point.shape.m, point.ranks):
        for start in range(0, rows, TILE_M):
            puts += 1 + ceil_div(min(TILE_M, rows - start) * row_bytes(case), piece)
    return Expected(
        elements=point.ranks * point.shape.m * point.shape.n,
        payload_bytes=(point.nodes - 1) * point.shape.m * row_bytes(case),
        commands=(point.nodes - 1) * puts,
    )


def _piece_bytes(case: Case) -> int:
    """A whole chunk, cut into as few equal pieces as commands can hold."""
    chunk = TILE_M * row_bytes(case)
    pieces = ceil_div(chunk, MOST_PUT_BYTES // 128 * 128)
    return ceil_div(ceil_div(chunk, 128), pieces) * 128


def _moe_dispatch_gemm(case: Case) -> Expected:
    """Padded rows of tokens, each once to a node, and for each window a list: where each of its experts
    begins, and 8 bytes for a choice. A rank gives a credit to each other node.
    """
    point = case.point
    row = ceil_div(2 * point.shape.hidden, 128) * 128
    words = 2 + point.ranks_per_node * ceil_div(point.shape.experts, point.ranks)
    header = ceil_div(4 * words, 16) * 16
    payload, puts = 0, point.ranks * (point.nodes - 1)
    for tokens in crossings(case):
        payload += len(tokens) * row + header + ceil_div(8 * sum(map(len, tokens)), 16) * 16
        puts += 1 + ceil_div(len(tokens), point.chunk_tiles)
    rows = point.shape.t * point.shape.topk
    # The weight of each row lies beside it.
    return Expected(elements=rows * (point.shape.inter + 1), payload_bytes=payload, commands=puts)


def _ring_attention(case: Case) -> Expected:
    """The keys and values of every rank go to each other node, in chunks of tiles; each has a credit."""
    point, shape = case.point, case.point.shape
    chunks = sum(ceil_div(each, point.chunk_tiles) for each in strips(case))
    return Expected(
        elements=shape.b * shape.h * shape.s * shape.d,
        payload_bytes=(point.nodes - 1) * 4 * shape.b * shape.g * shape.s * shape.d,
        commands=(point.nodes - 1) * 2 * chunks,
    )


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


_OF = {
    "gemm_ar": _gemm_ar,
    "gemm_rs": _gemm_rs,
    "ag_gemm": _ag_gemm,
    "moe_dispatch_gemm": _moe_dispatch_gemm,
    "ring_attention": _ring_attention,
}
