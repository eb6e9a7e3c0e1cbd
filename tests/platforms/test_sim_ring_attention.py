"""ring_attention on any small cluster: every rank's result is right bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected import expected
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import from_bf16, to_bf16
from mkbench.core.resources import kernels_dir
from mkbench.core.workloads.attention_inputs import pieces, rows_of
from mkbench.platforms.sim import verify


def ring_case(**settings: Any) -> Case:
    return case_of(kernels=("ring_attention",), **settings)


@pytest.mark.parametrize(("causal", "wrong"), [(0, 500), (1, 1)])
def test_a_wrong_value_of_one_rank_shows_wherever_it_is_seen(causal: int, wrong: int) -> None:
    """NaN, so that it shows with any weight but none: queries to which its key is hidden are right."""
    shape = {"b": 1, "h": 1, "g": 1, "s": 500, "d": 64, "causal": causal}
    case = ring_case(blocks=4, nodes=2, ranks_per_node=2, shape=shape, data=True)
    with simulation_of(case) as simulation:
        # The key of the last position: at the end of its rank's rows.
        rank = 0 if causal else 3
        rows = rows_of(case.point.shape, rank, 4)
        keys = simulation.view(rank, simulation.heap.offsets["k"], rows * 64, "u2").reshape(rows, 64)
        keys[-1] = to_bf16(keys[-1].astype("f4") * float("nan"))
        assert simulation.run().status == "ok"
        check = verify(simulation)
    assert check.mismatches == wrong * 64


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (1, 3), (2, 2)])
def test_large_logits_survive(nodes: int, ranks_per_node: int, d: int, causal: int) -> None:
    """Some queries have only logits below -10,000, far less than with keys of zeros, which do not exist.

    Keys of the same sign share one value, so the result is that of the highest logit, bit for bit.
    """
    length, heads, rng = 700, 2, np.random.default_rng(d + causal)
    shape = {"b": 1, "h": heads, "g": 1, "s": length, "d": d, "causal": causal}
    case = ring_case(blocks=4, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, data=True)
    sign = rng.choice([-1.0, 1.0], length)
    sign[:130] = -1  # with a mask, the first queries see no other keys
    wanted, is_low = rng.choice([-1.0, 1.0], (heads, length)), rng.integers(0, 2, (heads, length)) == 1
    k = np.full((length, d), 8.0)
    k[:, :-1] *= sign[:, None]
    q = np.full((heads, length, d), 160.0)
    q[..., :-1] *= wanted[..., None]
    q[..., -1] = np.where(is_low, -2 * 160 * d, 0)
    v = np.where(sign > 0, 3.0, -5.0)[:, None] * np.ones(d)
    logits = q @ k.T / np.sqrt(d)
    if causal:
        logits[:, np.arange(length)[None, :] > np.arange(length)[:, None]] = -np.inf
    highest = logits.max(axis=2)
    assert highest.min() < -10_000 < 10_000 < highest.max()
    assert highest[is_low].max() < -10_000
    result = v[logits.argmax(axis=2)]
    ranks = case.point.ranks
    with simulation_of(case) as simulation:
        offsets = simulation.heap.offsets
        own = [
            np.concatenate([piece.positions for piece in pieces(case.point.shape, rank, ranks)])
            for rank in range(ranks)
        ]
        for rank, positions in enumerate(own):
            for name, matrix in (("q", q[:, positions]), ("k", k[positions]), ("v", v[positions])):
                bits = to_bf16(matrix.astype(np.float32).reshape(-1))
                assert np.array_equal(from_bf16(bits), matrix.reshape(-1))
                simulation.view(rank, offsets[name], bits.size, "u2")[:] = bits
        assert simulation.run().status == "ok"
        for rank, positions in enumerate(own):
            found = from_bf16(simulation.output(rank)).reshape(heads, len(positions), d)
            assert np.array_equal(found, result[:, positions])


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(2, 1), (2, 3), (3, 2), (5, 2)])
@pytest.mark.parametrize("policy", ["static", "adaptive"])
@pytest.mark.parametrize("chunk_tiles", [1, 4])
def test_commands_are_one_a_chunk_and_hop_and_its_credit(
    nodes: int, ranks_per_node: int, policy: str, chunk_tiles: int
) -> None:
    shape = {"b": 2, "h": 2, "g": 2, "s": 3000, "d": 128, "causal": 1}
    case = ring_case(
        blocks=8, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape, chunk_tiles=chunk_tiles,
        policies=policy, comm_sms="3" if policy == "static" else None,
    )  # fmt: skip
    result = result_of(case, launches=2)
    assert result.status == "ok", result.report
    once = expected(case)
    assert result.commands == 2 * once.commands
    assert result.payload_bytes == 2 * case.point.network_bytes == 2 * once.payload_bytes


# Each edit leaves out what keeps a result right: (file, text, replacement).
GUARDS = {
    "compute waits for its keys": ("ring_attention.cu", "if (!wait()) return", "if (false) return"),
    "compute knows how many chunks are here": ("ring_attention.cu", "here(1)", "here(2)"),
    "a lent block looks for its keys": (
        "ring_attention.cu",
        "bool is_ready(i32 task) {",
        "bool is_ready(i32 task) { if (lent) return true;",
    ),
    "a query sees no key behind it": (
        "ring_attention.cu",
        "return p.causal && shard == p.rank && key_tile == query_tile;",
        "return false && shard + key_tile + query_tile;",
    ),
    "a tile of queries sees its own piece up to itself": (
        "ring_attention.cu",
        "query_tile : query_tile - low) + 1;",
        "query_tile : query_tile - low);",
    ),
    "a window of slots is longer than a lane is behind": (
        "mk/ring_order.h",
        "window() - 1)",
        "4 * window())",
    ),
    "a slot is taken over when it is free": ("mk/ring_order.h", "c.chunk - window()}", "-1}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_is_needed(name: str, tmp_path: Path) -> None:
    file, old, new = GUARDS[name]
    sources = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), sources)
    text = (sources / file).read_text()
    assert text.count(old) == 1
    (sources / file).write_text(text.replace(old, new))
    assert any(is_wrong(sources, seed) for seed in range(60))


def is_wrong(sources: Path, seed: int) -> bool:
    """Whether launches in random order go wrong: on a ring that uses slots again, on one node, on two."""
    nodes, ranks_per_node = ((4, 2), (1, 3), (2, 1))[seed % 3]
    shape = {"b": 1, "h": 8, "g": 8, "s": nodes * ranks_per_node * 150, "d": 64, "causal": seed // 3 % 2}
    case = ring_case(
        blocks=2 + seed // 6 % 3, nodes=nodes, ranks_per_node=ranks_per_node, shape=shape,
        chunk_tiles=1 + seed % 2, policies="adaptive" if seed % 2 else "static", comm_sms="1",
        start_comm_sms=1, data=True, seed=1,
    )  # fmt: skip
    with simulation_of(case, seed=seed, sources=sources, launches=2, stress=True) as simulation:
        return simulation.run().status != "ok" or verify(simulation).mismatches > 0
