"""Judges: processes that put builds through the gauntlet, and what each mutant is tried for."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from generate import Mutant
from workshop import Gauntlet, build, build_driver

from mkbench.build import cpu
from mkbench.build.errors import BuildFailed
from mkbench.core.resources import kernels_dir

_SEEDS: Mapping[cpu.Variant, int] = {"release": 20, "tsan": 2}
_TIMEOUT_S = 60.0
"""Of processor time in the simulator, whatever else runs on the machine; of real time with threads."""
# Which differ in the order of an access alone: on most machines the same code without ThreadSanitizer.
_ORDER_RULES = ("order relaxed", "order halved")
# Which differ in scope alone, which is nothing to ThreadSanitizer.
_SCOPE_RULE = "scope gpu"
_NOT_SIMULATED = (
    "proxy/proxy.cpp",
    "proxy/connection.h",
    "proxy/copy_engine.h",
    "proxy/staged.h",
    "proxy/transport_shm.h",
    "proxy/transport_tcp.h",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who caught a build (None: nobody), and how."""

    detector: str | None
    detail: str = ""


class Judge:
    """A judging process."""

    def __init__(self, variant: cpu.Variant) -> None:
        # NumPy's threads would be in the way of fork, and of ThreadSanitizer.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        if variant == "tsan":
            environment |= {"LD_PRELOAD": str(libtsan()), "TSAN_OPTIONS": "exitcode=66:halt_on_error=1"}
        self._driver = build_driver(variant)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("judge.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)

    def judge(self, kernel: str, library: Path, gauntlet: Gauntlet, seeds: int, timeout_s: float) -> Verdict:
        """Put one library through a gauntlet, the simulator's with `seeds` random orders."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "kernel": kernel,
            "library": str(library),
            "gauntlet": gauntlet,
            "seeds": seeds,
            "driver": str(self._driver),
            "timeout_s": timeout_s,
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        verdict = Verdict(**json.loads(self._process.stdout.readline()))
        if verdict.detector == "error":
            # No mutant does that: the gauntlet itself fails, and would "catch" everything.
            raise RuntimeError(f"the gauntlet does not run: {verdict.detail}")
        return verdict


class Court:
    """Judges of both variants, as many of each as may work at once: more than two cores need, since some only
    wait for a time limit. Close it, which ends their processes.
    """

    def __init__(self, width: int = 3) -> None:
        self._width = width
        self._all: list[Judge] = []
        self._idle: dict[cpu.Variant, queue.SimpleQueue[Judge]] = {}
        for variant in ("release", "tsan"):
            self._idle[variant] = queue.SimpleQueue()
            for _ in range(width):
                self._all.append(Judge(variant))
                self._idle[variant].put(self._all[-1])

    def close(self) -> None:
        """End the processes."""
        for judge in self._all:
            judge.close()

    def try_all(self, mutants: Sequence[Mutant], folder: Path) -> list[tuple[Mutant, Verdict]]:
        """Return each mutant with its verdict; several are tried at a time."""
        folders = [folder / str(i) for i in range(len(mutants))]
        with ThreadPoolExecutor(self._width) as pool:
            return list(zip(mutants, pool.map(self._try, mutants, folders), strict=True))

    def _try(self, mutant: Mutant, folder: Path) -> Verdict:
        edits = {mutant.file: mutant.apply((kernels_dir() / mutant.file).read_text())}
        try:
            for gauntlet, variant in _hearings(mutant):
                for kernel in mutant.kernels if gauntlet == "simulator" else mutant.kernels[:1]:
                    verdict = self.judge(
                        kernel, gauntlet, variant, edits, folder / kernel / gauntlet / variant
                    )
                    if verdict.detector:
                        return verdict
            return Verdict(None)
        except BuildFailed as error:
            return Verdict("compiler", str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def judge(
        self,
        kernel: str,
        gauntlet: Gauntlet,
        variant: cpu.Variant,
        edits: Mapping[str, str],
        folder: Path,
        seeds: int | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> Verdict:
        """Build a kernel with `edits` and put it through one gauntlet."""
        library = build(kernel, gauntlet, variant, edits, folder)
        with self._borrow(variant) as judge:
            return judge.judge(
                kernel, library, gauntlet, _SEEDS[variant] if seeds is None else seeds, timeout_s
            )

    @contextmanager
    def _borrow(self, variant: cpu.Variant) -> Iterator[Judge]:
        judge = self._idle[variant].get()
        try:
            yield judge
        finally:
            self._idle[variant].put(judge)


def _hearings(mutant: Mutant) -> Iterator[tuple[Gauntlet, cpu.Variant]]:
    """Yield what a mutant goes through, cheapest first."""
    simulated, order = mutant.file not in _NOT_SIMULATED, mutant.rule in _ORDER_RULES
    if simulated and not order:
        yield "simulator", "release"
    if simulated and mutant.rule != _SCOPE_RULE:
        yield "simulator", "tsan"
    if not simulated and not order:
        yield "threads", "release"
    if mutant.file.startswith("proxy/"):
        yield "threads", "tsan"


@cache
def libtsan() -> Path:
    """Return the run-time library of ThreadSanitizer that belongs to the compiler."""
    command = [*cpu.find_compiler().command, "-print-file-name=libtsan.so"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).resolve()
