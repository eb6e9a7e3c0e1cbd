"""What a workload knows without running: shapes, bytes, FLOPs, bounds, inputs and the reference result."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mkbench.core.cluster import ClusterProfile

Family = Literal["exact", "normal"]
Reduction = Literal["ordered", "atomic"]
REDUCTIONS: tuple[Reduction, ...] = ("ordered", "atomic")
Matrix = NDArray[np.float32]
Precision = type[np.float32] | type[np.float64]
SumProducts = Callable[[Iterable[tuple[Matrix, Matrix]], Precision], Matrix]


class Shape:
    """Extents of a problem by name, in order, such as m, n and k; what each is, the workload says.

    Immutable; an extent is an attribute.
    """

    __slots__ = ("_extents",)
    _extents: dict[str, int]

    def __init__(self, **extents: int) -> None:
        object.__setattr__(self, "_extents", extents)

    def __getattr__(self, name: str) -> int:
        if name in self._extents:
            return self._extents[name]
        raise AttributeError(f"a shape of {', '.join(self._extents)} has no {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a shape does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and list(self._extents.items()) == list(other._extents.items())

    def __hash__(self) -> int:
        return hash(tuple(self._extents.items()))

    def __repr__(self) -> str:
        return f"Shape({', '.join(f'{name}={value}' for name, value in self._extents.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _shape, (self._extents,)

    @property
    def label(self) -> str:
        """The form in keys: "m2048n2048k256"."""
        return "".join(f"{name}{value}" for name, value in self._extents.items())

    def to_json(self) -> dict[str, int]:
        """Return {"m": ..., "n": ..., "k": ...}."""
        return dict(self._extents)


def _shape(extents: dict[str, int]) -> Shape:
    return Shape(**extents)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A region of payload, named as in the kernel's launch parameters.

    It lies in every rank's symmetric heap or, where host proxies move it, in the network region. Metadata
    steers the kernel, so a simulation without data has it all the same.
    """

    name: str
    bytes: int
    network: bool = False
    metadata: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a rank ends up with: bf16 in buffer `out`, `rows` of `columns`, `pitch` from row to row."""

    rows: int
    columns: int
    pitch: int

    @property
    def bytes(self) -> int:
        """Of all rows, their padding included."""
        return 2 * self.rows * self.pitch


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

    @property
    def sizes(self) -> tuple[int, ...]:
        """What a sweep takes unless told otherwise: the sizes with published results."""
        ...

    @property
    def small(self) -> int | Mapping[str, int]:
        """A size, or a whole shape where no size is small, that a processor computes in a second or so."""
        ...

    def shape_of(self, size: int, ranks: int) -> Shape:
        """Return the shape that `size` means on `ranks` ranks."""
        ...

    def shape_from(self, dims: Mapping[str, int]) -> Shape:
        """Return a shape given in full. Raises UsageError for a missing, unknown or zero dimension."""
        ...

    def chunk_tiles_for(self, shape: Shape, ranks_per_node: int) -> int:
        """Return the default tiles a chunk."""
        ...

    def flops_per_rank(self, shape: Shape, ranks: int) -> float:
        """Return the floating-point operations of one rank; the mean, if ranks have different work."""
        ...

    def buffers(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> list[Buffer]:
        """Return the payload part of one rank's symmetric heap, in order."""
        ...

    def control_bytes(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> int:
        """Return about what flags, counters and the controller's history take; the kernel says exactly."""
        ...

    def parameters(self, shape: Shape, nodes: int, ranks_per_node: int, chunk_tiles: int) -> dict[str, int]:
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
    ) -> dict[str, Matrix]:
        """Return what one rank starts with, by buffer, as float32 that holds bf16 values."""
        ...

    def pitches(self, shape: Shape) -> dict[str, int]:
        """Return the elements from row to row in the buffers of the inputs; zeros lie between rows."""
        ...

    is_replicated: bool
    """Whether all ranks end up with the same."""

    def output(self, shape: Shape, rank: int, ranks: int) -> Output:
        """Return how much one rank ends up with; it may be nothing."""
        ...

    def reference(
        self,
        shape: Shape,
        rank: int,
        ranks: int,
        seed: int,
        family: Family = "exact",
        sum_products: SumProducts = sum_products,
    ) -> Matrix:
        """Return what a rank must end up with; `sum_products` may be a faster one than NumPy's."""
        ...

    def tolerance(self, shape: Shape, ranks: int) -> float:
        """Return the largest error of a right result of the normal family (the exact family allows none)."""
        ...


@runtime_checkable
class Reducing(Protocol):
    """A workload that sums what the ranks of a node computed, in a way that can be chosen.

    "ordered" adds in rank order and gives the same bits each time; "atomic" adds in whatever order values
    come, so the bits of a result may differ from run to run.
    """

    def reducing(self, reduction: Reduction) -> Workload:
        """Return the workload that sums in the way of `reduction`."""
        ...


@runtime_checkable
class Routed(Protocol):
    """A workload whose tokens are routed to experts, some of which may be chosen more often than others."""

    def skewed(self, shape: Shape, skew: int) -> Shape:
        """Return `shape` with the exponent of the popularity of experts, in hundredths; 0 is uniform."""
        ...


@runtime_checkable
class Steered(Protocol):
    """A workload whose inputs decide not only the result but what the kernel does."""

    def metadata_inputs(self, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
        """Return the inputs of one rank that are metadata, by buffer, as the kernel reads them."""
        ...

    def metadata_outputs(self, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
        """Return what one rank must end up with beside `out`, by buffer: one array of 4-byte values each."""
        ...


def metadata_inputs(kernel: Workload, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
    """Return the metadata that one rank starts with, by buffer: of most kernels none."""
    return kernel.metadata_inputs(shape, rank, ranks) if isinstance(kernel, Steered) else {}


def metadata_outputs(kernel: Workload, shape: Shape, rank: int, ranks: int) -> dict[str, NDArray[Any]]:
    """Return the metadata that one rank must end up with, by buffer: of most kernels none."""
    return kernel.metadata_outputs(shape, rank, ranks) if isinstance(kernel, Steered) else {}
