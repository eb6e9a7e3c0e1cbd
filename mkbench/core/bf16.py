"""bf16 as uint16 bits: the upper half of a float32, rounded to nearest even."""

import numpy as np
from numpy.typing import NDArray

_QUIET_NAN = np.uint32(0x0040)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bf16 bits nearest to float32 `values`, ties to even; overflow gives inf, a nan stays one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    upper = bits >> 16
    rounded = (bits + (np.uint32(0x7FFF) + (upper & 1))) >> 16
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, upper | _QUIET_NAN, rounded).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bf16 `bits`, exactly."""
    return (np.ascontiguousarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the bf16 values nearest to `values`, as float32."""
    return from_bf16(to_bf16(values))
