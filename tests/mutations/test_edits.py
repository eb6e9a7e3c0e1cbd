"""The simulator runs the kernel, not a formula: some edits, and what they come to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from mkbench.build.cpu import build_library
from mkbench.core.config import load_config
from mkbench.core.plan import make_plan
from mkbench.core.resources import kernels_dir
from mkbench.core.workloads.gemm import TILE_BYTES
from mkbench.platforms.sim import verify
from mkbench.platforms.simulate import Simulation, load

SHAPE = {"m": 300, "n": 700, "k": 24}  # three by three tiles, numbered down the columns
LAYER = {"t": 40, "hidden": 24, "inter": 40, "experts": 4, "topk": 2}

Start = Callable[..., Simulation]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that prepares the kernel with the one match of a pattern in a file replaced."""
    running: list[Simulation] = []

    def prepare(
        file: str,
        pattern: str,
        replacement: str,
        *,
        nodes: int,
        ranks_per_node: int,
        kernel: str = "gemm_ar",
        shape: Mapping[str, int] = SHAPE,
    ) -> Simulation:
        sources = tmp_path / "kernels"
        shutil.copytree(kernels_dir(), sources)
        source = sources / file
        code, count = re.subn(pattern, replacement, source.read_text())
        assert count == 1
        source.write_text(code)
        cluster = "1x8-h100" if nodes == 1 else "2x8-h200-ib"
        settings = {
            "kernels": kernel, "platform": "sim", "cluster": cluster, "nodes": nodes,
            "ranks_per_node": ranks_per_node, "shape": shape, "comm_sms": [4],
            "policies": ["static"], "chunk_tiles": 1, "data": True,
        }  # fmt: skip
        plan = make_plan(load_config(None, settings))
        library = load(build_library(kernel, sources=sources))
        running.append(Simulation(library, plan.points[0], plan.cluster, seed=1))
        running[-1].fill_inputs()
        return running[-1]

    yield prepare
    for simulation in running:
        simulation.close()


def test_a_dropped_signal_is_a_deadlock_that_says_who_waits_for_what(start: Start) -> None:
    signal = r"signal<Scope::system>\([^;]*\bready\b"
    simulation = start("mk/reduction.h", signal, r"if (tile != 3) \g<0>", nodes=1, ranks_per_node=2)
    result = simulation.run()
    assert result.status == "deadlock"
    # Tile 3 is the second that rank 1 owns; its flags are those of two ranks each.
    wait = r"rank (\d+) block (\d+) role (\w+) waits for (\w+)\[(\d+)\]: expected (\S+), seen (\S+)"
    waits = re.findall(wait, result.report)
    assert ("1", "local", "ready", "2", "1:1", "0:0") in [(rank, *rest) for rank, _, *rest in waits]
    assert all(0 <= int(block) < simulation.point.blocks for _, block, *_ in waits)


def test_a_skipped_tile_is_a_wrong_result_that_names_the_element(start: Start) -> None:
    broadcast = r"reduce\(block, window, sources,"
    simulation = start("gemm_ar.cu", broadcast, r"if (tile != 3) \g<0>", nodes=1, ranks_per_node=2)
    assert simulation.run().status == "ok"
    check = verify(simulation)
    assert check.mismatches == 2 * 128 * 256
    assert check.first is not None
    assert re.match(r"rank 0 row 0 column 256: expected \S+, got nan", check.first)


def test_a_chunk_sent_twice_shows_in_the_network_bytes(start: Start) -> None:
    twice = "return send(chunk) && (chunk != 0 || send(chunk));"
    simulation = start("gemm_ar.cu", r"return send\(chunk\);", twice, nodes=2, ranks_per_node=2)
    result = simulation.run()
    assert simulation.point.network_bytes == 2 * 9 * TILE_BYTES
    assert result.payload_bytes == simulation.point.network_bytes + 4 * TILE_BYTES


def test_a_wrong_weight_beside_a_row_is_a_wrong_result(start: Start) -> None:
    simulation = start(
        "moe_dispatch_gemm.cu", r"weights\[i\] = entry\.weight;", "weights[i] = entry.weight + (i == 0);",
        nodes=2, ranks_per_node=1, kernel="moe_dispatch_gemm", shape=LAYER,
    )  # fmt: skip
    assert simulation.run().status == "ok"
    check = verify(simulation)
    # Of each rank the first of each segment: two experts, in one window of each of two ranks.
    assert check.mismatches == 2 * 2 * 2
    assert check.first is not None
    assert re.match(r"rank 0 row_weights 0: expected \S+, got ", check.first)
