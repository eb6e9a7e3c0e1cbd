"""g++ front end: a kernel, the simulator, the host platform and the proxy as one shared object."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mkbench.build.cache import Cache, digest
from mkbench.build.errors import BuildFailed
from mkbench.build.sources import fingerprint, included_files, kernel_source
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.resources import kernels_dir

Variant = Literal["release", "tsan"]

_SUPPORT_FOLDERS = ("sim", "host", "proxy")
# The checks of _FORTIFY_SOURCE reject the longjmp between fibers. No -ffast-math: it folds isnan away.
_COMMON_FLAGS = (
    "-std=c++20", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror",
    "-U_FORTIFY_SOURCE", "-fno-strict-aliasing",
)  # fmt: skip
_RELEASE_FLAGS = ("-O3",)
_TSAN_FLAGS = ("-O1", "-g", "-DMK_TSAN=1")
# Without -fno-builtin gcc inlines copies of a known size, uninstrumented, and their races are missed.
_TSAN_INSTRUMENTED = ("-fno-builtin", "-fsanitize=thread")
_LINK_FLAGS = ("-shared", "-pthread", "-Wl,--no-undefined", "-ldl")
_PARALLEL = 2


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command, and the text that tells its versions apart."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class _Unit:
    source: Path
    flags: tuple[str, ...]


def build_library(
    kernel: str,
    *,
    defines: Mapping[str, str | int] | None = None,
    variant: Variant = "release",
    sources: Path | None = None,
    cache: Cache | None = None,
) -> Path:
    """Path of the shared object of `kernel`, compiled if no earlier build had the same inputs.

    It holds <kernel>.cu and every .cpp file of sim/, host/ and proxy/ below `sources` (default: the kernels
    that come with mkbench). `defines` reach every translation unit. Variant "tsan" instruments all but the
    simulator with ThreadSanitizer; loading it takes a process started with libtsan preloaded.

    Each unit is an entry of the cache, keyed by the text that it includes: an edit compiles what it touches.
    Raises UsageError for an unknown kernel, EnvironmentProblem without a compiler, BuildFailed with the first
    error.
    """
    root = kernels_dir() if sources is None else sources
    store = Cache() if cache is None else cache
    compiler = find_compiler()
    units = _units(kernel, root, defines or {}, variant)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        objects = list(pool.map(lambda unit: _compile(unit, root, compiler, store), units))
    return _link(kernel, objects, variant, compiler, store)


def find_compiler() -> Compiler:
    """$CXX, else g++. Raises EnvironmentProblem if it is missing or does not run."""
    command = tuple(shlex.split(os.environ.get("CXX") or "g++"))
    if not command or (program := shutil.which(command[0])) is None:
        raise EnvironmentProblem(
            f"no C++ compiler: '{' '.join(command)}' is not on PATH",
            hint="run `apt-get install g++` (Debian, Ubuntu), or set CXX to a compiler of C++20",
        )
    return Compiler(command, _version(command, Path(program).stat().st_mtime_ns))


@lru_cache
def _version(command: tuple[str, ...], _changed_ns: int) -> str:
    try:
        done = subprocess.run([*command, "-v"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            f"the C++ compiler '{' '.join(command)}' does not run: {error}",
            hint="set CXX to a compiler of C++20",
        ) from error
    # Target and configuration are part of what decides the object code.
    return done.stderr


def _units(kernel: str, root: Path, defines: Mapping[str, str | int], variant: Variant) -> list[_Unit]:
    common = (
        *_COMMON_FLAGS,
        *_machine_flags(),
        *(f"-D{name}={value}" for name, value in sorted(defines.items())),
    )
    if variant == "release":
        plain = instrumented = (*common, *_RELEASE_FLAGS)
    else:
        plain = (*common, *_TSAN_FLAGS)
        instrumented = (*plain, *_TSAN_INSTRUMENTED)
    units = [_Unit(kernel_source(kernel, root), instrumented)]
    for folder in _SUPPORT_FOLDERS:
        # The scheduler and its heap stay invisible to ThreadSanitizer: their accesses would order the fibers.
        flags = plain if folder == "sim" else instrumented
        units += [_Unit(source, flags) for source in sorted((root / folder).glob("*.cpp"))]
    return units


def _machine_flags() -> tuple[str, ...]:
    if platform.machine() != "x86_64":
        return ()
    return ("-march=x86-64-v3",) if {"avx2", "fma"} <= _cpu_features() else ()


@lru_cache
def _cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.split()) for line in lines if line.startswith("flags")), frozenset())


def _compile(unit: _Unit, root: Path, compiler: Compiler, store: Cache) -> tuple[str, Path]:
    files = included_files(unit.source, root)
    key = digest(
        ["object", compiler.version, *compiler.command, *unit.flags, "--", *fingerprint(files, root)]
    )
    # The prefix map makes __FILE__ and debug information the same wherever the sources lie, as the key is.
    where = ("-I", str(root), f"-ffile-prefix-map={root}=kernels")
    name = unit.source.relative_to(root).as_posix()

    def build(target: Path) -> None:
        command = [
            *compiler.command,
            *unit.flags,
            *where,
            "-c",
            "-x",
            "c++",
            str(unit.source),
            "-o",
            str(target),
        ]
        _run(command, name, key, store)

    return key, store.get(key, ".o", build)


def _link(
    kernel: str, objects: Sequence[tuple[str, Path]], variant: Variant, compiler: Compiler, store: Cache
) -> Path:
    flags = (*_LINK_FLAGS, "-fsanitize=thread") if variant == "tsan" else _LINK_FLAGS
    key = digest(["library", compiler.version, *compiler.command, *flags, *(key for key, _ in objects)])

    def build(target: Path) -> None:
        files = [str(path) for _, path in objects]
        _run([*compiler.command, *flags, *files, "-ldl", "-o", str(target)], f"{kernel}.so", key, store)

    return store.get(key, ".so", build)


def _run(command: Sequence[str], what: str, key: str, store: Cache) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if done.returncode != 0:
        log = store.write_log(key, f"{shlex.join(command)}\n\n{done.stdout}")
        raise BuildFailed(what, done.stdout, log)
