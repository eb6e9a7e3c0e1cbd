"""Errors of ranks that a point survives."""

from mkbench.core.errors import EnvironmentProblem


class OutOfDeviceMemory(EnvironmentProblem):
    """The heap of a rank does not fit into its GPU's memory. Raised on all ranks."""
