"""Virtual clusters on this machine's GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mkbench.core.environment import gpu_visible

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_visible(), reason="no GPU is visible")]

ROOT = Path(__file__).parents[2]


def mkbench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkbench", *words, "--platform", "cuda", "--cluster", "1x4-h200-virtual"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env=dict(os.environ)
    )


@pytest.mark.parametrize(
    "where", [("1", "2", "shm"), ("1", "4", "shm"), ("2", "2", "shm"), ("2", "2", "tcp")], ids="-".join
)
@pytest.mark.parametrize("partition", [("--comm-sms", "3"), ("--policy", "adaptive")])
def test_every_element_is_right(where: tuple[str, str, str], partition: tuple[str, str]) -> None:
    nodes, ranks, transport = where
    place = ("--nodes", nodes, "--ranks-per-node", ranks, "--transport", transport)
    done = mkbench("run", "gemm_ar", "--shape", "m=500,n=776,k=96", *place, *partition)
    assert done.returncode == 0, done.stderr
    assert re.search(r"all \d+ elements are right", done.stdout)


def test_a_hang_names_who_waits_and_the_next_run_works() -> None:
    done = mkbench("run", "gemm_ar", "--size", "4096", "--comm-sms", "4", "--deadline", "0.00003")
    assert done.returncode == 4
    assert re.search(
        r"rank \d block \d+ role \w+ waits for flag \w+\[\d+\]: expected 1:1, seen 0:0", done.stderr
    )
    assert mkbench("run", "gemm_ar", "--size", "512", "--comm-sms", "4").returncode == 0
