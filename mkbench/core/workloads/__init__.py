"""The fused kernels by name."""

from mkbench.core.names import unknown
from mkbench.core.workloads.ag_gemm import AgGemm
from mkbench.core.workloads.base import Reducing, Reduction, Workload
from mkbench.core.workloads.gemm_ar import GemmAr
from mkbench.core.workloads.gemm_rs import GemmRs
from mkbench.core.workloads.moe_dispatch_gemm import MoeDispatchGemm
from mkbench.core.workloads.ring_attention import RingAttention

KERNELS: dict[str, Workload] = {
    "ag_gemm": AgGemm(),
    "gemm_ar": GemmAr(),
    "gemm_rs": GemmRs(),
    "moe_dispatch_gemm": MoeDispatchGemm(),
    "ring_attention": RingAttention(),
}


def workload(name: str, reduction: Reduction | None = None) -> Workload:
    """Return the workload of kernel `name`; one that sums does so in the way of `reduction`, or by default.

    Raises UsageError with the near name.
    """
    if name not in KERNELS:
        raise unknown("kernel", name, KERNELS)
    kernel = KERNELS[name]
    return kernel.reducing(reduction) if reduction and isinstance(kernel, Reducing) else kernel
