"""Inputs of attention over a sequence that ranks share, and the result to compare with.

Every rank can make its own inputs alone: they depend on the seed, the shape, the rank and the rank count.

Exact family. The results are whole numbers that bf16 holds, whatever the order in which keys are visited.
Positions have n = bits(s - 1) bits; let x(j) be +1 where a bit of j is set and -1 where not.

- Keys. Element c < d - 1 of key j is 8 x(j) of bit c mod n, so a bit has at least f = (d - 1) // n elements,
  and f >= 2 since n <= 31 and d >= 64. The last element is 8. A random sign for each element hides the
  pattern, the same sign in the queries of these keys.
- Values. Value j is the sum over bits of w x(j), each w of a bit and a column 1, -1, 2 or -2: at most 62.
- Queries. A query selects keys: all j that agree with a target t in the bits outside of a mask `free`, a
  submask of t. None of them is behind t, which is visible. The query is 128 x(t), and 0 where a bit is free;
  all selected keys have the same logit. Any other key differs in a bit that counts, so its logit is lower by
  2 * 1024 f / sqrt(d) >= 512: its weight is 0 in float32, and all selected ones have the same weight. The
  result is the mean of their values, in which the free bits cancel out: the sum of w x(t) over the others.
- Decoys. Where keys are hidden, some queries point at one, u, that differs from t in one bit; that bit has
  a quarter of the weight. The logit of u is the highest of all, that of t is the highest of the visible keys,
  by 1024 (2 f - (f + 1) / 2) / sqrt(d) >= 320.
- Half of the queries have -128 d in the last element, so that all their logits are negative, and a key that
  does not exist, which reads as zeros, has the highest.

Products and sums of logits are multiples of 256 below 2^19, exact in float32. A mask has at most 18 bits, so
a sum of selected values is below 2^18 * 62 < 2^24, and exact as well. What is left is the common weight. It
is 1 if the maximum is subtracted before scaling; if a fused multiply-add subtracts the rounded scaled maximum
(below 2^15), it is 1 within 2^-10. Neither changes the result: the weight is 1 in bf16, and a mean that is
off by less than 2^-9 of itself rounds to the whole number that it should be.

Normal family. Standard normal, queries times FOCUS, rounded to bf16.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.workloads.base import Family, Matrix, Shape, SumProducts, sum_products
from mkbench.core.workloads.gemm import ceil_div

FOCUS = 4
"""Scale of the queries of the normal family: a query then attends to few keys, so that results are of order
one, far above their errors, however long the sequence is."""

_LARGEST_VALUE = 7.0
"""No standard normal of 2^32 is likely to be beyond."""
_BF16_UNIT_ROUNDOFF = 2.0**-8
_KEY, _QUERY, _DECOY = 8.0, 128.0, 32.0
_FREE = (1 << 18) - 1
_BAND = 1 << 25
"""Logits that the reference of the normal family holds at once."""
_Q, _K, _V = range(3)
_SIGNS = np.array([-1, 1], dtype=np.float32)
_WEIGHTS = np.array([-2, -1, 1, 2], dtype=np.float32)

_Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive positions of the sequence; pieces are numbered from its start."""

    index: int
    first: int
    rows: int

    @property
    def positions(self) -> _Positions:
        """All of them."""
        return np.arange(self.first, self.first + self.rows)


def piece_rows(shape: Shape, ranks: int) -> int:
    """Return the length of a piece; the last ones may be shorter, or empty."""
    return ceil_div(shape.s, (1 + shape.causal) * ranks)


def pieces(shape: Shape, rank: int, ranks: int) -> list[Piece]:
    """Return the pieces of a rank, in order: one, or of a causal shape two, which makes the load even."""
    length = piece_rows(shape, ranks)
    indices = (rank, 2 * ranks - 1 - rank) if shape.causal else (rank,)
    firsts = ((index, min(index * length, shape.s)) for index in indices)
    return [Piece(index, first, min(length, shape.s - first)) for index, first in firsts]


def rows_of(shape: Shape, rank: int, ranks: int) -> int:
    """Return the positions of a rank."""
    return sum(piece.rows for piece in pieces(shape, rank, ranks))


def attention_inputs(shape: Shape, rank: int, ranks: int, seed: int, family: Family) -> dict[str, Matrix]:
    """Return q[b * h * rows, d], k and v[b * g * rows, d] of a rank: float32 arrays that hold bf16 values."""
    make = _Normal(shape, seed) if family == "normal" else _Exact(shape, seed)
    mine = pieces(shape, rank, ranks)
    queries = [make.queries(b, h, piece) for b, h in _pairs(shape, shape.h) for piece in mine]
    keys = [make.keys(b, g, piece) for b, g in _pairs(shape, shape.g) for piece in mine]
    values = [make.values(b, g, piece) for b, g in _pairs(shape, shape.g) for piece in mine]
    return {"q": np.concatenate(queries), "k": np.concatenate(keys), "v": np.concatenate(values)}


def attention_reference(
    shape: Shape, rank: int, ranks: int, seed: int, family: Family, sum_products: SumProducts = sum_products
) -> Matrix:
    """Return out[b * h * rows, d] of a rank, exactly, or in float32 for the normal family."""
    if family == "exact":
        exact = _Exact(shape, seed)
        return np.concatenate(
            [
                exact.results(b, h, piece)
                for b, h in _pairs(shape, shape.h)
                for piece in pieces(shape, rank, ranks)
            ]
        )
    return np.concatenate(list(_normal_results(shape, rank, ranks, seed, sum_products)))


def attention_tolerance() -> float:
    """Return the largest absolute error of a right result of the normal family.

    A weight is rounded to bf16 before it multiplies a value, and the result is rounded: with u = 2^-8, the
    unit roundoff, and the largest value v, each changes a mean of values by at most u v. Errors of float32
    are far below. This is a bound, not an estimate; results are of order one.
    """
    return 2 * _BF16_UNIT_ROUNDOFF * _LARGEST_VALUE


def _pairs(shape: Shape, heads: int) -> list[tuple[int, int]]:
    return [(batch, head) for batch in range(shape.b) for head in range(heads)]


class _Normal:
    """Inputs of the normal family, piece by piece."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._d, self._seed = shape.d, seed

    def queries(self, batch: int, head: int, piece: Piece) -> Matrix:
        return FOCUS * self._make(_Q, batch, head, piece)

    def keys(self, batch: int, group: int, piece: Piece) -> Matrix:
        return self._make(_K, batch, group, piece)

    def values(self, batch: int, group: int, piece: Piece) -> Matrix:
        return self._make(_V, batch, group, piece)

    def _make(self, matrix: int, batch: int, head: int, piece: Piece) -> Matrix:
        rng = np.random.default_rng([self._seed, matrix, batch, head, piece.index])
        return round_to_bf16(rng.standard_normal((piece.rows, self._d), dtype=np.float32))


def _normal_results(
    shape: Shape, rank: int, ranks: int, seed: int, sum_products: SumProducts
) -> Iterator[Matrix]:
    make = _Normal(shape, seed)
    sequence = sorted(
        (piece for each in range(ranks) for piece in pieces(shape, each, ranks)),
        key=lambda piece: piece.index,
    )
    height = max(1, _BAND // shape.s)
    for batch, group in _pairs(shape, shape.g):
        keys = np.concatenate([make.keys(batch, group, piece) for piece in sequence])
        values = np.concatenate([make.values(batch, group, piece) for piece in sequence])
        for head in range(group * shape.h // shape.g, (group + 1) * shape.h // shape.g):
            for piece in pieces(shape, rank, ranks):
                queries = make.queries(batch, head, piece)
                # An empty piece is an empty band.
                for start in range(0, max(1, piece.rows), height):
                    band = queries[start : start + height]
                    before = piece.first + start
                    seen = before + len(band) if shape.causal else shape.s
                    yield _attend(band, keys[:seen], values[:seen], before, shape.causal == 1, sum_products)


def _attend(
    queries: Matrix, keys: Matrix, values: Matrix, before: int, is_causal: bool, sum_products: SumProducts
) -> Matrix:
    """Return the attention of `queries`, the first of which has `before` keys before its own."""
    logits = sum_products([(queries, keys.T)], np.float32)
    if is_causal:
        logits[np.arange(len(keys)) > before + np.arange(len(queries))[:, None]] = -np.inf
    logits -= logits.max(axis=1, keepdims=True, initial=-np.inf)
    logits *= np.float32(queries.shape[1] ** -0.5)
    weights = np.exp(logits, out=logits)
    result: Matrix = sum_products([(weights, values)], np.float32) / weights.sum(axis=1, keepdims=True)
    return result


@dataclass(frozen=True, slots=True)
class _Selection:
    """What each query of a piece selects; `decoy` is the bit in which it points at a hidden key, or 0."""

    target: _Positions
    free: _Positions
    decoy: _Positions
    is_negative: NDArray[np.bool_]


class _Exact:
    """Inputs and results of the exact family, piece by piece."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape, self._seed = shape, seed
        self._bits = max(1, (shape.s - 1).bit_length())
        self._bit_of = np.arange(shape.d - 1) % self._bits

    def queries(self, batch: int, head: int, piece: Piece) -> Matrix:
        chosen = self._select(batch, head, piece)
        signs = self._signs(chosen.target ^ chosen.decoy)
        signs *= np.where(self._has(chosen.decoy), _DECOY, np.where(self._has(chosen.free), 0, _QUERY))
        last = np.where(chosen.is_negative, -_QUERY * self._shape.d, 0.0)
        return self._spread(signs, last, batch, head * self._shape.g // self._shape.h)

    def keys(self, batch: int, group: int, piece: Piece) -> Matrix:
        last = np.full(piece.rows, _KEY)
        return self._spread(_KEY * self._signs(piece.positions), last, batch, group)

    def values(self, batch: int, group: int, piece: Piece) -> Matrix:
        return self._weighted(self._signs(piece.positions), batch, group)

    def results(self, batch: int, head: int, piece: Piece) -> Matrix:
        """Return the mean of the selected values of each query."""
        chosen = self._select(batch, head, piece)
        signs = self._signs(chosen.target) * ~self._has(chosen.free)
        return self._weighted(signs, batch, head * self._shape.g // self._shape.h)

    def _select(self, batch: int, head: int, piece: Piece) -> _Selection:
        """Return one of four kinds for each query: a decoy, one key, some keys, all keys up to some bit."""
        rng = np.random.default_rng([self._seed, _Q, batch, head, piece.index])
        size, rows = self._shape.s, piece.rows
        last = piece.positions if self._shape.causal else np.full(rows, size - 1)
        kind = rng.integers(0, 4, rows)
        target = rng.integers(0, last + 1)
        free = target & rng.integers(0, 1 << self._bits, rows)
        first_keys = _top_bit(target + 1) - 1
        target = np.where(kind == 3, first_keys, target)
        free = np.select([kind == 3, kind == 2], [first_keys, free], 0) & _FREE
        # A hidden key, with no bit set below the highest in which it differs from the last visible one unless
        # it is set there too: without that highest bit it is a visible key.
        hidden = rng.integers(np.minimum(last + 1, size - 1), size)
        bit = _top_bit(hidden ^ last)
        visible = (hidden & ~(2 * bit - 1)) | (hidden & last & (bit - 1))
        is_decoy = (kind == 0) & (last < size - 1)
        decoy, is_negative = np.where(is_decoy, bit, 0), rng.integers(0, 2, rows) == 1
        return _Selection(np.where(is_decoy, visible, target), free, decoy, is_negative)

    def _has(self, masks: _Positions) -> NDArray[np.bool_]:
        """Return [rows, bits]: which bits are set."""
        has: NDArray[np.bool_] = (masks[:, None] >> np.arange(self._bits)) & 1 == 1
        return has

    def _signs(self, positions: _Positions) -> Matrix:
        return np.where(self._has(positions), np.float32(1), np.float32(-1))

    def _spread(self, bits: Matrix, last: NDArray[np.float64], batch: int, group: int) -> Matrix:
        """Return [rows, d]: bits over the elements, then `last`, all with the signs of these keys."""
        rng = np.random.default_rng([self._seed, _K, batch, group])
        spread = np.empty((len(bits), self._shape.d), dtype=np.float32)
        spread[:, :-1] = bits[:, self._bit_of]
        spread[:, -1] = last
        spread *= rng.choice(_SIGNS, self._shape.d)
        return spread

    def _weighted(self, signs: Matrix, batch: int, group: int) -> Matrix:
        rng = np.random.default_rng([self._seed, _V, batch, group])
        weights = rng.choice(_WEIGHTS, (self._bits, self._shape.d))
        # A sum of nothing but zeros must not be the negative one, which has other bits.
        result: Matrix = signs.astype(np.float32) @ weights + np.float32(0)
        return result


def _top_bit(values: _Positions) -> _Positions:
    """Return the highest bit of each, and 1 for 0."""
    exponents = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64)
    return np.int64(1) << (exponents - 1)
