"""Blocks and the proxy on one ring at the same time: nothing lost, and every memory order needed.

ThreadSanitizer finds an order that is missing even where the processor would have kept it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mkbench.core.resources import kernels_dir

SOURCE = Path(__file__).with_name("ring.cpp")
FLAGS = ["-std=c++20", "-pthread", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE"]
TSAN = ["-O1", "-g", "-fno-builtin", "-fsanitize=thread"]
RACE_EXIT = 66

#: A file of kernels/, what it says, and what it says in the mutant.
MUTANTS = {
    "publish": (
        "mk/command_queue.h",
        "store<Order::release, Scope::system>(block, slot,",
        "store<Order::relaxed, Scope::system>(block, slot,",
    ),
    "take": (
        "proxy/proxy.h",
        "(slot[0]).load(std::memory_order_acquire)",
        "(slot[0]).load(std::memory_order_relaxed)",
    ),
    "notify": (
        "proxy/put.h",
        "store(value, std::memory_order_release)",
        "store(value, std::memory_order_relaxed)",
    ),
}


def build(kernels: Path, target: Path, *flags: str) -> Path:
    subprocess.run(["g++", *FLAGS, *flags, "-I", str(kernels), str(SOURCE), "-o", str(target)], check=True)
    return target


def run(program: Path, rings: int, depth: int) -> subprocess.CompletedProcess[str]:
    environment = {"TSAN_OPTIONS": f"exitcode={RACE_EXIT}"}
    return subprocess.run(
        [program, str(rings), str(depth)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(kernels_dir(), tmp_path_factory.mktemp("ring") / "ring", "-O2")


@pytest.mark.parametrize(("rings", "depth"), [(1, 1), (1, 4), (2, 4), (4, 2), (3, 16)])
def test_a_full_ring_is_waited_for_and_drops_nothing(program: Path, rings: int, depth: int) -> None:
    done = run(program, rings, depth)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_no_race(tmp_path: Path) -> None:
    done = run(build(kernels_dir(), tmp_path / "ring", *TSAN), 2, 4)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_dropped_order_is_a_race(tmp_path: Path, mutant: str) -> None:
    file, right, wrong = MUTANTS[mutant]
    kernels = tmp_path / "kernels"
    shutil.copytree(kernels_dir(), kernels)
    text = (kernels / file).read_text()
    assert text.count(right) == 1
    (kernels / file).write_text(text.replace(right, wrong))
    done = run(build(kernels, tmp_path / "ring", *TSAN), 2, 4)
    assert done.returncode == RACE_EXIT
    assert "data race" in done.stderr
