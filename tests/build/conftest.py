"""A tree of tiny sources in the shape of kernels/, and a cache of its own for every test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mkbench.build.cache import Cache

KERNEL = """
#include "mk/add.h"
extern "C" int result(int a, int b) { return mk::add(a, b) + helper(); }
"""
HEADER = """
#pragma once
int helper();
namespace mk { inline int add(int a, int b) { return a + b; } }
"""


@pytest.fixture
def write() -> Callable[[Path, str], None]:
    """Makes or replaces a file, its folders included."""
    return _write


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    root = tmp_path / "sources"
    _write(root / "toy.cu", KERNEL)
    _write(root / "mk" / "add.h", HEADER)
    _write(root / "sim" / "helper.cpp", "int helper() { return 100; }\n")
    _write(root / "host" / "apart.cpp", "int apart() { return 1; }\n")
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
