"""Any shape on any small cluster: every rank's result is right bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sim_rig import TILE_M, TILE_N, case_of, simulation_of

from mkbench.core.bf16 import to_bf16
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


@st.composite
def lengths(draw: st.DrawFn, tile: int) -> int:
    """Up to three tiles, with a tail that is often all or next to nothing."""
    whole = draw(st.integers(0, 2))
    return whole * tile + draw(st.sampled_from((1, 7, 8, tile - 1, tile)) | st.integers(1, tile))


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, int]:
    """Blocks of a rank, and how many communicate."""
    blocks = draw(st.integers(2, 12))
    return blocks, draw(st.integers(1, blocks - 1))


@pytest.mark.timeout(0 if STRESS else 300)
@CASES
@given(
    nodes=st.integers(1, 3),
    ranks_per_node=st.integers(1, 5),
    m=lengths(TILE_M),
    n=lengths(TILE_N),
    k=st.integers(1, 48),
    partition=partitions(),
    policy=st.sampled_from(("static", "adaptive")),
    chunk_tiles=st.none() | st.integers(1, 5),
    launches=st.integers(1, 3),
    stress=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
# Three launches in random order: each takes its flags and buffers over from the one before.
@example(2, 2, 300, 600, 24, (4, 2), "adaptive", 1, 3, True, 1)
@example(3, 2, 128, 256, 1, (2, 1), "static", None, 3, True, 2)
def test_every_element_of_every_rank_is_exact(
    nodes: int,
    ranks_per_node: int,
    m: int,
    n: int,
    k: int,
    partition: tuple[int, int],
    policy: str,
    chunk_tiles: int | None,
    launches: int,
    stress: bool,
    seed: int,
) -> None:
    blocks, comm_sms = partition
    case = case_of(
        blocks=blocks,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        shape={"m": m, "n": n, "k": k},
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
    assert check.elements == nodes * ranks_per_node * m * n
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == launches * case.point.network_bytes


@pytest.mark.parametrize("nodes", [1, 2])
def test_inputs_are_left_as_they_were(nodes: int) -> None:
    case = case_of(blocks=4, nodes=nodes, ranks_per_node=2, shape={"m": 150, "n": 259, "k": 20}, data=True)
    with simulation_of(case, launches=2) as simulation:
        first = simulation.heap.offsets["a"]
        count = (simulation.heap.offsets["partial"] - first) // 2
        before = [simulation.view(rank, first, count, "u2").copy() for rank in range(case.point.ranks)]
        assert simulation.run().status == "ok"
        for rank, inputs in enumerate(before):
            assert (simulation.view(rank, first, count, "u2") == inputs).all()


def test_a_wrong_input_of_one_rank_shows_in_the_check() -> None:
    case = case_of(blocks=4, nodes=2, ranks_per_node=2, shape={"m": 130, "n": 300, "k": 20}, data=True)
    with simulation_of(case) as simulation:
        # Row 129 of A on rank 3; every entry of B there is 1, 2, -1 or -2, so the whole row of C changes.
        a = simulation.view(3, simulation.heap.offsets["a"], 130 * 24, "u2").reshape(130, 24)
        a[129, 5] = to_bf16(np.float32([100.0]))[0]
        assert simulation.run().status == "ok"
        check = verify(simulation)
    assert check.mismatches == 4 * 300
    assert check.first is not None
    assert check.first.startswith("rank 0 row 129 column 0: expected ")
