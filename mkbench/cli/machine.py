"""What this machine offers to mkbench. Every probe answers; none raises."""

import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mkbench.cli.finding import Finding, first_line
from mkbench.cli.gpus import probe_gpus

GIB = 1 << 30
MIN_CXX = 10  # the first g++ with C++20's atomic_ref and atomic wait
MIN_SHM = 1 * GIB

CUDA_PACKAGES = "pip install cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-runtime"
MPI_PACKAGES = "pip install mpi4py mpich"


def probe() -> list[Finding]:
    """Everything that some platform needs, in the order in which to fix it."""
    return [
        _python(),
        _compiler(),
        _make(),
        _mpi_library(),
        _mpiexec(),
        _cores(),
        _memory(),
        _shared_memory(),
        *probe_gpus(),
        _module("CuPy", "cupy"),
        _module("NVRTC", "nvidia.cu13", "nvidia.cuda_nvrtc"),
    ]


def platforms(findings: Sequence[Finding]) -> dict[str, bool]:
    """Which platforms can run, by name. A platform runs if everything that names it was found."""
    names = ["sim", "host"] + (["cuda"] if importlib.util.find_spec("mkbench.platforms.cuda") else [])
    return {name: all(f.ok for f in findings if name in f.needed_for.split(", ")) for name in names}


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding(
        "python", ok, platform.python_version(), "sim, host, cuda", None if ok else "install Python 3.11"
    )


def _compiler() -> Finding:
    fix = "apt-get install g++"
    name = os.environ.get("CXX") or "g++"
    version = first_line(*shlex.split(name), "-dumpfullversion", "-dumpversion")
    if version is None:
        return Finding("g++", False, f"no {name}", "sim, host", fix)
    major = version.split(".")[0]
    ok = not major.isdigit() or int(major) >= MIN_CXX
    return Finding("g++", ok, f"{name} {version}", "sim, host", None if ok else f"{fix} (at least {MIN_CXX})")


def _make() -> Finding:
    found = shutil.which("make")
    return Finding(
        "make", bool(found), found or "no make", "make sweep", None if found else "apt-get install make"
    )


def _mpi_library() -> Finding:
    # In a process of its own: an MPI that does not suit mpi4py may abort instead of raising.
    version = first_line(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    ok = version is not None
    found = " ".join((version or "mpi4py finds no MPI library").split())[:40]
    return Finding("MPI library", ok, found, "host", None if ok else MPI_PACKAGES)


def _mpiexec() -> Finding:
    # Next to the interpreter first: that is where the mpich wheel puts it.
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return Finding("mpiexec", bool(found), found or "no mpiexec", "host", None if found else MPI_PACKAGES)


def _cores() -> Finding:
    return Finding("cores", True, str(len(os.sched_getaffinity(0))), "sim, host")


def _memory() -> Finding:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Finding("memory", True, f"{pages / GIB:.1f} GiB", "sim, host")


def _shared_memory() -> Finding:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return Finding("/dev/shm", False, "none", "host", "mount -t tmpfs -o size=8G tmpfs /dev/shm")
    size = stat.f_blocks * stat.f_frsize
    ok = size >= MIN_SHM
    fix = None if ok else "mount -o remount,size=8G /dev/shm"
    return Finding("/dev/shm", ok, f"{size / GIB:.1f} GiB", "host", fix)


def _module(what: str, *modules: str) -> Finding:
    for module in modules:
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            continue
        if spec is not None:
            return Finding(what, True, module, "cuda")
    return Finding(what, False, "none", "cuda", CUDA_PACKAGES)
