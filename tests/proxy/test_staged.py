"""Payload in GPU memory: every flag comes after both copies, and a driver that fails is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lazy_cuda
import pytest


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    lazy_cuda.build(folder / lazy_cuda.NAME)
    return folder


def run(check: str, transport: str, driver: Path, **environment: str) -> str:
    """What a check complains about, on a line each."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("staged_run.py")), check, transport],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == bool(done.stderr)
    return done.stderr.strip()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("check", ["one by one", "held back", "launches"])
def test_a_flag_comes_after_its_payload(check: str, transport: str, driver: Path) -> None:
    assert run(check, transport, driver) == ""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("call", ["cuMemcpyDtoHAsync", "cuEventQuery"])
def test_a_failing_driver_is_named(transport: str, call: str, driver: Path) -> None:
    found = run("one by one", transport, driver, LAZY_CUDA_BREAKS=call)
    assert found == f"copy engine: {call} failed with CUDA error 700"


def test_a_driver_that_refuses_streams_is_named(driver: Path) -> None:
    found = run("one by one", "shm", driver, LAZY_CUDA_BREAKS="cuStreamCreate")
    assert "cannot start: cuStreamCreate failed with CUDA error 700" in found
