"""What the device library has room for, whatever the machine."""

from mkbench.core.errors import UsageError
from mkbench.core.point import Point
from mkbench.core.workloads.gemm import TILE_BYTES

MAX_NODE_RANKS = 16
"""Ranks that share NVLink: kMaxNodeRanks of kernels/mk/types.h."""

MAX_NODES = 64
"""kMaxNodes of kernels/mk/types.h."""

MAX_CHUNK_TILES = (2**18 - 1) * 16 // TILE_BYTES
"""A command counts the bytes of a chunk in units of 16, in 18 bits."""


def check_limits(point: Point) -> None:
    """Raise UsageError, with the limit, if launch parameters or commands cannot hold `point`."""
    _at_most("ranks a node", point.ranks_per_node, MAX_NODE_RANKS, "--ranks-per-node")
    _at_most("nodes", point.nodes, MAX_NODES, "--nodes")
    if point.nodes > 1:
        _at_most("tiles a chunk on several nodes", point.chunk_tiles, MAX_CHUNK_TILES, "chunk_tiles")


def _at_most(what: str, value: int, most: int, setting: str) -> None:
    if value > most:
        raise UsageError(
            f"{value} {what} are more than the limit of {most}", hint=f"set {setting} to at most {most}"
        )
