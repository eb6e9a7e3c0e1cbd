from __future__ import annotations

import numpy as np
import pytest

from mkbench.core.bf16 import round_to_bf16, to_bf16
from mkbench.core.measurement import Check
from mkbench.dist import verify
from mkbench.dist.verify import POISON, POISON_BYTE, Comparison, bands, compare, compare_metadata, merge

REFERENCE = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


class DeviceArray:
    """An array that NumPy must not touch, as CuPy's are: methods and operators work between two of them or
    with a number, and everything else is refused.
    """

    __array_ufunc__ = None

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array")

    def __array_function__(self, function: object, *_: object) -> None:
        raise TypeError(f"{function} is NumPy's")

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: object) -> DeviceArray:
        return DeviceArray(np.asarray(self._values[place]))

    def __abs__(self) -> DeviceArray:
        return DeviceArray(abs(self._values))

    def __invert__(self) -> DeviceArray:
        return DeviceArray(~self._values)

    def __int__(self) -> int:
        return int(self._values)

    def __float__(self) -> float:
        return float(self._values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def size(self) -> int:
        return self._values.size

    def view(self, dtype: type) -> DeviceArray:
        return DeviceArray(self._values.view(dtype))

    def astype(self, dtype: type, copy: bool = True) -> DeviceArray:
        return DeviceArray(self._values.astype(dtype, copy=copy))

    def sum(self) -> DeviceArray:
        return DeviceArray(np.asarray(self._values.sum()))

    def argmax(self) -> DeviceArray:
        return DeviceArray(np.asarray(self._values.argmax()))


def _operator(name: str):
    def apply(self: DeviceArray, other: DeviceArray | float) -> DeviceArray:
        if not isinstance(other, DeviceArray | int | float):
            raise TypeError(f"{type(other)} is not of the device")
        result = getattr(self._values, name)(getattr(other, "_values", other))
        assert result is not NotImplemented
        return DeviceArray(result)

    return apply


for _name in ("ne", "le", "rshift", "lshift", "iand", "ior", "iadd", "isub", "imul", "irshift", "ilshift"):
    setattr(DeviceArray, f"__{_name}__", _operator(f"__{_name}__"))


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


def test_metadata_is_compared_bit_for_bit():
    expected = np.array([0.5, 0.0, 0.25, -1.0], dtype=np.float32)
    found = expected.copy()
    assert compare_metadata(2, "row_weights", found.view(np.uint8), expected) == Comparison(4, 0, None)
    found[1] = -0.0
    found[3] = 1.0
    said = "rank 2 row_weights 1: expected 0.0, got -0.0"
    assert compare_metadata(2, "row_weights", found.view(np.uint8), expected) == Comparison(4, 2, said)


def test_metadata_that_nobody_wrote_and_none_at_all():
    poisoned, expected = np.full(8, POISON_BYTE, np.uint8), np.array([7, 9], dtype=np.int32)
    said = "rank 0 starts 0: expected 7, got -1 (never written)"
    assert compare_metadata(0, "starts", poisoned, expected) == Comparison(2, 2, said)
    assert compare_metadata(0, "starts", poisoned[:0], expected[:0]) == Comparison(0, 0, None)


@pytest.mark.parametrize("tolerance", [None, 0.25])
@pytest.mark.parametrize("wrong", [[], [(2, 1)], [(0, 3), (1, 0), (2, 2)]])
def test_arrays_of_a_device_are_compared_there(wrong: list[tuple[int, int]], tolerance: float | None):
    padded = np.zeros((3, 8), dtype=np.uint16)
    padded[:, :4] = to_bf16(REFERENCE)
    for place in wrong:
        padded[place] = POISON
    found = padded[:, :4]
    there = compare(5, DeviceArray(found), DeviceArray(REFERENCE), tolerance)  # type: ignore[arg-type]
    assert there == compare(5, found, REFERENCE, tolerance)
    assert there.mismatches == len(wrong)


def test_arrays_of_a_device_are_not_mixed_with_others():
    with pytest.raises(TypeError):
        compare(5, DeviceArray(to_bf16(REFERENCE)), REFERENCE, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("tolerance", [None, 0.25])
def test_bands_make_no_difference(monkeypatch: pytest.MonkeyPatch, tolerance: float | None):
    values = np.random.default_rng(3).integers(-9, 9, (50, 7)).astype(np.float32)
    found = to_bf16(values)
    for place in [(19, 6), (20, 0), (49, 6)]:
        found[place] = POISON
    at_once = compare(2, found, values, tolerance)
    assert at_once.first is not None
    assert at_once.first.startswith("rank 2 row 19 column 6: ")
    for most in (1, 7, 20 * 7, 10_000):
        monkeypatch.setattr(verify, "_BAND", most)
        assert compare(2, found, values, tolerance) == at_once


def test_bands_cover_all_rows_once():
    assert list(bands(5, 10, 20)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(bands(2, 100, 20)) == [slice(0, 1), slice(1, 2)]
    assert list(bands(3, 4, 1 << 40)) == [slice(0, 3)]


def test_poison_is_made_of_one_byte_and_is_no_result():
    poisoned = np.full(8, POISON_BYTE, dtype=np.uint8).view(np.uint16)
    assert (poisoned == POISON).all()
    nan = round_to_bf16(np.array([np.nan, -np.nan], dtype=np.float32))
    assert POISON not in to_bf16(nan)


def test_ranks_are_merged_and_the_lowest_wrong_rank_speaks():
    merged = merge([Comparison(6, 0, None), Comparison(6, 2, "rank 1 ..."), Comparison(6, 1, "rank 2 ...")])
    assert merged == Check(18, 3, "rank 1 ...")
