"""What a user may ask of a sweep: defaults, then a TOML file, then the command line."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from mkbench.core.axes import parse_axis, parse_decimals, parse_sizes
from mkbench.core.errors import UsageError
from mkbench.core.faults import parse_fault
from mkbench.core.names import unknown
from mkbench.core.pace import parse_pace
from mkbench.core.profile import Strict, read_toml, validated
from mkbench.core.resources import configs_dir
from mkbench.core.workloads import KERNELS
from mkbench.core.workloads.base import REDUCTIONS, Reduction

PLATFORMS = ("auto", "sim", "host", "cuda")
POLICIES = ("static", "adaptive")
TRANSPORTS = ("sim", "shm", "tcp")
NETWORK_MEMORIES = ("device", "host")

MAX_SAMPLES = 1_000_000
MAX_SKEW = 100.0
"""With it every token chooses the same experts."""
MAX_DEADLINE_S = 1e6
"""Eleven days: a longer wait is a slip, and the kernel counts it in 64 bits of nanoseconds."""


def _names(value: object) -> object:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
        return tuple(dict.fromkeys(parts))
    return parts


def _reductions(value: object) -> object:
    names = _names(value)
    _among("reduction", names if isinstance(names, tuple) else (), REDUCTIONS)
    return names


def _axis(value: object) -> object:
    return parse_axis(value) if isinstance(value, str) else _distinct(value)


def _sizes(value: object) -> object:
    return parse_sizes(value) if isinstance(value, str) else _distinct(value)


def _skew(value: object) -> object:
    values = parse_decimals(value) if isinstance(value, str) else value
    values = [values] if isinstance(values, int | float) else values
    if not isinstance(values, list | tuple) or not all(isinstance(entry, int | float) for entry in values):
        return values
    for entry in values:
        if not math.isfinite(entry) or round(entry * 100) / 100 != entry:
            raise UsageError(f"skew {entry} is not a number of hundredths", hint="write 0,0.5,1")
    return sorted({float(entry) for entry in values})


def _list_or_table(value: object) -> str:
    return "table" if isinstance(value, Mapping) else "list"


def _pace(value: object) -> object:
    return parse_pace(value) if isinstance(value, str | Mapping) else value


def _distinct(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        return sorted(set(value))
    return [value] if isinstance(value, int) else value


def _known_faults(value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(parse_fault(text).label for text in value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
Reductions = Annotated[tuple[Reduction, ...], BeforeValidator(_reductions), Field(min_length=1)]
Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1, strict=True)]
Sizes = Annotated[tuple[Positive, ...], BeforeValidator(_sizes), Field(min_length=1)]
SizesByKernel = Annotated[dict[str, Sizes], Field(min_length=1)]
Exponent = Annotated[float, Field(ge=0, le=MAX_SKEW)]
# Which may be zero, the workload knows.
Extent = Annotated[int, Field(ge=0, strict=True)]
# The plan knows the cluster, so that it can name both limits.
Count = Annotated[int, Field(strict=True)]


class SweepConfig(Strict):
    """A sweep as asked. None means: the default of the platform and the cluster, filled in by the plan."""

    kernels: Names = tuple(KERNELS)
    sizes: (
        Annotated[
            Annotated[Sizes, Tag("list")] | Annotated[SizesByKernel, Tag("table")],
            Discriminator(_list_or_table),
        ]
        | None
    ) = None
    """Of every kernel, or a table by kernel; one that is not in it has its own default."""
    shape: dict[str, Extent] | None = None
    skew: Annotated[tuple[Exponent, ...], BeforeValidator(_skew), Field(min_length=1)] | None = None
    comm_sms: Annotated[tuple[Count, ...], BeforeValidator(_axis), Field(min_length=1)] | None = None
    policies: Names = POLICIES
    reduction: Reductions | None = None
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
        if self.skew is not None and "skew" in (self.shape or {}):
            raise UsageError("a skew and a shape with a skew are both given", hint="give one of them")
        if isinstance(self.sizes, Mapping):
            _among("kernel", self.sizes, tuple(KERNELS))

    def sizes_of(self, kernel: str) -> tuple[int, ...] | None:
        """Return the sizes asked for of `kernel`, None if nothing was."""
        return self.sizes.get(kernel) if isinstance(self.sizes, Mapping) else self.sizes


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
