"""What the GPUs of this machine offer, from what nvidia-smi prints. Every probe answers; none raises."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mkbench.cli.finding import Finding
from mkbench.cli.links import links

MIN_CUDA = 12
SHARED_GPU = "ranks that share a GPU"

_TIMEOUT_S = 30
_FIELDS = ("index", "name", "memory.total", "compute_mode", "mig.mode.current", "driver_version")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi describes it; memory in MiB."""

    index: int
    name: str
    memory: int | None
    compute_mode: str
    mig: str
    driver: str


def probe_gpus() -> list[Finding]:
    """Everything that the cuda platform needs of the GPUs; without any, a single finding that says so."""
    if shutil.which("nvidia-smi") is None:
        return [_no_gpu()]
    status, answer = _smi(f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    if status != 0:
        # What nvidia-smi says is better than what can be guessed; it comes first.
        said = next(iter(answer.strip().splitlines()), "no answer")
        fix = "load the driver that is installed: reboot, or as root `modprobe nvidia`"
        return [Finding("GPU", False, f"nvidia-smi: {said}", "cuda", fix)]
    gpus = [gpu for gpu in map(_parse, answer.splitlines()) if gpu is not None]
    if not gpus:
        return [_no_gpu()]
    return [
        _driver(gpus),
        *_descriptions(gpus),
        _compute_mode(gpus),
        _mig(gpus),
        _mps(),
        *(links(_smi("topo", "-m")[1], _smi("topo", "-p2p", "r")[1]) if len(gpus) > 1 else ()),
        _launch_blocking(),
        _variable("NCCL_NVLS_ENABLE", "unset (NCCL decides)"),
        _variable("CUDA_MODULE_LOADING", "unset (lazy)"),
    ]


def _no_gpu() -> Finding:
    return Finding("GPU", False, "none", "cuda", "none needed for --platform sim and host")


def _smi(*arguments: str) -> tuple[int, str]:
    """Exit status and output; a status other than 0 also if it does not start or hangs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_TIMEOUT_S} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout


def _parse(line: str) -> Gpu | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(_FIELDS) or not fields[0].isdigit():
        return None
    index, name, memory, compute_mode, mig, driver = fields
    return Gpu(int(index), name, int(memory) if memory.isdigit() else None, compute_mode, mig, driver)


def _driver(gpus: Sequence[Gpu]) -> Finding:
    match = re.search(r"CUDA(?: \w+)? Version: *(\d+)\.(\d+)", _smi()[1])
    version = f"{match[1]}.{match[2]}" if match else "unknown"
    ok = match is None or int(match[1]) >= MIN_CUDA
    fix = None if ok else f"install a driver for CUDA {MIN_CUDA} or later"
    return Finding("driver", ok, f"{gpus[0].driver}, CUDA {version}", "cuda", fix)


def _descriptions(gpus: Sequence[Gpu]) -> list[Finding]:
    """One line for each run of equal GPUs."""
    findings = []
    for (name, memory), run in groupby(gpus, key=lambda gpu: (gpu.name, gpu.memory)):
        indices = [gpu.index for gpu in run]
        sms = _sms(name)
        parts = (
            f"{len(indices)} x {name}" if len(indices) > 1 else name,
            f"{sms} SMs" if sms else None,
            f"{memory / 1024:.0f} GiB" if memory else None,
        )
        findings.append(Finding(f"GPU {_span(indices)}", True, ", ".join(filter(None, parts)), "cuda"))
    return findings


def _sms(name: str) -> int | None:
    """SMs by name, of GPUs that there is a hardware profile of; nvidia-smi does not tell. MIG has its own."""
    from mkbench.core.hardware import hardware_names, load_hardware

    words = re.split(r"[ -]", name.lower())
    known = next((hardware for hardware in hardware_names() if hardware in words), None)
    # The profiles are of the SXM modules: the cards have fewer.
    return load_hardware(known).blocks if known and "pcie" not in words and "nvl" not in words else None


def _compute_mode(gpus: Sequence[Gpu]) -> Finding:
    for gpu in gpus:
        if gpu.compute_mode not in ("Default", "[N/A]", "N/A"):
            fix = f"an administrator can allow several processes: nvidia-smi -i {gpu.index} -c DEFAULT"
            return Finding("compute mode", False, f"GPU {gpu.index}: {gpu.compute_mode}", "cuda", fix)
    return Finding("compute mode", True, "default", "cuda")


def _mig(gpus: Sequence[Gpu]) -> Finding:
    for gpu in gpus:
        if gpu.mig == "Enabled":
            fix = f"an administrator can turn it off: nvidia-smi -i {gpu.index} -mig 0"
            return Finding("MIG", False, f"GPU {gpu.index}: enabled; its parts share no memory", "cuda", fix)
    return Finding("MIG", True, "off", "cuda")


def _mps() -> Finding:
    found = shutil.which("nvidia-cuda-mps-control")
    fix = None if found else "install the driver's utilities (Debian: nvidia-compute-utils)"
    return Finding("MPS", bool(found), found or "no nvidia-cuda-mps-control", SHARED_GPU, fix)


def _launch_blocking() -> Finding:
    value = os.environ.get("CUDA_LAUNCH_BLOCKING")
    if value in (None, "", "0"):
        return Finding("CUDA_LAUNCH_BLOCKING", True, "unset" if value is None else f"'{value}'", "cuda")
    found = f"{value}: a launch waits for its kernel, which waits for others: deadlock"
    return Finding("CUDA_LAUNCH_BLOCKING", False, found, "cuda", "unset CUDA_LAUNCH_BLOCKING")


def _variable(name: str, otherwise: str) -> Finding:
    return Finding(name, True, os.environ.get(name, otherwise), "cuda")


def _span(indices: Sequence[int]) -> str:
    return f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else str(indices[0])
