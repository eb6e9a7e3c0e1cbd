"""What a platform hands back for one point."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

STATUSES = ("ok", "wrong", "hang", "oom", "unsupported", "build_failed", "failed")


@dataclass(frozen=True, slots=True)
class Check:
    """The comparison of every output element of every rank with the reference."""

    elements: int
    mismatches: int
    first: str | None = None
    """The first wrong element, e.g. "rank 1 row 3 column 77: expected 12.0, got nan"."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point, measured or failed.

    `samples_us` holds one launch each: the slowest rank's time. `network_bytes` and `commands` are of one
    launch, over all ranks. `controller` maps t_us, target, compute_progress, communication_progress,
    compute_blocks and communication_blocks to lists of one length. `meta` holds all that is volatile.
    """

    status: str
    samples_us: tuple[float, ...] = ()
    check: Check | None = None
    network_bytes: int = 0
    commands: int = 0
    partition: dict[str, int] = field(default_factory=dict)
    controller: dict[str, list[float]] | None = None
    source_hash: str = ""
    message: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self) | {"samples_us": list(self.samples_us)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measurement":
        """Return the measurement that `to_json` wrote."""
        check = data["check"]
        return cls(
            **{
                **data,
                "samples_us": tuple(data["samples_us"]),
                "check": None if check is None else Check(**check),
            }
        )
