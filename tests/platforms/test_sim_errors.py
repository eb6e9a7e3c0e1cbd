"""What the simulator says when the kernel is wrong, or a run cannot end.

Each edit of the sources is a kernel of its own. The mutation tests make many more and ask only whether
somebody notices; these stand for the wording.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sim_rig import case_of, result_of, simulation_of

from mkbench.build.cpu import build_library
from mkbench.core import limits
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.resources import kernels_dir
from mkbench.core.workloads.base import Shape
from mkbench.platforms.sim import measure
from mkbench.platforms.simulate import load

Edit = Callable[[str, str, str], Path]
SHAPE = {"m": 500, "n": 1000, "k": 32}  # 4 x 4 tiles
TWO_BY_TWO = {"blocks": 4, "nodes": 2, "ranks_per_node": 2, "shape": SHAPE}


@pytest.fixture
def edited(tmp_path: Path) -> Edit:
    """Returns a copy of the sources in which one text, found once, is replaced."""

    def edit(file: str, old: str, new: str) -> Path:
        copy = tmp_path / "kernels"
        shutil.copytree(kernels_dir(), copy)
        text = (copy / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
        (copy / file).write_text(text.replace(old, new))
        return copy

    return edit


READY_SIGNAL = "signal<Scope::system>(block, map.told(map.owner(tile), ready, slot)"


def test_a_dropped_signal_is_a_deadlock_that_names_who_waits_for_what(edited: Edit) -> None:
    sources = edited("mk/reduction.h", READY_SIGNAL, f"if (tile != 5 || p.rank != 3) {READY_SIGNAL}")
    case = case_of(**TWO_BY_TWO)
    result = result_of(case, sources=sources)
    assert result.status == "deadlock"
    first, *lines = result.report.splitlines()
    assert first == f"deadlock: {len(lines)} blocks wait and nothing can run"
    # Tile 5 is in chunk 1, so local rank 1 owns it; it is that rank's second tile. Local ranks come in pairs.
    owner = [line for line in lines if line.startswith("  rank 3 ") and "waits for ready" in line]
    assert len(owner) == 1
    assert re.fullmatch(
        r"  rank 3 block \d role local waits for ready\[3\]: expected 1:1, seen 0:0", owner[0]
    ), owner
    # The other node lacks the chunk, and everybody the end.
    assert any(re.search(r"rank 1 block \d role receive waits for arrived\[\d\]", line) for line in lines)
    assert any(re.search(r"rank \d block 0 role \w+ waits for finished\[\d\]", line) for line in lines)


def test_a_long_report_is_cut(edited: Edit) -> None:
    sources = edited("mk/reduction.h", READY_SIGNAL, f"if (p.rank != 0) {READY_SIGNAL}")
    case = case_of(nodes=1, ranks_per_node=3, blocks=30, shape={"m": 1000, "n": 2000, "k": 8}, comm_sms="20")
    lines = result_of(case, sources=sources).report.splitlines()
    waiting = int(lines[0].split()[1])
    assert waiting > 12
    assert len(lines) == 1 + 12 + 1
    assert lines[-1] == f"  and {waiting - 12} more"


@pytest.mark.parametrize(
    ("file", "old", "new", "text"),
    [
        (
            "mk/reduction.h",
            READY_SIGNAL,
            READY_SIGNAL.replace("system", "gpu"),
            r"rank \d block \d role compute uses gpu scope on a word of rank \d",
        ),
        (
            "gemm_ar.cu",
            "wait_all<Scope::system>(block, map.told(p.local_rank, ready, slot)",
            "wait_all<Scope::gpu>(block, map.told(p.local_rank, ready, slot)",
            r"rank \d block \d role local reads at gpu scope what rank \d signalled",
        ),
        (
            "gemm_ar.cu",
            "completes<Scope::gpu>(block, &map.counters().received",
            "reached_all<Scope::gpu>(block, map.received(arrived, 0), 1) && "
            "!completes<Scope::gpu>(block, &map.counters().received",
            r"rank [23] block \d role \w+ reads at gpu scope what the network signalled",
        ),
    ],
    ids=["signal", "wait", "network"],
)
def test_gpu_scope_on_what_others_share_is_an_error(
    edited: Edit, file: str, old: str, new: str, text: str
) -> None:
    result = result_of(case_of(**TWO_BY_TWO), sources=edited(file, old, new))
    assert result.status == "protocol_error"
    assert re.fullmatch(text, result.report), result.report


def test_a_command_that_makes_no_sense_is_an_error(edited: Edit) -> None:
    sources = edited("mk/reduction.h", "return (p.node + step) % p.nodes", "return p.node + 0 * step")
    result = result_of(case_of(**TWO_BY_TWO), sources=sources)
    assert result.status == "protocol_error"
    assert "no such peer" in result.report


def test_simulated_time_is_limited() -> None:
    case = case_of(**TWO_BY_TWO)
    late = replace(case.point, deadline_s=10e-6)
    result = result_of(replace(case, point=late))
    assert result.status == "time_limit"
    assert result.report.startswith("the launch did not end within 10 us of simulated time")
    measurement = measure(late, case.cluster, build_library("gemm_ar"))
    assert measurement.status == "hang"
    assert measurement.samples_us == ()
    assert measurement.message == result.report


def protection(address: int) -> str:
    """Access rights of a page of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights = line.split()[:2]
        first, last = (int(end, 16) for end in where.split("-"))
        if first <= address < last:
            return rights
    raise AssertionError(f"{address:#x} is not mapped")


@pytest.mark.parametrize("policy", ["static", "adaptive"])
def test_without_data_the_payload_is_out_of_reach_and_nothing_else_changes(policy: str) -> None:
    settings = {**TWO_BY_TWO, "policies": policy, "comm_sms": "2", "start_comm_sms": 2}
    outcomes = []
    for data in (False, True):
        with simulation_of(case_of(**settings, data=data), launches=2) as simulation:
            payload = simulation.view(1, -(-simulation.heap.control_end // 4096) * 4096, 1, "u1").ctypes.data
            assert protection(payload).startswith("rw" if data else "---")
            result = simulation.run()
            assert result.status == "ok"
            outcomes.append((result, [simulation.history(rank).tolist() for rank in range(4)]))
    assert outcomes[0] == outcomes[1]


def test_heaps_beyond_the_address_space_are_refused() -> None:
    case = case_of(**TWO_BY_TWO)
    huge = replace(case.point, shape=Shape(m=2**17, n=case.point.shape.n, k=2**31 - 8))
    with pytest.raises(EnvironmentProblem, match="do not fit into the address space"):
        result_of(replace(case, point=huge))


def test_limits_are_those_of_the_library() -> None:
    constants = load(build_library("gemm_ar")).layout.constants
    assert constants["max_node_ranks"] == limits.MAX_NODE_RANKS
    assert constants["max_nodes"] == limits.MAX_NODES
