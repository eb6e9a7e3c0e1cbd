"""The exact family is exact whatever the order of the keys; the normal family's tolerance is one."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.workloads import attention_inputs as module
from mkbench.core.workloads.attention_inputs import (
    attention_inputs,
    attention_reference,
    attention_tolerance,
    pieces,
    rows_of,
)
from mkbench.core.workloads.base import Matrix, Shape


def shape_of(s: int, *, causal: int = 0, b: int = 1, h: int = 1, g: int = 1, d: int = 64) -> Shape:
    return Shape(b=b, h=h, g=g, s=s, d=d, causal=causal)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    g, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    s = draw(st.integers(1, 70) | st.sampled_from((127, 128, 129, 256)))
    return shape_of(
        s,
        causal=draw(st.integers(0, 1)),
        b=draw(st.integers(1, 2)),
        h=g * groups,
        g=g,
        d=draw(st.sampled_from((64, 128))),
    )


def gathered(shape: Shape, ranks: int, matrices: list[Matrix], heads: int) -> NDArray[np.float32]:
    """[b, heads, s, d] of what all ranks have, by position."""
    whole = np.full((shape.b, heads, shape.s, shape.d), np.nan, dtype=np.float32)
    for rank, matrix in enumerate(matrices):
        rows = matrix.reshape(shape.b, heads, rows_of(shape, rank, ranks), shape.d)
        whole[:, :, positions_of(shape, rank, ranks)] = rows
    assert not np.isnan(whole).any()
    return whole


def positions_of(shape: Shape, rank: int, ranks: int) -> NDArray[np.int64]:
    return np.concatenate([piece.positions for piece in pieces(shape, rank, ranks)])


def whole_inputs(shape: Shape, ranks: int, seed: int, family: str = "exact") -> list[NDArray[np.float32]]:
    inputs = [attention_inputs(shape, rank, ranks, seed, family) for rank in range(ranks)]
    heads = {"q": shape.h, "k": shape.g, "v": shape.g}
    return [gathered(shape, ranks, [each[name] for each in inputs], heads[name]) for name in "qkv"]


def whole_reference(shape: Shape, ranks: int, seed: int, family: str = "exact") -> NDArray[np.float32]:
    results = [attention_reference(shape, rank, ranks, seed, family) for rank in range(ranks)]
    return gathered(shape, ranks, results, shape.h)


def visible(shape: Shape) -> NDArray[np.bool_]:
    positions = np.arange(shape.s)
    return (positions[None, :] <= positions[:, None]) | (shape.causal == 0)


def softmax(shape: Shape, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]) -> Matrix:
    """Attention in float64, by definition."""
    k, v = (np.repeat(x, shape.h // shape.g, axis=1).astype(np.float64) for x in (k, v))
    logits = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(shape.d)
    if shape.causal:
        logits = np.where(visible(shape), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=3, keepdims=True))
    return (weights @ v / weights.sum(axis=3, keepdims=True)).astype(np.float32)


def online(
    shape: Shape, q: Matrix, k: Matrix, v: Matrix, blocks: list[NDArray[np.int64]], *, fused: bool
) -> Matrix:
    """One head in float32, block by block of keys in the order given, as kernels do it."""
    scale = np.float32(np.log2(np.e) / np.sqrt(shape.d))
    m = np.full((shape.s, 1), -np.inf, dtype=np.float32)
    total, out = np.zeros_like(m), np.zeros_like(q)
    for block in blocks:
        logits = np.where(visible(shape)[:, block], q @ k[block].T, np.float32(-np.inf))
        higher = np.maximum(m, logits.max(axis=1, keepdims=True))
        base = np.where(np.isinf(higher), np.float32(0), higher)
        # A fused multiply-add rounds once: float64 holds the product exactly.
        wide = logits.astype(np.float64) * np.float64(scale) - np.float64(base * scale)
        shifted = wide.astype(np.float32) if fused else (logits - base) * scale
        weights, before = np.exp2(shifted), np.exp2((m - base) * scale)
        total = total * before + weights.sum(axis=1, keepdims=True)
        out = out * before + round_to_bf16(weights) @ v[block]
        m = higher
    return round_to_bf16(out / total)


@settings(max_examples=30, deadline=None)
@given(shape=shapes(), ranks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
@example(shape_of(1, causal=1), 3, 1)
@example(shape_of(2), 1, 1)
def test_the_exact_reference_is_softmax_attention(shape: Shape, ranks: int, seed: int) -> None:
    expected = whole_reference(shape, ranks, seed)
    assert np.array_equal(round_to_bf16(expected), expected)
    assert np.array_equal(expected, np.rint(expected))
    assert not np.signbit(expected[expected == 0]).any()
    q, k, v = whole_inputs(shape, ranks, seed)
    assert all(np.array_equal(round_to_bf16(x), x) for x in (q, k, v))
    assert np.abs(softmax(shape, q, k, v) - expected).max() < 1e-6


@settings(max_examples=40, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**32 - 1), fused=st.booleans(), data=st.data())
def test_no_order_of_keys_changes_a_bit(shape: Shape, seed: int, fused: bool, data: st.DataObject) -> None:
    q, k, v = (x[0, 0] for x in whole_inputs(shape, 1, seed))
    order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(shape.s)
    cuts = sorted(data.draw(st.sets(st.integers(1, shape.s), max_size=5)))
    blocks = [block for block in np.split(order, cuts) if len(block)]
    expected = whole_reference(shape, 1, seed)[0, 0]
    assert np.array_equal(online(shape, q, k, v, blocks, fused=fused), expected)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("s", [2048, 1 << 20, (1 << 31) - 1])
def test_logits_and_sums_stay_within_what_the_proof_says(s: int, d: int) -> None:
    """On some queries and keys of a sequence that may be long: only those are made."""
    exact, piece = module._Exact(shape_of(s, causal=1, d=d), 3), module.Piece(1, s - 700, 700)
    q, chosen = exact.queries(0, 0, piece).astype(np.float64), exact._select(0, 0, piece)
    last, scale = piece.positions, np.sqrt(d)

    def keys(positions: NDArray[np.int64]) -> NDArray[np.float64]:
        signs = module._KEY * exact._signs(positions)
        return exact._spread(signs, np.full(len(positions), module._KEY), 0, 0).astype(np.float64)

    assert (chosen.free & ~chosen.target == 0).all()
    assert chosen.free.max() < 1 << 18
    assert (chosen.target <= last).all()
    own = (q * keys(chosen.target)).sum(axis=1)
    assert np.abs(own).max() / scale * np.log2(np.e) < 1 << 15
    # Keys that are selected, that differ from selected ones in one bit, and others.
    near = (chosen.target[:, None] ^ (1 << np.arange(31))).ravel()
    for positions in (chosen.target, near[near < s][:20000], np.random.default_rng(1).integers(0, s, 5000)):
        k = keys(positions)
        logits = q @ k.T
        assert not (logits % 256).any()
        assert (np.abs(q).max(axis=0) @ np.abs(k).max(axis=0)) < 1 << 19
        visible = positions[None, :] <= last[:, None]
        selected = (positions[None, :] ^ chosen.target[:, None]) & ~chosen.free[:, None] == 0
        assert (logits == own[:, None])[selected].all()
        assert ((own[:, None] - logits)[visible & ~selected] / scale).min() >= 320
    pointing = chosen.decoy > 0
    decoys = (chosen.target ^ chosen.decoy)[pointing]
    assert pointing.sum() > 100
    assert (decoys > last[pointing]).all()
    assert ((q[pointing] * keys(decoys)).sum(axis=1) - own[pointing]).min() / scale > 30
    assert np.abs(exact.values(0, 0, piece)).max() * (1 << 18) < 1 << 24


@pytest.mark.parametrize("causal", [0, 1])
def test_what_is_left_out_or_mixed_up_shows(causal: int) -> None:
    shape, ranks = shape_of(256, causal=causal, b=2, h=2, g=1), 4
    q, k, v = whole_inputs(shape, ranks, 5)
    expected = round_to_bf16(softmax(shape, q, k, v))

    def wrong(q: Matrix, k: Matrix, v: Matrix, shape: Shape = shape) -> float:
        return float((round_to_bf16(softmax(shape, q, k, v)) != expected).any(axis=3).mean())

    for rank in range(ranks):
        kept = np.setdiff1d(np.arange(shape.s), positions_of(shape, rank, ranks))
        logits = q @ k[:, :, kept].swapaxes(2, 3)
        logits = np.where(visible(shape)[:, kept], logits, -1e30)
        weights = np.exp((logits - logits.max(axis=3, keepdims=True)) / 8)
        out = weights @ v[:, :, kept] / weights.sum(axis=3, keepdims=True)
        assert (round_to_bf16(out.astype(np.float32)) != expected).any(axis=3).mean() > 0.15
    assert wrong(q[::-1], k, v) > 0.7, "another batch"
    assert wrong(q[:, ::-1], k, v) > 0.7, "another head"
    assert wrong(q, k[::-1], v) > 0.7
    assert wrong(q, k, np.roll(v, 1, axis=2)) > 0.7, "values of the key before"
    if causal:
        assert wrong(q, k, v, shape_of(256, b=2, h=2)) > 0.2, "no mask"


def test_keys_that_do_not_exist_would_show() -> None:
    """A cut block reads zeros beyond its end."""
    shape = shape_of(100)
    q, k, v = whole_inputs(shape, 1, 5)
    padded = [np.pad(x, ((0, 0), (0, 0), (0, 28), (0, 0))) for x in (q, k, v)]
    out = softmax(shape_of(128), *padded)[:, :, :100]
    wrong = (round_to_bf16(out) != whole_reference(shape, 1, 5)).any(axis=3)
    assert 0.4 < wrong.mean() < 0.6


def test_every_kind_of_query_occurs() -> None:
    shape = shape_of(1024, causal=1)
    chosen = module._Exact(shape, 2)._select(0, 0, module.Piece(0, 0, 1024))
    counts = np.bitwise_count(chosen.free.astype(np.uint64))
    assert counts.max() >= 9
    assert (counts == 0).sum() > 256
    assert (counts > 4).sum() > 200
    assert 200 < (chosen.decoy > 0).sum() < 300
    assert 400 < chosen.is_negative.sum() < 600


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("s", [1, 70, 300])
def test_the_normal_reference_and_its_tolerance(s: int, causal: int) -> None:
    shape, ranks = shape_of(s, causal=causal, h=2, g=1), 3
    q, k, v = whole_inputs(shape, ranks, 7, "normal")
    assert s < 300 or (0.9 < k.std() < 1.1 and 3.8 < q.std() < 4.2)
    expected = whole_reference(shape, ranks, 7, "normal")
    assert np.abs(softmax(shape, q, k, v) - expected).max() < 1e-4
    blocks = np.array_split(np.random.default_rng(1).permutation(s), 3)
    blocks = [block for block in blocks if len(block)]
    out = online(shape, q[0, 1], k[0, 0], v[0, 0], blocks, fused=True)
    assert np.abs(out - expected[0, 1]).max() <= attention_tolerance()


def test_the_tolerance_finds_a_rank_that_is_left_out_of_a_long_sequence() -> None:
    shape, ranks = shape_of(4096, h=1), 16
    expected = attention_reference(shape, 0, ranks, 3, "normal")
    q, k, v = whole_inputs(shape, ranks, 3, "normal")
    first = slice(0, 256)
    without = softmax(shape, q[:, :, first], k[:, :, 256:], v[:, :, 256:])[0, 0]
    wrong = np.abs(without - expected) > attention_tolerance()
    assert wrong.any(axis=1).mean() > 0.05
    assert np.std(expected) > 0.3


def test_inputs_depend_on_seed_and_rank() -> None:
    shape = shape_of(64, h=2, g=2)
    for family in ("exact", "normal"):
        first, again = (attention_inputs(shape, 1, 4, 9, family) for _ in range(2))
        assert all(np.array_equal(first[name], again[name]) for name in "qkv")
        other = attention_inputs(shape, 1, 4, 10, family)
        assert all(not np.array_equal(first[name], other[name]) for name in "qkv")


@given(s=st.integers(1, 300), ranks=st.integers(1, 20), causal=st.integers(0, 1))
def test_pieces_cover_the_sequence_once(s: int, ranks: int, causal: int) -> None:
    shape = shape_of(s, causal=causal)
    positions = np.concatenate([positions_of(shape, rank, ranks) for rank in range(ranks)])
    assert np.array_equal(np.sort(positions), np.arange(s))
    assert all(piece.rows >= 0 for rank in range(ranks) for piece in pieces(shape, rank, ranks))


def test_a_causal_load_is_even() -> None:
    shape, ranks = shape_of(4096, causal=1), 8
    assert len({(positions_of(shape, rank, ranks) + 1).sum() for rank in range(ranks)}) == 1
