"""Clocks, power and throttling of a GPU while it is measured, from NVML. Nothing is ever set."""

from __future__ import annotations

from typing import Any

_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal"}


class GpuState:
    """Samples of one GPU. Without NVML (package nvidia-ml-py) it says nothing."""

    def __init__(self, device: int) -> None:
        self._clocks_mhz: list[int] = []
        self._power_w: list[float] = []
        self._reasons = 0
        try:
            import pynvml  # type: ignore[import-not-found,unused-ignore]

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        except Exception:  # NVML has an exception class for every error, and none of them matters here
            self._nvml = None

    def sample(self) -> None:
        """Read the state now."""
        nvml = self._nvml
        if nvml is None:
            return
        self._clocks_mhz.append(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        self._power_w.append(nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
        self._reasons |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)

    def summary(self) -> dict[str, Any]:
        """Return the range of the SM clock, the highest power and the reasons for throttling so far."""
        if not self._clocks_mhz:
            return {}
        return {
            "sm_clock_mhz": [min(self._clocks_mhz), max(self._clocks_mhz)],
            "power_w": round(max(self._power_w)),
            "throttled_by": [name for bit, name in _REASONS.items() if self._reasons & bit],
        }
