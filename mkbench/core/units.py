"""Sizes, bytes, times and rates as people write them. Sizes are binary (32K = 32768), rates decimal.

Everything inside mkbench is a plain number with its unit in its name; only the edge formats.
"""

import re

from mkbench.core.errors import UsageError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})\s*([KMGT]?)", re.IGNORECASE)
_BYTES = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the positive whole number that `text` writes: "2048", "4K" (4096), "1M".

    Raises UsageError for anything else, zero and negative numbers included.
    """
    match = _SIZE.fullmatch(text.strip())
    value = int(match[1]) * _BINARY[match[2].upper()] if match else 0
    if value < 1:
        raise UsageError(f"size {text!r} is not a positive number", hint="write 2048 or 4K")
    return value


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` writes: "65536", "256K", "256KiB", "1.5G". Raises UsageError."""
    match = _BYTES.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not an amount of memory", hint="write 65536, 256K or 1.5GiB")
    return int(float(match[1]) * _BINARY[match[2].upper()])


def format_size(size: int) -> str:
    """Return the shortest exact form: 32768 -> "32K", 1000 -> "1000"."""
    for suffix in "TGMK":
        if size and size % _BINARY[suffix] == 0:
            return f"{size // _BINARY[suffix]}{suffix}"
    return str(size)


def format_bytes(amount: int) -> str:
    """Return bytes with three significant digits: 268435456 -> "256 MiB"."""
    for suffix in "TGMK":
        if amount >= _BINARY[suffix]:
            return f"{_three_digits(amount / _BINARY[suffix])} {suffix}iB"
    return f"{amount} B"


def format_skew(hundredths: int) -> str:
    """Return the words for a skew of a shape: 50 -> "skew 0.5"."""
    return f"skew {hundredths / 100:g}"


def format_us(us: float) -> str:
    """Return a time given in microseconds: 74.2 -> "74.2 us", 28416 -> "28.4 ms", 0.05 -> "50.0 ns"."""
    if 0 < us < 0.1:
        return f"{_three_digits(us * 1e3)} ns"
    if us < 1e3:
        return f"{_three_digits(us)} us"
    return f"{_three_digits(us / 1e3)} ms" if us < 1e6 else f"{_three_digits(us / 1e6)} s"


def plural(count: int, noun: str) -> str:
    """Return "1 sample" or "3 samples"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_tflops(tflops: float) -> str:
    """Return a rate given in TFLOPS: 409.25 -> "409 TFLOPS", 0.0123 -> "12.3 GFLOPS"."""
    return f"{_three_digits(tflops)} TFLOPS" if tflops >= 1 else f"{_three_digits(tflops * 1e3)} GFLOPS"


def _three_digits(value: float) -> str:
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"
