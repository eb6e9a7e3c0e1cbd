from __future__ import annotations

import numpy as np
import pytest

from mkbench.core.bf16 import to_bf16
from mkbench.core.measurement import Check
from mkbench.dist.verify import POISON, Comparison, compare, merge

REFERENCE = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def test_equal_bits_pass():
    assert compare(1, to_bf16(REFERENCE), REFERENCE, None) == Comparison(12, 0, None)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 3), (2, 3)])
def test_one_wrong_bit_is_found_and_placed(row: int, column: int):
    found = to_bf16(REFERENCE)
    found[row, column] ^= 1
    comparison = compare(1, found, REFERENCE, None)
    assert comparison.mismatches == 1
    assert comparison.first is not None
    assert comparison.first.startswith(f"rank 1 row {row} column {column}: expected {REFERENCE[row, column]}")


def test_the_first_of_several_is_named_and_nothing_written_is_said():
    found = np.full((3, 4), POISON, dtype=np.uint16)
    found[0] = to_bf16(REFERENCE)[0]
    comparison = compare(7, found, REFERENCE, None)
    assert comparison == Comparison(12, 8, "rank 7 row 1 column 0: expected -1.0, got nan (never written)")


@pytest.mark.parametrize(("error", "mismatches"), [(0.25, 0), (0.5, 1)])
def test_a_tolerance_is_absolute_and_inclusive(error: float, mismatches: int):
    shifted = REFERENCE.copy()
    shifted[1, 1] += error
    assert compare(0, to_bf16(shifted), REFERENCE, tolerance=0.25).mismatches == mismatches


def test_nan_is_never_within_the_tolerance():
    found = to_bf16(REFERENCE)
    found[2, 0] = POISON
    assert compare(0, found, REFERENCE, tolerance=1e9).mismatches == 1


def test_ranks_are_merged_and_the_lowest_wrong_rank_speaks():
    merged = merge([Comparison(6, 0, None), Comparison(6, 2, "rank 1 ..."), Comparison(6, 1, "rank 2 ...")])
    assert merged == Check(18, 3, "rank 1 ...")
