"""Runs of mkbench on this machine's GPU. They leave nothing behind, however they end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: How long a watcher of MPS, or the driver, may take to tidy up after the command has ended.
TIDY_S = 10.0

Mkbench = Callable[..., subprocess.CompletedProcess[str]]


def leftovers() -> set[str]:
    """Folders, processes and shared memory that belong to runs of mkbench."""
    # What is CUDA's own there, CUDA keeps as long as it likes.
    found = {str(path) for path in Path("/dev/shm").iterdir() if not path.name.startswith("cuda")}
    for root in {Path("/tmp"), Path(tempfile.gettempdir())}:
        found |= {str(path) for pattern in ("mkbench-*", ".mkbench-*") for path in root.glob(pattern)}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(name in command for name in ("mkbench-job-", "mkbench.dist.mps", "nvidia-cuda-mps-")):
                found.add(f"{entry.name} {command}")
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = leftovers()
    yield
    deadline = monotonic() + TIDY_S
    while (left := leftovers() - before) and monotonic() < deadline:
        sleep(0.05)
    assert not left


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and ranks find mkbench, and the workers in this folder."""
    folders = [str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


@pytest.fixture
def mkbench() -> Mkbench:
    """`mkbench("doctor")`: the command with its output and exit code; `script` may stand in for it."""

    def run(*words: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
        program = ["-m", "mkbench"] if script is None else [str(HERE / script)]
        return subprocess.run(
            [sys.executable, *program, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=ROOT,
        )

    return run
