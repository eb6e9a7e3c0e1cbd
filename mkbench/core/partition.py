"""How a rank's blocks are split between computation and communication."""

from dataclasses import asdict, dataclass

from mkbench.core.errors import UsageError

SM_GROUP = 8
"""SMs are given to ranks that share a GPU in multiples of this: the driver splits them so since Hopper."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Blocks a role of one rank."""

    compute: int
    communication: int

    @classmethod
    def of(cls, blocks: int, comm_sms: int) -> "Partition":
        """Return the partition of `blocks` that gives `comm_sms` to communication."""
        return cls(compute=blocks - comm_sms, communication=comm_sms)

    def to_json(self) -> dict[str, int]:
        """Return {"compute": ..., "communication": ...}."""
        return asdict(self)


def group_sms(total_sms: int, ranks_per_gpu: int) -> int:
    """Return the SMs of each rank when `ranks_per_gpu` share a GPU: all, or else a multiple of SM_GROUP.

    Raises UsageError if there are too many ranks.
    """
    if ranks_per_gpu == 1:
        return total_sms
    most = total_sms // SM_GROUP
    if not 1 <= ranks_per_gpu <= most:
        raise UsageError(
            f"{ranks_per_gpu} ranks on one GPU: its {total_sms} SMs make at most {most} groups of {SM_GROUP}",
            hint=f"set --ranks-per-gpu to {most} or less",
        )
    return total_sms // ranks_per_gpu // SM_GROUP * SM_GROUP


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks that one rank has to do in a role, and what one of them costs a block."""

    tasks: float
    cost_us: float


def balanced(blocks: int, communication: Work, compute: Work) -> int:
    """Return the communication blocks for which both roles finish together, from 1 to blocks - 1.

    n* = B Rs Cs / (Rp Cp + Rs Cs), rounded; the controller solves the same equation with measured costs.
    """
    serve = communication.tasks * communication.cost_us
    total = serve + compute.tasks * compute.cost_us
    best = round(blocks * serve / total) if total else 1
    return max(1, min(blocks - 1, best))
