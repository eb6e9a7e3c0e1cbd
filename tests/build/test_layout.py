from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkbench.build.cache import Cache
from mkbench.build.cpu import build_library
from mkbench.build.layout import Layout, LayoutMismatch

Write = Callable[[Path, str], None]
DESCRIPTION: dict[str, Any] = {
    "structs": {
        "Inner": {"size": 8, "fields": [["set", "u4", 0, 1], ["code", "i4", 4, 1]]},
        "Params": {
            "size": 40,
            "fields": [["heap", "u8", 0, 2], ["rank", "i4", 16, 1], ["gain", "f8", 24, 1]],
        },
    },
    "names": {"flags": ["ready", "arrived"], "roles": ["none"]},
    "constants": {"tile_m": 128},
}
READER = """
#include <cstdint>
struct Params { uint64_t heap[2]; int32_t rank; double gain; uint64_t end; };
static_assert(sizeof(Params) == 40);
extern "C" double sum(const Params* p) {
  return double(p->heap[0] + p->heap[1]) + p->rank + p->gain + double(p->end);
}
"""


class FakeLibrary:
    """Stands in for ctypes.CDLL: only mk_layout."""

    _name = "fake.so"

    def __init__(self, text: str) -> None:
        class Export:
            def __call__(self) -> bytes:
                return text.encode()

        self.mk_layout = Export()


def layout(description: object) -> Layout:
    library: Any = FakeLibrary(description if isinstance(description, str) else json.dumps(description))
    return Layout(library)


def changed(struct: str, **change: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(DESCRIPTION))
    copy["structs"][struct].update(change)
    return copy


def test_records_mean_the_same_to_the_compiler(tmp_path: Path, cache: Cache, write: Write) -> None:
    text = json.dumps(DESCRIPTION).replace('"', '\\"')
    write(tmp_path / "k" / "toy.cu", f'{READER}extern "C" const char* mk_layout() {{ return "{text}"; }}\n')
    library = ctypes.CDLL(str(build_library("toy", sources=tmp_path / "k", cache=cache)))
    library.sum.restype, library.sum.argtypes = ctypes.c_double, [ctypes.c_void_p]
    made = Layout(library)
    params = made.new("Params", heap=[10, 20], rank=-1, gain=0.5)
    assert library.sum(params.ctypes.data) == 29.5
    assert made.constants == {"tile_m": 128}
    assert made.flags == ("ready", "arrived")
    assert made.names["roles"] == ("none",)


def test_record_is_zeroed_and_has_the_size_of_the_struct() -> None:
    params = layout(DESCRIPTION).new("Params")
    assert params.shape == ()
    assert params.tobytes() == bytes(40)
    assert params["heap"].dtype == np.uint64


def test_missing_struct_and_field_are_named() -> None:
    made = layout(DESCRIPTION)
    with pytest.raises(LayoutMismatch, match="'Parms'") as struct:
        made.new("Parms")
    assert "Params" in str(struct.value.hint)
    with pytest.raises(LayoutMismatch, match="'ranc'") as field:
        made.new("Params", ranc=1)
    assert "rank" in str(field.value.hint)


@pytest.mark.parametrize(
    "fields", [{"rank": 1 << 31}, {"heap": [1, 2, 3]}, {"heap": -1}, {"rank": "one"}], ids=str
)
def test_value_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(LayoutMismatch, match=r"Params\."):
        layout(DESCRIPTION).new("Params", **fields)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        (changed("Inner", fields=[["set", "u4", 0, 1], ["code", "i4", 2, 1]]), "overlaps"),
        (changed("Inner", fields=[["set", "u4", 0, 3]]), "end at byte 12"),
        (changed("Inner", size=6), "end at byte 8"),
        (changed("Inner", fields=[["set", "u3", 0, 1]]), "u3"),
        (changed("Inner", fields=[["set", "u4", 0]]), "malformed"),
        ("{", "malformed"),
        ({"constants": {}}, "malformed"),
    ],
)
def test_contradictions_are_refused(description: object, expected: str) -> None:
    with pytest.raises(LayoutMismatch, match=expected):
        layout(description)
