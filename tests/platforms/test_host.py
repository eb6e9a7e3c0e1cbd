"""Real processes, threads, proxies and sockets: small shapes, every element compared bit for bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from expected import expected
from sim_rig import case_of

from mkbench.core.config import load_config
from mkbench.core.errors import EnvironmentProblem, HangError, UsageError
from mkbench.core.measurement import Measurement
from mkbench.core.plan import Plan, make_plan
from mkbench.core.resources import kernels_dir
from mkbench.dist.launcher import find_mpiexec
from mkbench.platforms.host import HostPlatform

pytestmark = pytest.mark.mpi
ROOT = Path(__file__).parents[2]
DIST = ROOT / "tests" / "dist"
#: What is promised: everything ends this soon after a fault, or after the deadline (1 s here) of a rank
#: that stalls.
PROMISE_S = 10.0
#: Starting ranks on a busy machine.
START_S = 10.0


def plan_of(nodes: int, ranks_per_node: int, **settings: Any) -> Plan:
    asked = {
        "kernels": "gemm_ar",
        "platform": "host",
        "nodes": nodes,
        "ranks_per_node": ranks_per_node,
        "shape": {"m": 256, "n": 512, "k": 32},
        "policies": "static",
        "comm_sms": "2",
        "samples": 2,
        "seed": 7,
    }
    return make_plan(load_config(None, asked | settings))


def measure(plan: Plan, **options: Any) -> list[Measurement]:
    platform = HostPlatform(**options)
    platform.check(plan)
    return list(platform.run(plan.points))


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks can import the worker with planted faults."""
    folders = [str(DIST), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


def cli(*arguments: str, launcher: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line with the worker that can be made to fail."""
    script = Path(__file__).with_name("patched_cli.py")
    command = [*(launcher or []), sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_two_nodes_are_exact_and_send_what_the_formula_says(transport: str):
    plan = plan_of(2, 2, transport=transport, policies="static,adaptive", comm_sms="1,3")
    measurements = measure(plan)
    assert len(measurements) == len(plan.points) == 3
    for point, measurement in zip(plan.points, measurements, strict=True):
        assert measurement.status == "ok", measurement.message
        assert measurement.check is not None
        assert (measurement.check.elements, measurement.check.mismatches) == (4 * 256 * 512, 0)
        assert measurement.network_bytes == point.network_bytes > 0
        assert measurement.commands > 0
        assert len(measurement.samples_us) == 2
        assert all(sample > 0 for sample in measurement.samples_us)
        assert len(measurement.details["start_skew_us"]) == 2


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_paced_network_takes_its_time(transport: str):
    gbps = 0.005
    plan = plan_of(2, 1, transport=transport, pace={"network": gbps})
    (measurement,) = measure(plan)
    assert measurement.status == "ok", measurement.message
    (point,) = plan.points
    bound_us = point.network_bytes / point.ranks / gbps / 1e3
    # Half of it: ranks do not start at the same time, and one that starts late waits less.
    assert min(measurement.samples_us) > bound_us / 2


@pytest.mark.parametrize(
    ("nodes", "ranks_per_node", "shape"),
    [(1, 1, (128, 256, 32)), (1, 3, (300, 520, 50)), (3, 1, (129, 257, 33)), (2, 2, (100, 2000, 7))],
)
def test_odd_shapes_and_counts_are_exact(nodes: int, ranks_per_node: int, shape: tuple[int, int, int]):
    m, n, k = shape
    plan = plan_of(nodes, ranks_per_node, shape={"m": m, "n": n, "k": k}, policies="adaptive", comm_sms=None)
    (measurement,) = measure(plan)
    assert measurement.status == "ok", measurement.message
    assert measurement.check is not None
    assert measurement.check.elements == nodes * ranks_per_node * m * n
    assert measurement.network_bytes == plan.points[0].network_bytes


def test_normal_data_is_within_the_tolerance():
    (measurement,) = measure(plan_of(2, 1, family="normal"))
    assert measurement.status == "ok", measurement.message


def test_tokens_of_normal_data_reach_their_experts():
    shape = {"t": 1300, "hidden": 96, "inter": 300, "experts": 8, "topk": 3, "skew": 80}
    plan = plan_of(2, 2, kernels="moe_dispatch_gemm", shape=shape, family="normal")
    (measurement,) = measure(plan)
    assert measurement.status == "ok", measurement.message
    assert measurement.check is not None
    assert (measurement.check.elements, measurement.check.mismatches) == (1300 * 3 * (300 + 1), 0)
    assert measurement.network_bytes == plan.points[0].network_bytes


def test_no_points_start_no_ranks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert list(HostPlatform().run([])) == []


@pytest.mark.usefixtures("patched")
class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            (
                "kill:2:launch 1",
                r"rank 2 on .* was killed by SIGKILL in phase 'launch 1' of gemm_ar/m256n512k32/.*c2",
            ),
            ("raise:1:verify", r"rank 1 on .* failed with Boom: planted in phase 'verify' of gemm_ar/"),
            ("stop:0:prepare 1", r"rank 0 on .* made no progress in phase 'prepare 1' of gemm_ar/"),
        ],
    )
    def test_a_lost_rank_is_named(self, fault: str, said: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MKBENCH_TEST_FAULT", fault)
        plan = plan_of(2, 2, deadline_s=1.0)
        started = monotonic()
        with pytest.raises(HangError) as caught:
            measure(plan, worker="faulty_worker")
        assert re.search(said, str(caught.value)), caught.value
        assert monotonic() - started < START_S + 1.0 + PROMISE_S

    def test_a_stalled_launch_ends_soon_after_its_deadline(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MKBENCH_TEST_FAULT", "stall:3:launch 0")
        started = monotonic()
        with pytest.raises(HangError, match="rank 3"):
            measure(plan_of(2, 2, deadline_s=1.0), worker="faulty_worker")
        assert monotonic() - started < START_S + 1.0 + PROMISE_S

    def test_records_before_the_fault_are_kept_and_resume_finishes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        out = tmp_path / "run"
        sweep = ["sweep", "gemm_ar", "--platform", "host", "--nodes", "2", "--ranks-per-node", "1"]
        sweep += [
            "--sizes",
            "256",
            "--policy",
            "static",
            "--comm-sms",
            "1,2,3",
            "--samples",
            "1",
            "--out",
            str(out),
        ]
        monkeypatch.setenv("MKBENCH_TEST_FAULT", "kill:1:launch 1:/c2/")
        killed = cli(*sweep)
        assert killed.returncode == HangError.exit_code, killed.stderr
        assert "rank 1" in killed.stderr
        assert "--resume" in killed.stderr
        assert "Traceback" not in killed.stderr
        assert [record["comm_sms"] for record in records(out)] == [1]
        monkeypatch.delenv("MKBENCH_TEST_FAULT")
        resumed = cli(*sweep, "--resume")
        assert resumed.returncode == 0, resumed.stderr
        assert [record["comm_sms"] for record in records(out)] == [1, 2, 3]
        assert {record["status"] for record in records(out)} == {"ok"}


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


RUN = ("run", "gemm_ar", "--platform", "host", "--nodes", "2", "--ranks-per-node", "2", "--transport", "tcp")
SMALL = ("--size", "256", "--comm-sms", "2", "--samples", "1")


# Tails of tiles and shards, several chunks to every rank.
SHAPES = {
    "gemm_ar": {"m": 300, "n": 520, "k": 33},
    "gemm_rs": {"m": 600, "n": 520, "k": 33},
    "ag_gemm": {"m": 600, "n": 300, "k": 33},
    "moe_dispatch_gemm": {"t": 1300, "hidden": 96, "inter": 300, "experts": 8, "topk": 3, "skew": 80},
    "ring_attention": {"b": 1, "h": 4, "g": 2, "s": 1100, "d": 64, "causal": 1},
}


@pytest.mark.usefixtures("patched")
class TestUnderALauncher:
    @pytest.mark.parametrize("kernel", SHAPES)
    def test_every_kernel_is_exact_and_sends_what_the_formula_says(self, kernel: str, tmp_path: Path):
        case, out = case_of(kernels=kernel, nodes=2, ranks_per_node=2, shape=SHAPES[kernel]), tmp_path / "run"
        shape = ", ".join(f"{name} = {extent}" for name, extent in SHAPES[kernel].items())
        config = tmp_path / "small.toml"
        config.write_text(f"shape = {{ {shape} }}\n")
        asked = ["--config", str(config), "--policy", "adaptive", "--samples", "1", "--out", str(out)]
        done = cli("run", kernel, *RUN[2:], *asked, launcher=mpiexec(4))
        assert done.returncode == 0, done.stderr
        (record,), once = records(out), expected(case)
        assert (record["status"], record["policy"], record["ranks"]) == ("ok", "adaptive", 4)
        assert record["check"] == {"elements": once.elements, "mismatches": 0, "first": None}
        assert record["network_bytes"] == once.payload_bytes == case.point.network_bytes > 0

    @pytest.mark.parametrize(
        "placement",
        [[], ["-launcher", "fork", "-hosts", "a,b", "-ppn", "2"]],
        ids=["one machine", "two machines"],
    )
    def test_only_rank_0_speaks_and_writes(self, placement: list[str], tmp_path: Path):
        out = tmp_path / "run"
        done = cli(*RUN, *SMALL, "--out", str(out), launcher=mpiexec(4, *placement))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("elements are right") == 1
        (record,) = records(out)
        assert (record["status"], record["ranks"], record["check"]["mismatches"]) == ("ok", 4, 0)

    def test_resuming_what_is_complete_ends_on_all_ranks(self, tmp_path: Path):
        sweep = [
            "sweep",
            "gemm_ar",
            "--platform",
            "host",
            "--nodes",
            "1",
            "--ranks-per-node",
            "2",
            "--sizes",
            "256",
        ]
        sweep += ["--policy", "static", "--comm-sms", "1", "--samples", "1", "--out", str(tmp_path / "run")]
        assert cli(*sweep).returncode == 0
        done = cli(*sweep, "--resume", launcher=mpiexec(2))
        assert done.returncode == 0, done.stderr
        assert len(records(tmp_path / "run")) == 1

    def test_another_number_of_ranks_is_refused(self):
        done = cli(*RUN, *SMALL, launcher=mpiexec(3))
        assert done.returncode == UsageError.exit_code
        assert "mpiexec started 3 ranks, but the plan has 2 nodes of 2 ranks" in done.stderr
        assert "Traceback" not in done.stderr

    def test_ranks_that_mpi_does_not_join_are_refused(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("SLURM_PROCID", "0")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
        done = cli(*RUN, *SMALL)
        assert done.returncode == EnvironmentProblem.exit_code
        assert "srun started 4 ranks, but MPI says that there are 1" in done.stderr

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            ("kill:2:launch 1", ""),
            ("raise:1:verify", "Boom"),
            ("stall:3:launch 1", "made no progress in phase 'gather 1'"),
        ],
    )
    def test_a_fault_ends_all_ranks(self, fault: str, said: str, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("MKBENCH_TEST_FAULT", fault)
        started = monotonic()
        done = cli(*RUN, *SMALL, "--deadline", "1", launcher=mpiexec(4))
        assert monotonic() - started < START_S + 1.0 + PROMISE_S
        assert done.returncode != 0
        assert said in done.stderr


def mpiexec(ranks: int, *placement: str) -> list[str]:
    found = find_mpiexec()
    if placement and found.flavour != "MPICH":
        pytest.skip("simulated machines need MPICH")
    return [str(found.path), *found.arguments, *placement, "-n", str(ranks)]


@pytest.fixture
def edited_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the ranks build kernels in which the TCP transport does something else once a payload has
    arrived.
    """

    def edit(replacement: str) -> None:
        copy = tmp_path / "kernels"
        shutil.copytree(kernels_dir(), copy)
        source = copy / "proxy" / "connection.h"
        text = source.read_text()
        assert text.count(LAND) == 1
        source.write_text(text.replace(LAND, replacement))
        monkeypatch.setenv("MKBENCH_TEST_KERNELS", str(copy))

    return edit


LAND = "if (payload_left_ > 0) return true;\n      landing.land(incoming_);"


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("launched", [False, True], ids=["alone", "under mpiexec"])
def test_one_corrupted_bit_gives_exit_5_and_names_the_element(
    launched: bool, edited_kernels: Callable[[str], None]
):
    edited_kernels(LAND.replace("landing.", "heap_[incoming_.destination_offset] ^= 1; landing."))
    done = cli(*RUN, *SMALL, launcher=mpiexec(4) if launched else None)
    assert done.returncode == 5, done.stderr
    assert re.search(r"rank 0 row \d+ column \d+: expected \S+, got \S+", done.stderr)


@pytest.mark.usefixtures("patched")
def test_a_lost_notification_is_a_hang_that_names_the_flag_and_the_next_point_goes_on(
    edited_kernels: Callable[[str], None],
):
    # Only node 1 is not told; its ranks hang, and the others must not wait out a deadline of their own.
    edited_kernels(LAND.replace("landing.", "if (node_ != 1) landing."))
    plan = plan_of(2, 2, comm_sms="1,2", transport="tcp", deadline_s=1.0)
    measurements = measure(plan, worker="faulty_worker")
    assert [measurement.status for measurement in measurements] == ["hang", "hang"]
    for measurement in measurements:
        assert measurement.samples_us == ()
        assert measurement.check is None
        assert re.fullmatch(
            r"rank [23] block \d role receive waits for flag arrived\[\d+\]: expected 1:1, seen 0:0",
            measurement.message or "",
        )
