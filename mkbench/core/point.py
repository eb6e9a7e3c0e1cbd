"""One point of a sweep: everything a platform must know to run it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mkbench.core.faults import Fault
from mkbench.core.pace import Pace
from mkbench.core.workloads.base import Reduction, Shape


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel, a shape, a place to run and a partition.

    `blocks` are those of one rank; `comm_sms` is None for a policy that chooses itself, which starts with
    `start_comm_sms`. `network_memory`: "device" if what host proxies move lies in GPU memory, "host" if in
    host memory. `pace` has the rates of one GPU, as asked. `network_bytes` is what the workload's formula
    expects of one launch. `reduction` says how partials are summed, None for a kernel that sums none.
    `deadline_s` is the longest that a wait, or a rank without progress, may take.
    """

    key: str
    kernel: str
    size: int | None
    shape: Shape
    platform: str
    cluster: str
    hardware: str
    nodes: int
    ranks_per_node: int
    ranks: int
    ranks_per_gpu: int
    blocks: int
    transport: str
    policy: str
    comm_sms: int | None
    start_comm_sms: int
    chunk_tiles: int
    samples: int
    seed: int
    data: bool
    family: str
    flops_per_rank: float
    lower_bound_us: float | None
    network_bytes: int
    deadline_s: float
    faults: tuple[Fault, ...] = ()
    network_memory: str = "host"
    pace: Pace | None = None
    reduction: Reduction | None = None

    @property
    def rank_pace(self) -> Pace:
        """What one rank is held to: its share of its GPU's rates."""
        return (self.pace or Pace()).shared_by(self.ranks_per_gpu)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self) | {
            "shape": self.shape.to_json(),
            "faults": [asdict(fault) for fault in self.faults],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Point":
        """Return the point that `to_json` wrote."""
        faults = tuple(Fault(**fault) for fault in data["faults"])
        pace = Pace(**data["pace"]) if data["pace"] else None
        return cls(**{**data, "shape": Shape(**data["shape"]), "faults": faults, "pace": pace})
