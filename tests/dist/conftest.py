from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def faulty_worker(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the worker module with planted faults, importable by the ranks."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    return "faulty_worker"
