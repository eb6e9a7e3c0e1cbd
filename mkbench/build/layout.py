"""NumPy record types for the C++ structs of a library, taken from the library itself."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

from mkbench.core.errors import MkbenchError

_TYPES = frozenset({"u4", "u8", "i4", "i8", "f4", "f8"})


class LayoutMismatch(MkbenchError):
    """Python and a compiled library disagree about a struct."""

    exit_code = 3


class Layout:
    """What mk_layout() of `library` says: structs, lists of names, and constants.

    The description is {"structs": {name: {"size": bytes, "fields": [[name, type, offset, count], ...]}},
    "names": {list: [name, ...]}, "constants": {name: int}}, with NumPy's names of types and addresses as u8.
    Raises LayoutMismatch when it is malformed or contradicts itself.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        export = library.mk_layout
        export.restype, export.argtypes = ctypes.c_char_p, []
        try:
            described = json.loads(export())
            self.names = {key: tuple(names) for key, names in described.get("names", {}).items()}
            self.constants: dict[str, int] = described.get("constants", {})
            self._dtypes = {name: _dtype(name, struct) for name, struct in described["structs"].items()}
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise LayoutMismatch(f"mk_layout() of {library._name} is malformed: {error!r}") from error

    @property
    def flags(self) -> tuple[str, ...]:
        """The kernel's flags, by the numbers that reports give them."""
        return self.names.get("flags", ())

    def dtype(self, name: str) -> np.dtype[Any]:
        """The structured type, padding included. Raises LayoutMismatch if the library has no such struct."""
        try:
            return self._dtypes[name]
        except KeyError:
            known = ", ".join(sorted(self._dtypes))
            raise LayoutMismatch(f"the library has no struct '{name}'", hint=f"it has {known}") from None

    def new(self, name: str, **fields: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """A zeroed 0-d record with `fields` set; pass its `.ctypes.data` to the library.

        Raises LayoutMismatch for a field that the struct lacks or a value that does not fit.
        """
        record = np.zeros((), self.dtype(name))
        for field, value in fields.items():
            if field not in (record.dtype.names or ()):
                known = ", ".join(record.dtype.names or ())
                raise LayoutMismatch(f"struct '{name}' has no field '{field}'", hint=f"it has {known}")
            try:
                record[field] = value
            except (OverflowError, ValueError, TypeError) as error:
                raise LayoutMismatch(f"{name}.{field} cannot hold {value!r}: {error}") from error
        return record


def _dtype(name: str, struct: Any) -> np.dtype[Any]:
    names, formats, offsets = [], [], []
    end = 0
    for field, kind, offset, count in sorted(struct["fields"], key=lambda entry: entry[2]):
        if kind not in _TYPES:
            raise LayoutMismatch(f"{name}.{field} has type '{kind}', which has no counterpart in Python")
        if offset < end:
            raise LayoutMismatch(f"{name}.{field} at byte {offset} overlaps the field before it")
        type_ = np.dtype(kind) if count == 1 else np.dtype((kind, (count,)))
        end = offset + type_.itemsize
        names.append(field)
        formats.append(type_)
        offsets.append(offset)
    if end > struct["size"]:
        raise LayoutMismatch(f"the fields of {name} end at byte {end}, the struct at {struct['size']}")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": struct["size"]})
