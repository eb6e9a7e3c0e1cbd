"""Programs that a test starts in the background and that end with it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from mkbench.dist.processes import die_with_parent

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / ".ci" / "packages.txt").read_text().split()


def require(*programs: str) -> None:
    """Skip the test, with the command that helps, where a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(PACKAGES)}")


@contextmanager
def daemon(command: Sequence[str], log: Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in the foreground of its own; it is ended however the block, or this process, ends."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=die_with_parent, **options
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Look until `condition` holds; fails with `what` if it never does."""
    deadline = monotonic() + timeout_s
    while not condition():
        assert monotonic() < deadline, what
        sleep(0.02)
