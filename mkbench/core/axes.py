"""Sweep axes as text: a range with an inclusive end, or a list."""

import re

from mkbench.core.errors import UsageError
from mkbench.core.units import parse_size

FORMS = "write a list (2,4,8) or an inclusive range first:last:step (2:64:2)"
_LIMIT = 100_000
_NUMBER = re.compile(r"[0-9]{1,9}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def parse_axis(text: str) -> list[int]:
    """Return the sorted distinct values of "2:64:2" (2, 4, ..., 64), "2,4,8" or a mix ("1,2:8:2").

    Values may be zero (limits are the caller's), never negative. Raises UsageError that shows the forms.
    """
    values: set[int] = set()
    for part in text.split(","):
        values.update(_range(part, text))
    return sorted(values)


def parse_sizes(text: str) -> list[int]:
    """Return the sorted distinct sizes of "2048,4K". Raises UsageError for zero, negatives and the rest."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"sizes {text!r} hold an empty entry", hint="write 2048,4K")
    return sorted({parse_size(part) for part in parts})


def parse_decimals(text: str) -> list[float]:
    """Return the numbers of "0,0.5,1", none negative. Raises UsageError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(_DECIMAL.fullmatch(part) for part in parts):
        raise UsageError(f"list {text!r} holds what is no number of 0 or more", hint="write 0,0.5,1")
    return [float(part) for part in parts]


def _range(part: str, text: str) -> range:
    fields = [field.strip() for field in part.split(":")]
    if len(fields) > 3 or not all(_NUMBER.fullmatch(field) for field in fields):
        raise UsageError(f"axis {text!r} is malformed at {part.strip()!r}", hint=FORMS)
    first, last, step = (int(field) for field in _filled(fields))
    if step < 1 or last < first:
        raise UsageError(f"axis {text!r} is empty: {part.strip()!r} has no values", hint=FORMS)
    if (last - first) // step >= _LIMIT:
        raise UsageError(f"axis {text!r} has more than {_LIMIT} values", hint=FORMS)
    return range(first, last + 1, step)


def _filled(fields: list[str]) -> list[str]:
    """Return first, last and step of "8", "2:64" or "2:64:2"."""
    return {1: [*fields, *fields, "1"], 2: [*fields, "1"]}.get(len(fields), fields)
