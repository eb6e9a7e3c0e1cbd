"""What `mkbench list` shows: names with one line each."""

from collections.abc import Callable
from importlib.util import find_spec

from mkbench.core.cluster import cluster_names, load_cluster
from mkbench.core.config import POLICIES, TRANSPORTS
from mkbench.core.hardware import hardware_names, load_hardware
from mkbench.core.units import format_size
from mkbench.core.workloads import KERNELS
from mkbench.core.workloads.base import REDUCTIONS, Reduction, Workload
from mkbench.platforms import PLATFORMS

Rows = list[tuple[str, str]]

POLICY_LINES = {
    "static": "a fixed number of communication SMs",
    "adaptive": "a controller on the GPU moves SMs so that both roles finish together",
}
PLATFORM_LINES = {
    "sim": "the kernel under a simulated machine: virtual time, no GPU, deterministic",
    "host": "the kernel as CPU processes started with mpiexec: the real distributed path, no GPU",
    "cuda": "the kernel on NVIDIA GPUs",
}
REDUCTION_LINES: dict[Reduction, str] = {
    "ordered": "gemm_ar, gemm_rs: a tile's owner sums partials in rank order, the same bits each run",
    "atomic": "gemm_ar, gemm_rs: ranks add bf16 at the owner in any order, not reproducible bit for bit",
}
TRANSPORT_LINES = {
    "sim": "a modelled network (platform sim)",
    "shm": "shared memory between processes of one machine",
    "tcp": "sockets, between any machines",
}


def _kernels() -> Rows:
    return [(name, f"{kernel.summary}; swept at {_sizes(kernel)}") for name, kernel in KERNELS.items()]


def _sizes(kernel: Workload) -> str:
    return ", ".join(map(format_size, kernel.sizes))


def _clusters() -> Rows:
    return [(name, load_cluster(name).description) for name in cluster_names()]


def _hardware() -> Rows:
    return [(name, load_hardware(name).description) for name in hardware_names()]


def _platforms() -> Rows:
    return [(name, PLATFORM_LINES[name]) for name in PLATFORMS if find_spec(f"mkbench.platforms.{name}")]


CATALOGUE: dict[str, Callable[[], Rows]] = {
    "kernels": _kernels,
    "clusters": _clusters,
    "hardware": _hardware,
    "policies": lambda: [(name, POLICY_LINES[name]) for name in POLICIES],
    "platforms": _platforms,
    "reductions": lambda: [(name, REDUCTION_LINES[name]) for name in REDUCTIONS],
    "transports": lambda: [(name, TRANSPORT_LINES[name]) for name in TRANSPORTS],
}
