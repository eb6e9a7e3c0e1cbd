"""bf16 as uint16 bits: the upper half of a float32, rounded to nearest even.

Arrays may be NumPy's or CuPy's: only methods and operators are used, which both have.
"""

import numpy as np
from numpy.typing import NDArray


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bf16 bits nearest to float32 `values`, ties to even; overflow gives inf, a nan stays one."""
    values = values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    nan = values != values
    # A nan is cut instead of rounded, which could carry into its exponent, and made a quiet one.
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded *= ~nan
    rounded += bits
    rounded >>= 16
    rounded |= nan.astype(np.uint32) << 6
    return rounded.astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bf16 `bits`, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the bf16 values nearest to `values`, as float32."""
    return from_bf16(to_bf16(values))
