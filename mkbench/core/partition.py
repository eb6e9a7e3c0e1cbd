"""How a rank's blocks are split between computation and communication."""

from dataclasses import asdict, dataclass


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
