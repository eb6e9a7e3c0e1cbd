"""Comparison of a result with the reference, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mkbench.core.bf16 import from_bf16, to_bf16
from mkbench.core.measurement import Check

#: Fills the output before a launch: a bf16 NaN that no kernel makes, so that an element nobody wrote shows.
POISON = 0xFFFF


@dataclass(frozen=True, slots=True)
class Comparison:
    """One rank's elements: how many, how many wrong, and the first wrong one as text."""

    elements: int
    mismatches: int
    first: str | None


def compare(
    rank: int, found: NDArray[np.uint16], reference: NDArray[np.float32], tolerance: float | None
) -> Comparison:
    """Compare bf16 bits with float32 values of the same shape (rows, columns).

    Without a tolerance the bits must be those of the rounded reference; with one, values may differ by it
    (absolute).
    """
    values = from_bf16(found)
    # A comparison with NaN is false, so NaN is never within the tolerance.
    is_exact = tolerance is None
    wrong = found != to_bf16(reference) if is_exact else ~(np.abs(values - reference) <= tolerance)
    mismatches = int(np.count_nonzero(wrong))
    if mismatches == 0:
        return Comparison(found.size, 0, None)
    row, column = np.unravel_index(int(np.argmax(wrong)), found.shape)
    first = (
        f"rank {rank} row {row} column {column}: expected {_show(reference[row, column])}, "
        f"got {_show(values[row, column])}"
    )
    if found[row, column] == POISON:
        first += " (never written)"
    return Comparison(found.size, mismatches, first)


def merge(comparisons: Sequence[Comparison]) -> Check:
    """All ranks' comparisons, in rank order, as one check."""
    return Check(
        elements=sum(c.elements for c in comparisons),
        mismatches=sum(c.mismatches for c in comparisons),
        first=next((c.first for c in comparisons if c.first is not None), None),
    )


def _show(value: np.float32) -> str:
    return f"{float(value)!r}"
