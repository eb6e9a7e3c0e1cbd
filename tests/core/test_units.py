import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core import units
from mkbench.core.errors import UsageError


@given(st.integers(1, 1 << 39))
def test_sizes_round_trip(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


def test_sizes_are_binary() -> None:
    assert units.parse_size("32k") == 32768
    assert units.format_size(32768) == "32K"
    assert units.format_size(1000) == "1000"


@pytest.mark.parametrize(
    ("text", "amount"), [("65536", 65536), ("256KiB", 1 << 18), ("1.5G", 3 << 29), ("64 kB", 65536)]
)
def test_bytes(text: str, amount: int) -> None:
    assert units.parse_bytes(text) == amount


def test_sizes_may_be_huge() -> None:
    assert units.parse_size("1099511627776") == 1 << 40


def test_one_thing_is_not_plural() -> None:
    assert [units.plural(count, "rank") for count in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_bad_bytes() -> None:
    with pytest.raises(UsageError, match="amount of memory"):
        units.parse_bytes("many")


def test_formats_keep_three_digits() -> None:
    assert units.format_bytes(1 << 28) == "256 MiB"
    assert units.format_bytes(3 << 29) == "1.50 GiB"
    assert units.format_bytes(12) == "12 B"
    assert [units.format_us(value) for value in (74.26, 28416.0, 2.5e6)] == ["74.3 us", "28.4 ms", "2.50 s"]
    assert [units.format_us(value) for value in (0.0, 0.0078, 0.51)] == ["0.00 us", "7.80 ns", "0.51 us"]
    assert units.format_tflops(409.25) == "409 TFLOPS"
    assert units.format_tflops(0.0123) == "12.3 GFLOPS"
