"""What a user may ask of a sweep: defaults, then a TOML file, then the command line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mkbench.core.axes import parse_axis, parse_sizes
from mkbench.core.errors import UsageError
from mkbench.core.faults import parse_fault
from mkbench.core.names import unknown
from mkbench.core.pace import parse_pace
from mkbench.core.profile import Strict, read_toml, validated
from mkbench.core.resources import configs_dir

PLATFORMS = ("auto", "sim", "host", "cuda")
POLICIES = ("static", "adaptive")
TRANSPORTS = ("sim", "shm", "tcp")
NETWORK_MEMORIES = ("device", "host")

MAX_SAMPLES = 1_000_000
MAX_DEADLINE_S = 1e6
"""Eleven days: a longer wait is a slip, and the kernel counts it in 64 bits of nanoseconds."""


def _names(value: object) -> object:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
        return tuple(dict.fromkeys(parts))
    return parts


def _axis(value: object) -> object:
    return parse_axis(value) if isinstance(value, str) else _distinct(value)


def _sizes(value: object) -> object:
    return parse_sizes(value) if isinstance(value, str) else _distinct(value)


def _pace(value: object) -> object:
    return parse_pace(value) if isinstance(value, str | Mapping) else value


def _distinct(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        return sorted(set(value))
    return [value] if isinstance(value, int) else value


def _known_faults(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(parse_fault(text).label for text in value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1, strict=True)]
# Which may be zero, the workload knows.
Extent = Annotated[int, Field(ge=0, strict=True)]
# The plan knows the cluster, so that it can name both limits.
Count = Annotated[int, Field(strict=True)]


class SweepConfig(Strict):
    """A sweep as asked. None means: the default of the platform and the cluster, filled in by the plan."""

    kernels: Names = ("gemm_ar",)
    sizes: Annotated[tuple[Positive, ...], BeforeValidator(_sizes), Field(min_length=1)] | None = None
    shape: dict[str, Extent] | None = None
    comm_sms: Annotated[tuple[Count, ...], BeforeValidator(_axis), Field(min_length=1)] | None = None
    policies: Names = POLICIES
    platform: str = "auto"
    cluster: Name | None = None
    nodes: Positive | None = None
    ranks_per_node: Positive | None = None
    ranks_per_gpu: Positive | None = None
    transport: Name | None = None
    network_memory: Name | None = None
    pace: Annotated[dict[str, float], BeforeValidator(_pace)] | None = None
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES, strict=True)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    data: Annotated[bool, Field(strict=True)] | None = None
    family: Literal["exact", "normal"] | None = None
    chunk_tiles: Positive | None = None
    start_comm_sms: Count | None = None
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S, allow_inf_nan=False)] = 20.0
    faults: tuple[str, ...] = ()

    def model_post_init(self, context: object) -> None:
        """Refuse names that no platform knows, and two ways to give the shape."""
        _among("platform", [self.platform], PLATFORMS)
        _among("policy", self.policies, POLICIES)
        _among("transport", [self.transport] if self.transport else [], TRANSPORTS)
        _among("network memory", [self.network_memory] if self.network_memory else [], NETWORK_MEMORIES)
        _known_faults(self.faults)
        if self.sizes is not None and self.shape is not None:
            raise UsageError("sizes and a shape are both given", hint="give one of them")


def from_toml(path: Path | str) -> dict[str, Any]:
    """Return the settings in a TOML file, or in the shipped one of that name ("fig3.toml").

    Raises UsageError if it cannot be read, or names an unknown key with its line and near key.
    """
    file = Path(path)
    shipped = configs_dir() / f"{file.name.removesuffix('.toml')}.toml"
    if not file.exists() and file.name == str(path) and shipped.is_file():
        file = shipped
    settings = read_toml(file)
    for key in settings:
        if key not in SweepConfig.model_fields:
            raise unknown("key", key, SweepConfig.model_fields, f" in {file}{_line_of(key, file)}")
    return settings


def load_config(path: Path | str | None = None, overrides: Mapping[str, Any] | None = None) -> SweepConfig:
    """Return defaults < the TOML file at `path` < `overrides`; an override of None is not given.

    Overrides may hold axes as text ("2:64:2"). Sizes on the command line replace a shape in the file and the
    other way round. Raises UsageError.
    """
    settings = from_toml(path) if path is not None else {}
    given = {key: value for key, value in (overrides or {}).items() if value is not None and value != ()}
    if "sizes" in given:
        settings.pop("shape", None)
    if "shape" in given:
        settings.pop("sizes", None)
    if path is not None:
        validated(SweepConfig, settings, str(path))
    return validated(SweepConfig, settings | given, "command line")


def _among(kind: str, names: Any, known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def _line_of(key: str, file: Path) -> str:
    pattern = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[\].=]")
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if pattern.match(line):
            return f" line {number}"
    return ""
