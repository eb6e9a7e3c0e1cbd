"""Which rank of a launcher this process is, before MPI is started. Rank 0 alone prints and writes."""

from mkbench.dist.launcher import foreign_launcher


def launcher_rank() -> int:
    """The rank that a launcher such as mpiexec gave this process; 0 without one."""
    launcher = foreign_launcher()
    return launcher.rank if launcher else 0


def is_speaker() -> bool:
    """Whether this process prints and writes."""
    return launcher_rank() == 0
