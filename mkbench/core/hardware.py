"""One GPU (or one host rank) as the simulator and the lower bounds see it."""

from typing import cast

from mkbench.core.errors import UsageError
from mkbench.core.profile import Sourced, Strict, profile_names, read_profile


class HardwareProfile(Strict):
    """Rates of one rank, each with its source; the unit is in the name (gbps is 1e9 bytes a second).

    A rate that does not apply is absent (None): "cpu" has no peak, so its lower bound is unknown.
    """

    name: str
    description: str
    sms: Sourced
    clock_mhz: Sourced | None = None
    peak_tflops: Sourced | None = None
    gemm_tflops: Sourced | None = None
    tile_overhead_ns: Sourced | None = None
    kernel_start_ns: Sourced | None = None
    sm_copy_gbps: Sourced | None = None
    hbm_tbps: Sourced | None = None
    nvlink_gbps: Sourced | None = None
    nvlink_latency_ns: Sourced | None = None
    pcie_gbps: Sourced | None = None
    flag_gpu_ns: Sourced | None = None
    flag_system_ns: Sourced | None = None
    poll_ns: Sourced | None = None
    role_switch_ns: Sourced | None = None
    proxy_command_ns: Sourced | None = None
    memory_gb: Sourced | None = None

    @property
    def blocks(self) -> int:
        """Blocks of a persistent kernel: one a streaming multiprocessor."""
        return int(self.sms.value)

    def rate(self, key: str) -> float:
        """Return the number `key`, which must be there. Raises UsageError if this hardware has none."""
        found = self.get(key)
        if found is None:
            raise UsageError(f"hardware {self.name!r} gives no {key}", hint="choose a cluster of GPUs")
        return found

    def get(self, key: str) -> float | None:
        """Return the number `key`, or None where it does not apply."""
        entry = cast(Sourced | None, getattr(self, key))
        return None if entry is None else entry.value


def hardware_names() -> list[str]:
    """Return the names of the shipped hardware profiles."""
    return profile_names("hardware")


def load_hardware(name: str) -> HardwareProfile:
    """Return the shipped profile `name`. Raises UsageError with the near name."""
    return read_profile(HardwareProfile, "hardware", "hardware", name)
