"""Inputs of a GEMM whose K is split over ranks, and the result to compare with.

A rank can make its own inputs alone: they depend on the seed, the rank, the shape and the rank count.

Exact family. Every entry of A is 0, 1, -1, 2 or -2, and a row of A, over all ranks together, has at most
NONZEROS = 64 nonzero entries; every entry of B is 1, -1, 2 or -2. So an element of C is a sum of at most 64
integers, each of magnitude at most 2 * 2 = 4, and a sum over any subset of its terms is an integer of
magnitude at most 64 * 4 = 256. bf16 has 8 significant bits and therefore holds every integer up to 256, and
float32 every one up to 2^24: no partial sum, in whatever order and however split over k, ranks and nodes, is
ever rounded.

Normal family. Standard normal, rounded to bf16.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import round_to_bf16
from mkbench.core.workloads.base import Family, Matrix, Precision, Shape, SumProducts, sum_products

NONZEROS = 64
"""Most nonzero entries in a row of A, over all ranks."""

_VALUES = np.array([-2, -1, 1, 2], dtype=np.float32)
_BF16_UNIT_ROUNDOFF = 2.0**-8


def gemm_inputs(shape: Shape, rank: int, ranks: int, seed: int, family: Family) -> tuple[Matrix, Matrix]:
    """Return A[m, k] and B[k, n] of `rank`: float32 arrays that hold bf16 values."""
    rng = np.random.default_rng([seed, rank])
    if family == "normal":
        a = rng.standard_normal((shape.m, shape.k), dtype=np.float32)
        return round_to_bf16(a), round_to_bf16(rng.standard_normal((shape.k, shape.n), dtype=np.float32))
    return _sparse(rng, shape, rank, ranks), _pick(rng, (shape.k, shape.n))


def gemm_reference(
    shape: Shape,
    ranks: int,
    seed: int,
    family: Family,
    sum_products: SumProducts = sum_products,
    rows: range | None = None,
) -> Matrix:
    """Return C[m, n] = sum over ranks of A @ B, exactly, or from float64 for the normal family.

    With `rows`, consecutive ones that may be none, only those of C.
    """
    if rows is None:
        rows = range(shape.m)
    if not rows:
        return np.empty((0, shape.n), np.float32)
    precision: Precision = np.float32 if family == "exact" else np.float64

    def pair(rank: int) -> tuple[Matrix, Matrix]:
        a, b = gemm_inputs(shape, rank, ranks, seed, family)
        return a[rows.start : rows.stop], b

    # Most of the time goes into random numbers, which NumPy makes without holding up other threads.
    with ThreadPoolExecutor() as threads:
        return sum_products(threads.map(pair, range(ranks)), precision)


def gemm_tolerance(shape: Shape, ranks: int) -> float:
    """Return the largest absolute error of a right result of the normal family.

    With u = 2^-8, the unit roundoff of bf16, and s = sqrt(k * ranks), the standard deviation of an element: a
    result is rounded three times on its way (partials, node sums, the end); the rounding errors of each stage
    add up, in quadrature, to at most u * s / sqrt(3), all three to u * s. An outlier of six deviations loses
    6 u s in the last rounding alone, so 10 u s leaves room for the rest. Products of two normals have heavier
    tails than normals, which shows at small k: 30 u more. float32 accumulation adds less than u s / 100 up to
    k = 2^20. A rank that is left out changes an element by sqrt(k), far more than 10 u s up to 256 ranks.
    """
    return _BF16_UNIT_ROUNDOFF * (10 * float(np.sqrt(shape.k * ranks)) + 30)


def _sparse(rng: np.random.Generator, shape: Shape, rank: int, ranks: int) -> Matrix:
    """Return A with this rank's share of the nonzeros of each row.

    Remainders rotate with the row, so that beyond 64 ranks every rank still matters to some rows. The k
    columns are cut into as many strata as there are nonzeros, one in each: a skipped k block shows.
    """
    a = np.zeros((shape.m, shape.k), dtype=np.float32)
    rows = np.arange(shape.m)
    share, remainder = divmod(NONZEROS, ranks)
    counts = np.minimum(share + ((rank - rows) % ranks < remainder), shape.k)
    for stratum in range(int(counts.max(initial=0))):
        chosen = rows[counts > stratum]
        first = stratum * shape.k // counts[chosen]
        last = (stratum + 1) * shape.k // counts[chosen]
        a[chosen, rng.integers(first, last)] = _pick(rng, chosen.shape)
    return a


def _pick(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return _VALUES[rng.integers(0, len(_VALUES), shape, dtype=np.uint8)]
