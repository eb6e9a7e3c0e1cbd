"""What cannot run on this machine's GPU is refused in one line that says what to do next."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mkbench.cli.gpus import probe_gpus
from mkbench.core.cluster import load_cluster
from mkbench.core.environment import gpu_visible

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_visible(), reason="no GPU is visible")]

VIRTUAL = ("run", "gemm_ar", "--platform", "cuda", "--cluster", "1x4-h200-virtual", "--comm-sms", "4")
ALONE = ("run", "gemm_ar", "--platform", "cuda", "--cluster", "1x8-h200", "--ranks-per-node", "1")


def is_refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


def test_a_grid_that_cannot_be_resident(mkbench) -> None:
    blocks = load_cluster("1x4-h200-virtual").blocks
    refused = mkbench(*VIRTUAL, script="crowded_cli.py")
    is_refused(refused, f"{blocks} of {blocks + 1} blocks became resident", "nvidia-smi")


def test_a_size_that_does_not_fit(mkbench) -> None:
    is_refused(mkbench(*VIRTUAL, "--size", "256K"), "one h200 has", "choose a smaller size")


def test_no_mps(mkbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    is_refused(mkbench(*VIRTUAL), "no nvidia-cuda-mps-control", "--ranks-per-gpu 1")


def test_a_gpu_that_cuda_does_not_hand_out(mkbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an exclusive mode that another process profits from; here there is no GPU of that number."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "99")
    is_refused(mkbench(*ALONE), "rank 0", "GPU 0 cannot be used: cudaError", "compute mode Default")


def test_an_exclusive_mode_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the real nvidia-smi says, but for the mode, which is never changed."""
    real = shutil.which("nvidia-smi")
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n{real} "$@" | sed "s/, Default,/, Exclusive_Process,/"\n')
    program.chmod(0o755)
    assert {finding.what: finding.ok for finding in probe_gpus()}["compute mode"]
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (mode,) = (finding for finding in probe_gpus() if finding.what == "compute mode")
    assert not mode.ok
    assert mode.found.startswith("GPU 0: Exclusive_Process")
    assert "nvidia-smi -i 0 -c DEFAULT" in (mode.fix or "")
