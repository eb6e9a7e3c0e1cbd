"""The environment stamp: an allow-list of what explains a number, and nothing else."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mkbench

VARIABLES = (
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "FI_PROVIDER",
    "MPIR_CVAR_CH4_NETMOD",
    "NCCL_NVLS_ENABLE",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "UCX_NET_DEVICES",
    "UCX_TLS",
)


def stamp() -> dict[str, Any]:
    """Return versions, processor, GPUs and the allowed environment variables; equal on equal machines."""
    gpus = {"gpus": _gpus()} if gpu_visible() else {}
    return gpus | {
        "mkbench": mkbench.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "compiler": compiler_version(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def digest(env: Mapping[str, Any]) -> str:
    """Return 12 hex digits that name a stamp in every record."""
    text = json.dumps(env, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def compiler_version(command: str = "g++") -> str | None:
    """Return the first line of `g++ --version`, or None if there is no such compiler."""
    if shutil.which(command) is None:
        return None
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.partition("\n")[0] or None


def memory_available_bytes() -> int:
    """Return the memory that new processes can take without swapping (Linux: MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpu_visible() -> bool:
    """Tell whether an NVIDIA GPU is there and not hidden, without loading a driver library."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    return not hidden and any(Path("/dev").glob("nvidia[0-9]*"))


def default_platform() -> str:
    """Return "cuda" where a GPU is visible and this version has the platform for it, else "sim"."""
    return "cuda" if gpu_visible() and find_spec("mkbench.platforms.cuda") else "sim"


def gpu_count() -> int:
    """Return the GPUs of this machine, hidden ones included."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _gpus() -> list[str]:
    """Return name and driver version of each GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
