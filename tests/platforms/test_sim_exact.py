"""Any shape of any kernel on any small cluster: every rank's result is right bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from expected import expected
from hypothesis import HealthCheck, example, given, settings
from shapes import EXAMPLES, SHAPES, Problem, problems
from sim_rig import case_of, left_in_accumulators, simulation_of

from mkbench.core.bf16 import to_bf16
from mkbench.core.workloads import workload
from mkbench.core.workloads.base import metadata_inputs
from mkbench.platforms.sim import verify

STRESS = settings.get_current_profile_name() == "stress"
CASES = (
    settings.get_profile("stress")
    if STRESS
    else settings(
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
)


@pytest.mark.timeout(0 if STRESS else 300)
@pytest.mark.parametrize("kernel", SHAPES)
def test_every_element_of_every_rank_is_exact(kernel: str) -> None:
    search = given(problem=problems(kernel))(is_exact)
    for each in EXAMPLES:
        if each.kernel == kernel:
            search = example(problem=each)(search)
    CASES(search)()


def is_exact(problem: Problem) -> None:
    case, launches = problem.case, problem.launches
    with simulation_of(case, seed=problem.seed, launches=launches, stress=problem.stress) as simulation:
        result = simulation.run()
        assert result.status == "ok", result.report
        check = verify(simulation)
        assert left_in_accumulators(simulation) == 0
    once = expected(case)
    assert check.elements == once.elements
    assert check.mismatches == 0, check.first
    assert result.payload_bytes == launches * once.payload_bytes == launches * case.point.network_bytes
    assert result.commands == launches * once.commands
    if not problem.stress:
        assert case.point.lower_bound_us is not None
        assert min(result.latencies_us) >= case.point.lower_bound_us


INPUTS = {
    "gemm_ar": {"m": 150, "n": 259, "k": 20},
    "gemm_rs": {"m": 150, "n": 259, "k": 20},
    "ag_gemm": {"m": 150, "n": 259, "k": 20},
    "moe_dispatch_gemm": {"t": 333, "hidden": 40, "inter": 70, "experts": 8, "topk": 3},
    "ring_attention": {"b": 1, "h": 2, "g": 1, "s": 700, "d": 64, "causal": 1},
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kernel", INPUTS)
def test_inputs_are_left_as_they_were(kernel: str, nodes: int) -> None:
    case = case_of(kernels=kernel, blocks=4, nodes=nodes, ranks_per_node=2, shape=INPUTS[kernel], data=True)
    point, rules = case.point, workload(kernel)
    with simulation_of(case, launches=2) as simulation:
        assert simulation.run().status == "ok"
        for rank in range(point.ranks):
            for name, values in rules.inputs(point.shape, rank, point.ranks, point.seed).items():
                pitch = rules.pitches(point.shape)[name]
                found = simulation.view(rank, simulation.heap.offsets[name], len(values) * pitch, np.uint16)
                rows = found.reshape(len(values), pitch)
                assert np.array_equal(rows[:, : values.shape[1]], to_bf16(values)), name
                assert not rows[:, values.shape[1] :].any(), name
            for name, chosen in metadata_inputs(rules, point.shape, rank, point.ranks).items():
                kept = simulation.view(rank, simulation.heap.offsets[name], chosen.size, chosen.dtype)
                assert np.array_equal(kept.reshape(chosen.shape), chosen), name


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
