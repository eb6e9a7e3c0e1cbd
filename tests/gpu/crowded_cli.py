"""The command line, for which a GPU has one SM more for every rank than it really has."""

from __future__ import annotations

from mkbench.cli import main
from mkbench.core import cluster, partition


def one_too_many(total_sms: int, ranks_per_gpu: int) -> int:
    return partition.group_sms(total_sms, ranks_per_gpu) + 1


if __name__ == "__main__":
    # The ranks are other processes: they take as many SMs as there are.
    cluster.group_sms = one_too_many  # type: ignore[attr-defined]
    main()
