"""What a workload knows without running: shapes, bytes, FLOPs, bounds, inputs and the reference result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mkbench.core.cluster import ClusterProfile

Family = Literal["exact", "normal"]
Matrix = NDArray[np.float32]
Precision = type[np.float32] | type[np.float64]
SumProducts = Callable[[Iterable[tuple[Matrix, Matrix]], Precision], Matrix]


@dataclass(frozen=True, slots=True)
class Shape:
    """A GEMM of one rank: C[m, n] from A[m, k] and B[k, n]; k is that of ONE rank."""

    m: int
    n: int
    k: int

    @property
    def label(self) -> str:
        """The form in keys: "m2048n2048k256"."""
        return "".join(f"{name}{value}" for name, value in asdict(self).items())

    def to_json(self) -> dict[str, int]:
        """Return {"m": ..., "n": ..., "k": ...}."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A region of payload, named as in the kernel's launch parameters.

    It lies in every rank's symmetric heap or, where host proxies move it, in the network region.
    """

    name: str
    bytes: int
    network: bool = False


def sum_products(pairs: Iterable[tuple[Matrix, Matrix]], precision: Precision) -> Matrix:
    """Return the sum of a @ b over pairs (a, b), of which there is one at least, by NumPy in `precision`."""
    total: NDArray[Any] | None = None
    for a, b in pairs:
        product = a.astype(precision, copy=False) @ b.astype(precision, copy=False)
        if total is None:
            total = product
        else:
            total += product
    assert total is not None
    return total.astype(np.float32, copy=False)


class Workload(Protocol):
    """One fused kernel's arithmetic and data."""

    name: str
    summary: str

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return the shape that `size` means on `ranks` ranks."""
        ...

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return a shape given in full. Raises UsageError for a missing, unknown or zero dimension."""
        ...

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return the default tiles a chunk."""
        ...

    def flops_per_rank(self, shape: Shape) -> float:
        """Return the floating-point operations of one rank."""
        ...

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload part of one rank's symmetric heap, in order."""
        ...

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly."""
        ...

    def parameters(self, shape: Shape, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
        """Return the launch parameters that follow from the shape."""
        ...

    def tasks(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> tuple[int, int]:
        """Return the compute and the communication tasks of the rank that has the most."""
        ...

    def network_bytes(self, shape: Shape, nodes: int, ranks_per_node: int) -> int:
        """Return the payload of one launch between nodes, over all ranks."""
        ...

    def lower_bound_us(self, shape: Shape, cluster: ClusterProfile) -> float | None:
        """Return a time that no run can beat, or None where the hardware's rates are unknown."""
        ...

    def start_comm_sms(self, shape: Shape, cluster: ClusterProfile) -> int:
        """Return the communication blocks that the adaptive policy starts with."""
        ...

    def inputs(
        self, shape: Shape, rank: int, ranks: int, seed: int, family: Family = "exact"
    ) -> tuple[Matrix, Matrix]:
        """Return the inputs of one rank, as float32 that holds bf16 values."""
        ...

    def reference(
        self,
        shape: Shape,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return what every rank must end up with; `sum_products` may be a faster one than NumPy's."""
        ...

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest error of a right result of the normal family (the exact family allows none)."""
        ...
