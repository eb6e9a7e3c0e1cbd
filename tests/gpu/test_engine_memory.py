from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mkbench.core.environment import gpu_visible

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpu_visible(), reason="no GPU is visible")]


def test_results_are_compared_on_the_gpu_and_memory_is_given_back() -> None:
    # In a process of its own: clients of MPS would have to share the GPU with a context of this one.
    program = Path(__file__).with_name("engine_memory.py")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
