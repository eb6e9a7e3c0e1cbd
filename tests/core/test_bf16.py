import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mkbench.core.bf16 import from_bf16, round_to_bf16, to_bf16

ALL = np.arange(1 << 16, dtype=np.uint16)


def test_every_bf16_survives_the_round_trip() -> None:
    values = from_bf16(ALL)
    numbers = ~np.isnan(values)
    assert np.array_equal(to_bf16(values)[numbers], ALL[numbers])
    assert np.isnan(from_bf16(to_bf16(values))[~numbers]).all()


def test_a_nan_with_low_bits_only_stays_a_nan() -> None:
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], dtype=np.uint32)
    assert np.isnan(round_to_bf16(bits.view(np.float32))).all()


def test_ties_go_to_even() -> None:
    values = np.array([257, 258, 259, 261, 1 + 2**-8, 1 + 3 * 2**-8], dtype=np.float32)
    assert round_to_bf16(values).tolist() == [256, 258, 260, 260, 1, 1 + 2**-6]


def test_integers_are_exact_up_to_256_and_not_beyond() -> None:
    integers = np.arange(-256, 257, dtype=np.float32)
    assert np.array_equal(round_to_bf16(integers), integers)
    assert round_to_bf16(np.array([257], dtype=np.float32))[0] != 257


def test_overflow_is_infinite() -> None:
    assert np.isinf(round_to_bf16(np.array([np.finfo(np.float32).max], dtype=np.float32)))[0]


@given(st.floats(width=32, allow_nan=False, min_value=-(2.0**120), max_value=2.0**120))
def test_nearest(value: float) -> None:
    """No neighbour is nearer than the bf16 that was chosen."""
    bits = to_bf16(np.array([value], dtype=np.float32))
    chosen = float(from_bf16(bits)[0])
    neighbours = from_bf16(bits + np.array([-1, 1], dtype=np.int16).view(np.uint16))
    numbers = [float(neighbour) for neighbour in neighbours if np.isfinite(neighbour)]
    assert all(abs(value - chosen) <= abs(value - neighbour) for neighbour in numbers)
