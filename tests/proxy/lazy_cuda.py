"""lazy_cuda.c as a driver: built, found by who opens libcuda.so.1, and held back."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from mkbench.build.cpu import find_compiler

CONTEXT = 42
NAME = "libcuda.so.1"
SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-x", "c", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{NAME}")


def build(target: Path, *flags: str) -> None:
    """Compile the driver. Never load it into a process of pytest, which would then have a GPU."""
    command = [*find_compiler().command, *FLAGS, *flags, str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True, timeout=60)


class LazyCuda:
    """The driver, loaded into this process: whoever opens libcuda.so.1 from now on gets it."""

    FROM_GPU, TO_GPU = 1, 2

    def __init__(self, path: str = NAME) -> None:
        self._library = ctypes.CDLL(path)
        self._library.lazy_cuda_hold.restype = None

    def hold(self, kinds: int) -> None:
        """Let copies of these kinds, and what is behind them in their streams, wait for another call."""
        self._library.lazy_cuda_hold(kinds)

    def copies(self, kind: int) -> int:
        """How many copies of a kind were asked for so far."""
        return int(self._library.lazy_cuda_copies(kind))
