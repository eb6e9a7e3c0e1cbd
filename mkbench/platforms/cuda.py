"""Platform `cuda`: one rank a GPU, or several ranks on one GPU as a virtual cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from mkbench.build.nvrtc import load_nvrtc
from mkbench.core.environment import gpu_count, gpu_visible
from mkbench.core.errors import EnvironmentProblem
from mkbench.core.measurement import Measurement
from mkbench.core.plan import Plan, Point
from mkbench.dist.mps import MpsDaemon, find_control
from mkbench.platforms.host import HostPlatform


class CudaPlatform(HostPlatform):
    """Starts the ranks of a plan like platform `host`; their blocks run on GPUs.

    Ranks that share a GPU are clients of an MPS daemon of our own, which ends with the run.
    """

    name = "cuda"

    def check(self, plan: Plan) -> None:
        """Refuse a plan that lacks a GPU, CuPy, NVRTC or MPS. Raises EnvironmentProblem or UsageError."""
        if not gpu_visible():
            raise EnvironmentProblem("no GPU is visible", "run `mkbench doctor`, or use --platform sim")
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            raise EnvironmentProblem(
                "CUDA_LAUNCH_BLOCKING is set: kernels that wait for each other would deadlock",
                "unset CUDA_LAUNCH_BLOCKING",
            )
        if find_spec("cupy") is None:
            raise EnvironmentProblem("CuPy is not installed", "run `pip install 'mkbench[cuda13]'`")
        load_nvrtc()
        cluster, have = plan.cluster, gpu_count()
        if not self.is_launched and cluster.ranks > have * cluster.ranks_per_gpu:
            raise EnvironmentProblem(
                f"cluster {cluster.name!r} has {cluster.ranks} ranks, {cluster.ranks_per_gpu} on each GPU; "
                f"this machine has {have} GPUs",
                "set --nodes, --ranks-per-node and --ranks-per-gpu, or start the ranks with mpiexec or srun",
            )
        if cluster.ranks_per_gpu > 1:
            find_control()
        super().check(plan)

    def run(self, points: Sequence[Point]) -> Iterator[Measurement]:
        """Measurements of `points`, in order, as each finishes, under MPS where ranks share a GPU."""
        if self.is_launched or all(point.ranks_per_gpu == 1 for point in points):
            return super().run(points)
        return self._run_shared(points)

    def _run_shared(self, points: Sequence[Point]) -> Iterator[Measurement]:
        with MpsDaemon() as daemon, _environment(daemon.rank_environment()):
            yield from super().run(points)


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Ranks inherit this process's environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
