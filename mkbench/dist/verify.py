"""Comparison of a result with the reference, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import from_bf16, to_bf16
from mkbench.core.measurement import Check

#: Fills the output before a launch: a bf16 NaN that no kernel makes, so that an element nobody wrote shows.
POISON = 0xFFFF
POISON_BYTE = 0xFF
POISON_WORD = 0xFFFFFFFF

#: Elements that are compared at once: enough for a GPU, with temporaries of some hundred megabytes.
_BAND = 1 << 24


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rank's elements: how many, how many wrong, and the first wrong one as text."""

    elements: int
    mismatches: int
    first: str | None


def compare(
    rank: int, found: NDArray[np.uint16], reference: NDArray[np.float32], tolerance: float | None
) -> Comparison:
    """Compare bf16 bits with float32 values of the same shape (rows, columns), both of NumPy or both of CuPy.

    Without a tolerance the bits must be those of the rounded reference; with one, values may differ by it
    (absolute).
    """
    mismatches, first = 0, None
    rows, columns = found.shape
    for band in bands(rows, columns, _BAND):
        bits, expected = found[band], reference[band]
        wrong = _differ(bits, expected, tolerance)
        # CuPy brings a kernel that sums 64-bit integers; for those of another size it starts a compiler.
        count = int(wrong.astype(np.int64).sum())
        if count and first is None:
            row, column = divmod(int(wrong.argmax()), columns)
            got = bits[row : row + 1, column]
            first = (
                f"rank {rank} row {band.start + row} column {column}: "
                f"expected {float(expected[row, column])!r}, got {float(from_bf16(got)[0])!r}"
            )
            if int(got[0]) == POISON:
                first += " (never written)"
        mismatches += count
    return Comparison(found.size, mismatches, first)


def compare_metadata(rank: int, name: str, found: NDArray[np.uint8], expected: NDArray[Any]) -> Comparison:
    """Compare the bytes of buffer `name` with values of 4 bytes, bit for bit."""
    values = found.view(expected.dtype)
    wrong = found.view(np.uint32) != expected.view(np.uint32)
    first = None
    if wrong.any():
        index = int(wrong.argmax())
        first = f"rank {rank} {name} {index}: expected {expected[index]!s}, got {values[index]!s}"
        if found.view(np.uint32)[index] == POISON_WORD:
            first += " (never written)"
    return Comparison(len(expected), int(np.count_nonzero(wrong)), first)


def bands(rows: int, columns: int, most: int) -> Iterator[slice]:
    """Yield slices of consecutive rows that hold `most` elements or fewer, but at least one row."""
    height = max(1, most // columns)
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


def _differ(bits: NDArray[np.uint16], expected: NDArray[np.float32], tolerance: float | None) -> NDArray[Any]:
    if tolerance is None:
        differ: NDArray[Any] = bits != to_bf16(expected)
        return differ
    error = from_bf16(bits)
    error -= expected
    within: NDArray[Any] = abs(error) <= tolerance
    # Not the opposite comparison: with NaN every one is false, and NaN is never within the tolerance.
    return ~within


def merge(comparisons: Sequence[Comparison]) -> Check:
    """All ranks' comparisons, in rank order, as one check."""
    return Check(
        elements=sum(c.elements for c in comparisons),
        mismatches=sum(c.mismatches for c in comparisons),
        first=next((c.first for c in comparisons if c.first is not None), None),
    )
