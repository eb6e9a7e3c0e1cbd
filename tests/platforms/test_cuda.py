"""What platform `cuda` refuses before it starts anything; the rest needs a GPU (`make gpu-test`)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from sim_rig import library_of

from mkbench.core.config import load_config
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.plan import Plan, make_plan
from mkbench.platforms import cuda
from mkbench.platforms.launch_parameters import launch_parameters

Check = Callable[..., None]


def plan_of(**settings: object) -> Plan:
    wanted = {"platform": "cuda", "cluster": "1x4-h200-virtual", "sizes": [512], "comm_sms": [2]}
    return make_plan(load_config(None, {"kernels": "gemm_ar"} | wanted | settings))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check a plan on a machine with one GPU and everything installed, but for what is said."""

    def check(plan: Plan, *, gpus: int = 1, **missing: bool) -> None:
        monkeypatch.setattr(cuda, "gpu_visible", lambda: gpus > 0)
        monkeypatch.setattr(cuda, "gpu_count", lambda: gpus)
        monkeypatch.setattr(cuda, "load_nvrtc", lambda: None)
        monkeypatch.setattr(
            cuda, "find_spec", lambda name: None if missing.get(name) else SimpleNamespace(name=name)
        )
        if not missing.get("mps"):
            monkeypatch.setattr(cuda, "find_control", lambda: "/usr/bin/nvidia-cuda-mps-control")
        cuda.CudaPlatform().check(plan)

    return check


def test_a_machine_with_everything_passes(machine: Check) -> None:
    machine(plan_of())


def test_no_gpu(machine: Check) -> None:
    with pytest.raises(EnvironmentProblem, match="no GPU is visible"):
        machine(plan_of(), gpus=0)


def test_launch_blocking_would_deadlock(machine: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(EnvironmentProblem, match="CUDA_LAUNCH_BLOCKING is set") as refused:
        machine(plan_of())
    assert refused.value.hint == "unset CUDA_LAUNCH_BLOCKING"


def test_no_cupy(machine: Check) -> None:
    with pytest.raises(EnvironmentProblem, match="CuPy is not installed"):
        machine(plan_of(), cupy=True)


def test_no_mps(machine: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentProblem, match="nvidia-cuda-mps-control"):
        machine(plan_of(), mps=True)


def test_too_few_gpus(machine: Check) -> None:
    with pytest.raises(EnvironmentProblem, match="has 4 ranks, 2 on each GPU; this machine has 1 GPUs"):
        machine(plan_of(ranks_per_gpu=2))
    machine(plan_of(ranks_per_gpu=2), gpus=2)


@pytest.mark.parametrize(("nodes", "ranks", "blocks"), [(1, 2, 64), (1, 4, 32), (2, 2, 32), (2, 4, 16)])
def test_a_virtual_cluster_shares_the_sms(nodes: int, ranks: int, blocks: int) -> None:
    plan = plan_of(nodes=nodes, ranks_per_node=ranks)
    assert {point.blocks for point in plan.points} == {blocks}
    assert {point.ranks_per_gpu for point in plan.points} == {nodes * ranks}
    assert plan.cluster.name == f"{nodes}x{ranks}-h200-virtual"


@pytest.mark.parametrize(("pace", "fs_per_byte"), [("nvlink=450,network=50", 8889), ("network=50", 0)])
def test_a_rank_is_launched_with_its_share_of_nvlink(pace: str, fs_per_byte: int) -> None:
    library = library_of("gemm_ar")
    (point,) = plan_of(policies="static", pace=pace).points
    params, _ = launch_parameters(library.handle, library.layout, point, 0)
    assert params["pace_fs_per_byte"] == fs_per_byte


def test_timed_launches_have_normal_inputs() -> None:
    assert {point.family for point in plan_of().points} == {"normal"}
