"""mkbench: fused compute-communication kernels, measured."""

__version__ = "0.1.0"
