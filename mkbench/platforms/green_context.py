"""SMs of its own for every rank that shares a GPU.

The share that MPS can set limits a rank but reserves nothing; a green context owns its group of SMs. Kernels
run there when they are launched on its stream. Everything else (memory, modules, copies, other threads) stays
in the device's primary context, to which CuPy returns with every `with Device`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mkbench.core.errors import EnvironmentProblem
from mkbench.core.partition import group_sms

_PACKAGE = "run `pip install 'mkbench[cuda13]'` (or cuda12)"
_ONE_RANK = "use one rank a GPU (--ranks-per-gpu 1)"


@dataclass(frozen=True, slots=True)
class GreenContext:
    """A context on `sms` SMs of a device. It lives as long as the process.

    `stream` is a non-blocking CUstream whose kernels run on those SMs, `context` the CUcontext itself.
    """

    stream: int
    context: int
    sms: int

    @classmethod
    def create(cls, device: int, ranks_per_gpu: int, group: int) -> GreenContext:
        """Take group `group` of `ranks_per_gpu` equal ones. Call it in every rank of the GPU.

        `device` is the number that CUDA gives it. Raises EnvironmentProblem if the driver refuses, UsageError
        if there are too many ranks.
        """
        driver = _driver()
        _call(driver, "cuInit", 0)
        handle = _call(driver, "cuDeviceGet", device)
        sm = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = _call(driver, "cuDeviceGetDevResource", handle, sm)
        wanted = group_sms(whole.sm.smCount, ranks_per_gpu)
        groups, count, _ = _call(driver, "cuDevSmResourceSplitByCount", ranks_per_gpu, whole, 0, wanted)
        if count < ranks_per_gpu:
            raise EnvironmentProblem(
                f"GPU {device} splits into {count} groups of {wanted} SMs, not {ranks_per_gpu}", _ONE_RANK
            )
        descriptor = _call(driver, "cuDevResourceGenerateDesc", [groups[group]], 1)
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value
        green = _call(driver, "cuGreenCtxCreate", descriptor, handle, flags)
        non_blocking = driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        stream = _call(driver, "cuGreenCtxStreamCreate", green, non_blocking, 0)
        context = _call(driver, "cuCtxFromGreenCtx", green)
        return cls(int(stream), int(context), int(groups[group].sm.smCount))


def require_mps(device: int) -> None:
    """Raise EnvironmentProblem unless this process is a client of MPS: CUDA does without if it finds none."""
    driver = _driver()
    _call(driver, "cuInit", 0)
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED
    if not _call(driver, "cuDeviceGetAttribute", attribute, _call(driver, "cuDeviceGet", device)):
        raise EnvironmentProblem(
            f"this rank runs on GPU {device} without MPS, so ranks would take turns on it",
            "let mkbench start the ranks, or pass CUDA_MPS_PIPE_DIRECTORY on to them",
        )


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EnvironmentProblem("no cuda.bindings: ranks that share a GPU need it", _PACKAGE) from error
    return driver


def _call(driver: Any, function: str, *arguments: object) -> Any:
    """What the driver's `function` returns: nothing, a value, or a tuple of several."""
    try:
        status, *values = getattr(driver, function)(*arguments)
    except (RuntimeError, AttributeError) as error:
        # No libcuda, or one or a binding that is too old for green contexts.
        raise EnvironmentProblem(f"{function}: {error}", "install a driver for CUDA 12.5 or later") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EnvironmentProblem(f"{function}: {status.name}", f"look with `nvidia-smi`, or {_ONE_RANK}")
    if len(values) > 1:
        return tuple(values)
    return values[0] if values else None
