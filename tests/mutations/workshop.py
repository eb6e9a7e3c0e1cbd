"""Builds mutants and hands them to judges."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType

from gauntlet import DEFINES
from generate import Mutant

from mkbench.build import cpu
from mkbench.build.cache import Cache
from mkbench.build.errors import BuildFailed
from mkbench.core.resources import kernels_dir

_WATCHED = ("gemm_ar.cu", "proxy/proxy_sim.cpp")
"""Units that contain what is mutated; the simulator itself stays as it is. The host's units are left out, since
they hold inline functions of the proxy too and the linker would choose between the two."""

_LEFT_OUT = ("host/threads.cpp", "proxy/proxy.cpp")
_ORDER_RULES = ("order relaxed", "order halved")
STRESS_SEEDS = 20
STRESS_SEEDS_TSAN = 2
TIMEOUT_S = 20.0
TIMEOUT_S_TSAN = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who caught a mutant (None: nobody), and how."""

    detector: str | None
    detail: str


class Judge:
    """A judging process. Close it, or use it in a with statement."""

    def __init__(self, variant: cpu.Variant) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        if variant == "tsan":
            environment |= {"LD_PRELOAD": str(libtsan()), "TSAN_OPTIONS": "exitcode=66:halt_on_error=1"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("judge.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._timeout_s = TIMEOUT_S if variant == "release" else TIMEOUT_S_TSAN

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def judge(self, library: Path, seeds: int) -> Verdict:
        """Put one library through the gauntlet, with `seeds` random orders."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"library": str(library), "seeds": seeds, "timeout_s": self._timeout_s}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Verdict(**json.loads(self._process.stdout.readline()))


@cache
def libtsan() -> Path:
    """Return the run-time library of ThreadSanitizer that belongs to the compiler."""
    command = [*cpu.find_compiler().command, "-print-file-name=libtsan.so"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()).resolve()


def build(variant: cpu.Variant, edits: Mapping[str, str], folder: Path) -> Path:
    """Build the kernel with small tiles; `edits` are whole files that replace those of the kernels.

    `folder` receives the changed sources and what is compiled from them.
    """
    compiler, shared = cpu.find_compiler(), Cache()
    mutated = _tree(folder / "kernels", edits) if edits else kernels_dir()
    own = Cache(folder / "build") if edits else shared
    objects = []
    for unit in cpu._units("gemm_ar", kernels_dir(), DEFINES, variant):
        name = unit.source.relative_to(kernels_dir()).as_posix()
        if name in _LEFT_OUT:
            continue
        # A mutant may leave a parameter or a variable unused.
        unit = replace(unit, flags=(*unit.flags, "-w"))
        touched = name in _WATCHED and any(_contains(name, file) for file in edits)
        root = mutated if touched else kernels_dir()
        unit = replace(unit, source=root / name)
        objects.append(cpu._compile(unit, root, compiler, own if touched else shared))
    return cpu._link("gemm_ar", objects, variant, compiler, own)


def _contains(unit: str, file: str) -> bool:
    """Whether `file` is compiled into `unit`."""
    return file in {path.relative_to(kernels_dir()).as_posix() for path in cpu.included_files(kernels_dir() / unit, kernels_dir())}


def _tree(folder: Path, edits: Mapping[str, str]) -> Path:
    shutil.copytree(kernels_dir(), folder)
    for file, text in edits.items():
        (folder / file).write_text(text)
    return folder


class Court:
    """Judges of both variants, as many of each as may work at once."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._judges: dict[cpu.Variant, queue.SimpleQueue[Judge]] = {}
        self._all: list[Judge] = []
        for variant in ("release", "tsan"):
            idle = self._judges[variant] = queue.SimpleQueue()
            for _ in range(width):
                self._all.append(Judge(variant))
                idle.put(self._all[-1])

    def close(self) -> None:
        """End the processes."""
        for judge in self._all:
            judge.__exit__(None, None, None)

    def try_all(self, mutants: Iterable[Mutant], folder: Path) -> Iterator[tuple[Mutant, Verdict]]:
        """Yield each mutant with its verdict, several at a time, in order."""
        listed = list(mutants)
        with ThreadPoolExecutor(self._width) as pool:
            folders = [folder / str(i) for i in range(len(listed))]
            yield from zip(listed, pool.map(self.try_one, listed, folders), strict=True)

    def try_one(self, mutant: Mutant, folder: Path) -> Verdict:
        """Return the verdict of the first detector that catches the mutant; the last costs most.

        What differs in the order of an access alone is, on most machines, the same code without ThreadSanitizer.
        """
        edits = {mutant.file: mutant.apply((kernels_dir() / mutant.file).read_text())}
        try:
            verdict = Verdict(None, "")
            if mutant.rule not in _ORDER_RULES:
                verdict = self.judge("release", edits, folder / "release", STRESS_SEEDS)
            if verdict.detector is None:
                verdict = self.judge("tsan", edits, folder / "tsan", STRESS_SEEDS_TSAN)
            return verdict
        except BuildFailed as error:
            return Verdict("compiler", str(error))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def judge(self, variant: cpu.Variant, edits: Mapping[str, str], folder: Path, seeds: int) -> Verdict:
        """Build and judge one variant."""
        library = build(variant, edits, folder)
        with self._borrow(variant) as judge:
            return judge.judge(library, seeds)

    @contextmanager
    def _borrow(self, variant: cpu.Variant) -> Iterator[Judge]:
        judge = self._judges[variant].get()
        try:
            yield judge
        finally:
            self._judges[variant].put(judge)
