from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mkbench.core.errors import EnvironmentProblem, UsageError
from mkbench.core.partition import group_sms
from mkbench.platforms import green_context
from mkbench.platforms.green_context import GreenContext, require_mps

DEVICE, STREAM, CONTEXT = 70, 71, 72


class FakeDriver:
    """A driver with one GPU of `sms` SMs. Function `failing` fails; a split gives `groups` or as asked."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="sm")
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=SimpleNamespace(value=1))
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MPS_ENABLED="mps")

    def __init__(self, sms: int = 132, failing: str = "", groups: int | None = None, mps: int = 1) -> None:
        self.sms, self.failing, self.groups, self.mps = sms, failing, groups, mps
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] = arguments
            if name == self.failing:
                return (SimpleNamespace(name="CUDA_ERROR_INVALID_RESOURCE_TYPE"),)
            return self.CUresult.CUDA_SUCCESS, *self.answer(name, arguments)

        return call

    def answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "cuDevSmResourceSplitByCount":
            asked, _, _, sms = arguments
            count = asked if self.groups is None else self.groups
            groups = [SimpleNamespace(number=i, sm=SimpleNamespace(smCount=sms)) for i in range(count)]
            return groups, count, "the rest"
        return {
            "cuInit": (),
            "cuDeviceGet": (DEVICE,),
            "cuDeviceGetAttribute": (self.mps,),
            "cuDeviceGetDevResource": (SimpleNamespace(sm=SimpleNamespace(smCount=self.sms)),),
            "cuDevResourceGenerateDesc": ("description",),
            "cuGreenCtxCreate": ("green",),
            "cuGreenCtxStreamCreate": (STREAM,),
            "cuCtxFromGreenCtx": (CONTEXT,),
        }[name]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    def install(driver: FakeDriver) -> FakeDriver:
        monkeypatch.setattr(green_context, "_driver", lambda: driver)
        return driver

    return install


@pytest.mark.parametrize(
    ("total", "ranks", "sms"),
    [(132, 1, 132), (132, 2, 64), (132, 3, 40), (132, 4, 32), (132, 8, 16), (132, 16, 8), (148, 2, 72)],
)
def test_groups_are_equal_multiples_of_eight(total: int, ranks: int, sms: int):
    assert group_sms(total, ranks) == sms


@pytest.mark.parametrize("ranks", [0, -1, 17])
def test_too_many_ranks_are_told_how_many_fit(ranks: int):
    with pytest.raises(UsageError, match="132 SMs make at most 16 groups of 8") as caught:
        group_sms(132, ranks)
    assert "16" in str(caught.value.hint)


def test_takes_its_own_group(use):
    driver = use(FakeDriver())
    assert GreenContext.create(device=1, ranks_per_gpu=4, group=2) == GreenContext(STREAM, CONTEXT, 32)
    assert driver.calls["cuDeviceGet"] == (1,)
    (groups, count) = driver.calls["cuDevResourceGenerateDesc"]
    assert ([group.number for group in groups], count) == ([2], 1)
    assert driver.calls["cuGreenCtxCreate"] == ("description", DEVICE, 1)
    assert driver.calls["cuGreenCtxStreamCreate"][0] == "green"


@pytest.mark.parametrize(
    "function",
    [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetDevResource",
        "cuDevSmResourceSplitByCount",
        "cuDevResourceGenerateDesc",
        "cuGreenCtxCreate",
        "cuGreenCtxStreamCreate",
        "cuCtxFromGreenCtx",
    ],
)
def test_what_the_driver_refuses_has_its_name(use, function: str):
    use(FakeDriver(failing=function))
    with pytest.raises(EnvironmentProblem, match=f"{function}: CUDA_ERROR_INVALID_RESOURCE_TYPE"):
        GreenContext.create(0, 2, 0)


def test_fewer_groups_than_asked_are_refused(use):
    use(FakeDriver(groups=1))
    with pytest.raises(EnvironmentProblem, match="splits into 1 groups of 64 SMs, not 2"):
        GreenContext.create(0, 2, 0)


def test_a_rank_without_mps_is_refused(use):
    use(FakeDriver(mps=0))
    with pytest.raises(EnvironmentProblem, match="GPU 3 without MPS"):
        require_mps(3)
    use(FakeDriver(mps=1))
    require_mps(3)


def test_without_the_bindings_one_line_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(EnvironmentProblem, match=r"cuda\.bindings") as caught:
        GreenContext.create(0, 2, 0)
    assert "pip install" in str(caught.value.hint)


def test_without_a_driver_one_line_says_so(use, monkeypatch: pytest.MonkeyPatch):
    def no_library(flags: int) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    driver = use(FakeDriver())
    driver.cuInit = no_library
    with pytest.raises(EnvironmentProblem, match=r"libcuda\.so\.1") as caught:
        GreenContext.create(0, 2, 0)
    assert "12.5" in str(caught.value.hint)
