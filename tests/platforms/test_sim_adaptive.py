"""The adaptive controller against every static partition of the figures, at the published sizes.

Some of them here, on two clusters; `make stress` has them all, on three.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from sim_rig import Case, plan_of, result_of

from mkbench.core.workloads import KERNELS

STRESS = settings.get_current_profile_name() == "stress"
SLOWER = 1.05
"""How much slower than the best static partition adaptive may be."""

CLUSTERS = ("1x8-h100", "2x8-h200-ib", "2x8-h200-efa")
ALL = {cluster: {name: kernel.sizes for name, kernel in KERNELS.items()} for cluster in CLUSTERS}
# gemm_ar on one node is in test_sim_acceptance, with all its sizes.
FEW = {
    "1x8-h100": {
        "gemm_rs": (2048, 8192),
        "ag_gemm": (4096, 8192),
        "moe_dispatch_gemm": (8192, 16384),
        "ring_attention": (12288, 24576),
    },
    "2x8-h200-ib": {
        "gemm_ar": (2048, 8192),
        "gemm_rs": (2048, 8192),
        "ag_gemm": (4096, 8192),
        "moe_dispatch_gemm": (8192, 16384),
        "ring_attention": (12288,),
    },
}
CASES = [
    (kernel, size, cluster)
    for cluster, kernels in (ALL if STRESS else FEW).items()
    for kernel, sizes in kernels.items()
    for size in sizes
]


@pytest.mark.slow
@pytest.mark.timeout(0 if STRESS else 300)
@pytest.mark.parametrize(("kernel", "size", "cluster"), CASES)
def test_adaptive_is_within_five_percent_of_every_static(kernel: str, size: int, cluster: str) -> None:
    plan = plan_of(kernels=kernel, sizes=str(size), cluster=cluster, policies="static,adaptive")
    *statics, adaptive = plan.points
    assert [point.comm_sms for point in statics] == list(range(2, 65, 2))
    latency_us = latency_of(Case(adaptive, plan.cluster))
    assert latency_us is not None
    # A static partition that takes longer than adaptive cannot be the one that is too fast: it is given up.
    limited = (replace(point, deadline_s=(latency_us + 10) / 1e6) for point in statics)
    faster = {point.comm_sms: latency_of(Case(point, plan.cluster)) for point in limited}
    too_fast = {
        comm_sms: f"{static_us:.1f} us, adaptive / static {latency_us / static_us:.4f}"
        for comm_sms, static_us in faster.items()
        if static_us is not None and latency_us > SLOWER * static_us
    }
    assert not too_fast


def latency_of(case: Case) -> float | None:
    """In us, or None if the launch did not end within the point's deadline."""
    result = result_of(case)
    assert result.status in ("ok", "time_limit"), result.report
    return result.latencies_us[0] if result.status == "ok" else None
