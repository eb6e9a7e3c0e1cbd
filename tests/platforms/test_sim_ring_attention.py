"""ring_attention on any small cluster: every rank's result is right bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sim_rig import Case, case_of, result_of, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.resources import kernels_dir
from mkbench.core.workloads.attention_inputs import rows_of
from mkbench.platforms.sim import verify

STRESS = settings.get_current_profile_name() == "stress"
CASES = (
    settings.get_profile("stress")
    if STRESS
    else settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
)
TILE, MOST_POSITIONS = 128, 2000


def ring_case(**settings: Any) -> Case:
    return case_of(kernels=("ring_attention",), **settings)


@st.composite
def lengths(draw: st.DrawFn, pieces: int) -> int:
    """Positions in so many pieces of up to two tiles, the last ones cut or empty, often at a tile's edge."""
    most = min(2 * TILE, MOST_POSITIONS // pieces)
    length = min(most, draw(st.sampled_from((1, 7, 64, 65, TILE - 1, TILE, TILE + 1)) | st.integers(1, most)))
    return max(1, length * pieces - draw(st.integers(0, length * pieces - 1) | st.integers(0, 3)))


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, int, dict[str, int]]:
    """Nodes, ranks of each, and a shape."""
    nodes, ranks_per_node = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    causal, g, groups = draw(st.integers(0, 1)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    s = draw(lengths((1 + causal) * nodes * ranks_per_node))
    d, b = draw(st.sampled_from((64, 64, 128))), draw(st.integers(1, 2))
    return nodes, ranks_per_node, {"b": b, "h": g * groups, "g": g, "s": s, "d": d, "causal": causal}


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int]:
    """Blocks of a rank, and how many communicate."""
    blocks = draw(st.integers(2, 12))
    return blocks, draw(st.integers(1, blocks - 1))


@pytest.mark.timeout(0 if STRESS else 300)
@CASES
@given(
    problem=problems(),
    partition=partitions(),
    policy=st.sampled_from(("static", "adaptive")),
    chunk_tiles=st.none() | st.integers(1, 5),
    launches=st.integers(1, 3),
    stress=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
# Forwarding, with slots that are used again, over three launches in random order.
@example((4, 1, {"b": 1, "h": 1, "g": 1, "s": 3000, "d": 64, "causal": 1}), (3, 1), "adaptive", 1, 3, True, 1)
@example(
    (3, 2, {"b": 2, "h": 4, "g": 2, "s": 700, "d": 128, "causal": 0}), (2, 1), "static", None, 3, True, 2
)
# Ranks that have nothing, but pass on what others have.
@example((4, 2, {"b": 1, "h": 1, "g": 1, "s": 3, "d": 64, "causal": 1}), (4, 2), "adaptive", None, 2, True, 3)
def test_every_element_of_every_rank_is_exact(
    problem: tuple[int, int, dict[str, int]],
    partition: tuple[int, int],
    policy: str,
    chunk_tiles: int | None,
    launches: int,
    stress: bool,
    seed: int,
) -> None:
    (nodes, ranks_per_node, shape), (blocks, comm_sms) = problem, partition
    case = ring_case(
        blocks=blocks,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        shape=shape,
        policies=policy,
        comm_sms=str(comm_sms),
        start_comm_sms=comm_sms,
        chunk_tiles=chunk_tiles,
        seed=seed,
        data=True,
    )
    with simulation_of(case, seed=seed, launches=launches, stress=stress) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        check = verify(simulation)
    assert check.elements == shape["b"] * shape["h"] * shape["s"] * shape["d"]
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == launches * case.point.network_bytes
    assert case.point.network_bytes == (nodes - 1) * 4 * shape["b"] * shape["g"] * shape["s"] * shape["d"]
    if not stress:
        assert case.point.lower_bound_us is not None
        assert min(result.latencies_us) >= case.point.lower_bound_us * blocks / 132


def test_inputs_are_left_as_they_were() -> None:
    shape = {"b": 1, "h": 2, "g": 1, "s": 700, "d": 64, "causal": 1}
    case = ring_case(blocks=4, nodes=2, ranks_per_node=2, shape=shape, data=True)
    with simulation_of(case, launches=2) as simulation:
        first = simulation.heap.offsets["q"]
        count = (simulation.heap.offsets["out"] - first) // 2
        before = [simulation.view(rank, first, count, "u2").copy() for rank in range(case.point.ranks)]
        assert simulation.run().status == "ok"
        for rank, inputs in enumerate(before):
            assert (simulation.view(rank, first, count, "u2") == inputs).all()


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
    ranks, length = nodes * ranks_per_node, -(-3000 // (2 * nodes * ranks_per_node))

    def chunks(rank: int) -> int:
        rows = (max(0, min(length, 3000 - piece * length)) for piece in (rank, 2 * ranks - 1 - rank))
        return -(-4 * sum(-(-each // TILE) for each in rows) // chunk_tiles)

    assert result.commands == 2 * 2 * (nodes - 1) * sum(chunks(rank) for rank in range(ranks))
    assert result.payload_bytes == 2 * case.point.network_bytes


# Beyond 2^31 elements of keys and values: indices, offsets and byte counts must all be 64 bits wide.
def test_keys_of_more_than_two_to_the_31_elements() -> None:
    shape = {"b": 4, "h": 16, "g": 16, "s": 1 << 18, "d": 128, "causal": 1}
    case = ring_case(nodes=2, ranks_per_node=8, shape=shape, comm_sms="16")
    result = result_of(case)
    assert result.status == "ok", result.report
    assert result.payload_bytes == case.point.network_bytes
    assert case.point.lower_bound_us is not None
    assert result.latencies_us[0] >= case.point.lower_bound_us


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
