from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line whose ranks fail as MKBENCH_TEST_FAULT says; they find the worker with the faults."""
    folders = [str(TESTS / "dist"), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    return ["python", str(TESTS / "platforms" / "patched_cli.py")]
