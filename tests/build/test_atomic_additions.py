"""Additions in memory are instructions that no other GPU can come between, and nothing is lost of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from probes import copy_kernels, probe

from mkbench.build.cache import Cache
from mkbench.build.disassembly import sass
from mkbench.build.nvrtc import compile_cubin

BODIES = {"adds": "add_at(block, word(p), Piece{{1, 2, 3, 4}});"}

IN_MEMORY = r"(?:REDG|ATOMG)\.E\.(?:ADD\.BF16\S*|CAS\S*)\.STRONG\.(?:GPU|SYS)"
WHOLE_PIECE = ["REDG.E.ADD.BF16x8.RN.STRONG.SYS"]
HALVES = ["ATOMG.E.CAS.64.STRONG.SYS"] * 2


def additions(arch: str, kernels: Path, cache: Cache) -> list[str]:
    probe(BODIES, kernels, arch, cache)
    code = sass(compile_cubin("probe", arch, sources=kernels, cache=cache))["adds"]
    return [match[0] for text in code if (match := re.search(IN_MEMORY, text))]


@pytest.mark.parametrize(
    ("arch", "expected"), [("sm_80", HALVES), ("sm_90a", WHOLE_PIECE), ("sm_100a", WHOLE_PIECE)]
)
def test_a_piece_is_added_at_system_scope(
    arch: str, expected: list[str], tmp_path: Path, cache: Cache
) -> None:
    assert additions(arch, copy_kernels(tmp_path, {}), cache) == expected


@pytest.mark.parametrize(
    ("arch", "text", "replacement"),
    [
        ("sm_90a", "red.relaxed.sys", "red.relaxed.gpu"),
        ("sm_90a", "red.relaxed.sys.global.add.noftz.v4.bf16x2", "st.global.v4.u32"),
        (
            "sm_80",
            "while (!compare_exchange<Order::relaxed, Scope::system>",
            "while (!compare_exchange<Order::relaxed, Scope::gpu>",
        ),
    ],
)
def test_a_weaker_addition_shows(
    arch: str, text: str, replacement: str, tmp_path: Path, cache: Cache
) -> None:
    kernels = copy_kernels(tmp_path, {"mk/tiles_cuda.h": (text, replacement)})
    assert additions(arch, kernels, cache) not in (WHOLE_PIECE, HALVES)


@pytest.mark.parametrize("kernel", ["gemm_ar", "gemm_rs"])
def test_kernels_that_reduce_add_the_tile_so_and_keep_all_in_registers(kernel: str, cache: Cache) -> None:
    code = sass(compile_cubin(kernel, "sm_90a", cache=cache))[kernel]
    assert {match[0] for text in code if (match := re.search(IN_MEMORY, text))} >= set(WHOLE_PIECE)
    assert not [text for text in code if re.search(r"\b(LDL|STL)\b", text)]
