"""The fused kernels by name."""

from mkbench.core.names import unknown
from mkbench.core.workloads.base import Workload
from mkbench.core.workloads.gemm_ar import GemmAr

KERNELS: dict[str, Workload] = {"gemm_ar": GemmAr()}


def workload(name: str) -> Workload:
    """Return the workload of kernel `name`. Raises UsageError with the near name."""
    if name not in KERNELS:
        raise unknown("kernel", name, KERNELS)
    return KERNELS[name]
