"""Random problems of every kernel: small shapes on any small cluster, often cut at the edge of a tile.

`Problem` prints as the text that makes it again, so a failing one can be added to `EXAMPLES` as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from hypothesis import strategies as st
from sim_rig import TILE_M, TILE_N, Case, case_of

from mkbench.core.workloads import KERNELS
from mkbench.core.workloads.base import REDUCTIONS, Reducing

Extents = dict[str, int]
MOST_NODES, MOST_NODE_RANKS = 4, 5
#: The sequence of ring_attention, since work grows with its square.
MOST_POSITIONS = 2000


@dataclass(frozen=True)
class Problem:
    """Everything that a simulation of small launches depends on."""

    kernel: str
    nodes: int
    ranks_per_node: int
    shape: Extents
    blocks: int
    comm_sms: int
    policy: str
    chunk_tiles: int | None
    launches: int
    stress: bool
    seed: int
    reduction: str | None = None

    @property
    def case(self) -> Case:
        """The point, with data."""
        fields = asdict(self)
        for option in ("kernel", "policy", "comm_sms", "launches", "stress"):
            del fields[option]
        return case_of(
            kernels=self.kernel,
            policies=self.policy,
            comm_sms=str(self.comm_sms),
            start_comm_sms=self.comm_sms,
            data=True,
            **fields,
        )


def tails(most: int, *edges: int) -> st.SearchStrategy[int]:
    """From 1 to `most`, often one of the least, the most or `edges`."""
    return st.sampled_from((1, 2, most - 1, most, *edges)) | st.integers(1, most)


@st.composite
def lengths(draw: st.DrawFn, tile: int, most_tiles: int) -> int:
    """Up to so many tiles, the last one cut or not."""
    return draw(st.integers(0, most_tiles - 1)) * tile + draw(tails(tile, 7, 8))


@st.composite
def dealt(draw: st.DrawFn, rows: st.SearchStrategy[int], parts: int) -> int:
    """Rows of so many equal parts, of which the last ones are cut or empty."""
    whole = draw(rows) * parts
    return max(1, whole - draw(st.integers(0, whole - 1) | st.integers(0, 3)))


@st.composite
def gemm_ar(draw: st.DrawFn, ranks: int) -> Extents:
    return {
        "m": draw(lengths(TILE_M, 3)), "n": draw(lengths(TILE_N, 3)), "k": draw(st.integers(1, 48)),
    }  # fmt: skip


@st.composite
def gemm_rs(draw: st.DrawFn, ranks: int) -> Extents:
    m = draw(dealt(lengths(TILE_M, 2), ranks))
    return {"m": m, "n": draw(lengths(TILE_N, 3)), "k": draw(st.integers(1, 48))}


@st.composite
def ag_gemm(draw: st.DrawFn, ranks: int) -> Extents:
    m = draw(dealt(lengths(TILE_M, 3), ranks))
    return {"m": m, "n": draw(lengths(TILE_N, 2)), "k": draw(st.integers(1, 48))}


@st.composite
def moe_dispatch_gemm(draw: st.DrawFn, ranks: int) -> Extents:
    experts = draw(st.integers(1, 24))
    skew = draw(st.sampled_from((0, 0, 100, 400, 3000)) | st.integers(1, 1000))
    return {
        "t": draw(tails(800, 255, 257, 600)),
        "hidden": draw(tails(80, 7, 8, 64, 65)),
        "inter": draw(tails(2 * TILE_N, 8, TILE_N, TILE_N + 1)),
        "experts": experts,
        "topk": draw(st.integers(1, min(6, experts))),
    } | ({"skew": skew} if skew else {})


@st.composite
def ring_attention(draw: st.DrawFn, ranks: int) -> Extents:
    causal, g, groups = draw(st.integers(0, 1)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pieces = (1 + causal) * ranks
    most = min(2 * TILE_M, MOST_POSITIONS // pieces)
    edges = (edge for edge in (64, 65, TILE_M - 1, TILE_M, TILE_M + 1) if edge < most)
    s, d = draw(dealt(tails(most, *edges), pieces)), draw(st.sampled_from((64, 64, 128)))
    return {"b": draw(st.integers(1, 2)), "h": g * groups, "g": g, "s": s, "d": d, "causal": causal}


SHAPES: dict[str, Callable[[int], st.SearchStrategy[Extents]]] = {
    "gemm_ar": gemm_ar,
    "gemm_rs": gemm_rs,
    "ag_gemm": ag_gemm,
    "moe_dispatch_gemm": moe_dispatch_gemm,
    "ring_attention": ring_attention,
}
#: Tiles; of moe_dispatch_gemm tokens. ag_gemm has chunks of its own and lets the setting be.
MOST_CHUNK = {"moe_dispatch_gemm": 40}


@st.composite
def problems(draw: st.DrawFn, kernel: str) -> Problem:
    nodes, ranks_per_node = draw(st.integers(1, MOST_NODES)), draw(st.integers(1, MOST_NODE_RANKS))
    shape = draw(SHAPES[kernel](nodes * ranks_per_node))
    blocks = draw(st.integers(2, 12))
    return Problem(
        kernel,
        nodes,
        ranks_per_node,
        shape,
        blocks,
        comm_sms=draw(st.integers(1, blocks - 1)),
        policy=draw(st.sampled_from(("static", "adaptive"))),
        chunk_tiles=draw(st.none() | st.integers(1, MOST_CHUNK.get(kernel, 5))),
        launches=draw(st.integers(1, 3)),
        stress=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
        reduction=draw(st.sampled_from(REDUCTIONS)) if isinstance(KERNELS[kernel], Reducing) else None,
    )


def _gemm(m: int, n: int, k: int) -> Extents:
    return {"m": m, "n": n, "k": k}


def _moe(t: int, hidden: int, inter: int, experts: int, topk: int, **skew: int) -> Extents:
    return {"t": t, "hidden": hidden, "inter": inter, "experts": experts, "topk": topk, **skew}


def _ring(b: int, h: int, g: int, s: int, d: int, causal: int) -> Extents:
    return {"b": b, "h": h, "g": g, "s": s, "d": d, "causal": causal}


#: Tried each time: several launches in random order, each of which takes its flags, slots and buffers over.
EXAMPLES = (
    Problem("gemm_ar", 2, 2, _gemm(300, 600, 24), 4, 2, "adaptive", 1, 3, True, 1),
    Problem("gemm_ar", 3, 2, _gemm(128, 256, 1), 2, 1, "static", None, 3, True, 2),
    Problem("gemm_ar", 1, 4, _gemm(300, 600, 24), 4, 2, "static", 1, 3, False, 1, "atomic"),
    Problem("gemm_ar", 2, 2, _gemm(300, 600, 24), 4, 2, "adaptive", 1, 3, True, 1, "atomic"),
    Problem("gemm_rs", 2, 2, _gemm(600, 600, 24), 4, 2, "adaptive", 1, 3, True, 1),
    Problem("gemm_rs", 3, 2, _gemm(128, 256, 1), 2, 1, "static", None, 3, True, 2),
    Problem("gemm_rs", 4, 5, _gemm(1, 1, 1), 2, 1, "adaptive", None, 2, False, 3),
    Problem("gemm_rs", 1, 3, _gemm(300, 600, 24), 2, 1, "adaptive", None, 3, True, 2, "atomic"),
    Problem("gemm_rs", 3, 2, _gemm(700, 300, 9), 5, 2, "static", 1, 3, False, 2, "atomic"),
    Problem("ag_gemm", 2, 2, _gemm(600, 300, 24), 4, 2, "adaptive", None, 3, True, 1),
    # A ring that goes round with one block a rank, and forwards through used slots.
    Problem("ag_gemm", 4, 1, _gemm(1500, 9, 8), 2, 1, "static", None, 3, True, 2),
    Problem("ag_gemm", 4, 2, _gemm(3000, 9, 8), 2, 1, "adaptive", None, 2, True, 3),
    # One row; shards that are empty, in the middle of a node and whole nodes.
    Problem("ag_gemm", 4, 5, _gemm(1, 1, 1), 2, 1, "adaptive", None, 2, False, 4),
    Problem("ag_gemm", 4, 3, _gemm(1161, 8, 8), 3, 1, "static", None, 2, True, 5),
    # Several windows a rank.
    Problem("moe_dispatch_gemm", 2, 1, _moe(1100, 24, 300, 6, 3), 4, 2, "adaptive", 7, 3, True, 1),
    Problem("moe_dispatch_gemm", 3, 2, _moe(40, 8, 8, 12, 5), 2, 1, "static", None, 3, True, 2),
    Problem("moe_dispatch_gemm", 4, 1, _moe(300, 8, 8, 9, 4, skew=150), 3, 1, "adaptive", 1, 3, True, 3),
    # One rank; one expert; every token with every expert.
    Problem("moe_dispatch_gemm", 1, 1, _moe(700, 16, 260, 5, 2), 5, 2, "adaptive", None, 2, False, 4),
    Problem("moe_dispatch_gemm", 2, 2, _moe(500, 16, 16, 1, 1), 4, 1, "static", None, 2, True, 5),
    Problem("moe_dispatch_gemm", 2, 3, _moe(130, 16, 16, 6, 6), 4, 1, "adaptive", None, 2, True, 6),
    # Forwarding, with slots that are used again.
    Problem("ring_attention", 4, 1, _ring(1, 1, 1, 3000, 64, 1), 3, 1, "adaptive", 1, 3, True, 1),
    Problem("ring_attention", 3, 2, _ring(2, 4, 2, 700, 128, 0), 2, 1, "static", None, 3, True, 2),
    # Ranks that have nothing, but pass on what others have.
    Problem("ring_attention", 4, 2, _ring(1, 1, 1, 3, 64, 1), 4, 2, "adaptive", None, 2, True, 3),
)
