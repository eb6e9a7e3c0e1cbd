"""The name of a kernel's source in records: equal on every platform that compiles it."""

from __future__ import annotations

from pathlib import Path

from mkbench.build.cache import digest
from mkbench.build.sources import fingerprint, kernel_source
from mkbench.core.resources import kernels_dir

_SOURCE_SUFFIXES = frozenset({".h", ".cuh", ".cu", ".cpp"})


def source_hash(kernel: str, sources: Path | None = None) -> str:
    """12 hex digits over <kernel>.cu and all of the device library mk/, every platform's part of it.

    Raises UsageError if the kernel has no source.
    """
    root = kernels_dir() if sources is None else sources
    library = [file for file in (root / "mk").rglob("*") if file.suffix in _SOURCE_SUFFIXES]
    return digest(fingerprint([kernel_source(kernel, root), *library], root))[:12]
