"""Kernels that hold one part of a kernel file or of the device library each, to look at its machine code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from mkbench.build.cache import Cache
from mkbench.build.disassembly import sass
from mkbench.build.nvrtc import compile_cubin
from mkbench.core.resources import kernels_dir

# (kind, order, scope) of an access to a 64-bit word: ("store", "release", "SYS")
Access = tuple[str, str, str]

_STRONG = re.compile(r"\b(LDG|LD|STG|ST|ATOMG|ATOM|REDG|RED)\.E\.(?:\w+\.)*?64\.STRONG\.(GPU|SYS)\b")
_KINDS = {"LD": "load", "ST": "store", "AT": "atomic", "RE": "atomic"}


def accesses(instructions: list[str]) -> set[Access]:
    """What a kernel does to words that others can see, read from its machine code.

    A release is a MEMBAR between the access and the one before it; an acquire is an invalidation of the L1
    cache between the access and the next.
    """
    strong = [i for i, text in enumerate(instructions) if _STRONG.search(text)]
    found = set()
    for before, here, after in zip([-1, *strong], strong, [*strong[1:], len(instructions)], strict=False):
        match = _STRONG.search(instructions[here])
        assert match is not None
        kind, scope = _KINDS[match[1][:2]], match[2]
        barriers = [text for text in instructions[before + 1 : here] if "MEMBAR" in text]
        releases = any(text.endswith(f".{scope}") for text in barriers)
        acquires = any("CCTL.IVALL" in text for text in instructions[here + 1 : after])
        order = {(0, 0): "relaxed", (1, 0): "release", (0, 1): "acquire", (1, 1): "acq_rel"}[
            releases, acquires
        ]
        found.add((kind, order, scope))
    return found


def copy_kernels(folder: Path, edits: Mapping[str, tuple[str, str]]) -> Path:
    """A copy of the kernels with `edits`: file -> (text, replacement). A text that is missing is an error."""
    copy = folder / "kernels"
    shutil.copytree(kernels_dir(), copy)
    for name, (text, replacement) in edits.items():
        file = copy / name
        before = file.read_text()
        assert text in before, f"{name} has no '{text}'"
        file.write_text(before.replace(text, replacement, 1))
    return copy


def probe(bodies: Mapping[str, str], kernels: Path, arch: str, cache: Cache) -> dict[str, set[Access]]:
    """Accesses of each body, a statement about `block` and `p`, compiled against the device library."""
    parts = [
        f"inline void {name}(Block& block, const Params& p) {{ {body} }}" for name, body in bodies.items()
    ]
    entries = [f"MK_KERNEL({name}, Params, -, -, {name}, -)" for name in bodies]
    text = [
        '#include "mk/mk.h"',
        "namespace mk {",
        "MK_STRUCT(Params, MK_LAUNCH_PARAMS)",
        "inline u64* word(const Params& p) { return reinterpret_cast<u64*>(p.heap[0]); }",
        "inline u64* next(const Params& p) { return reinterpret_cast<u64*>(p.heap[1]); }",
        *parts,
        "}",
        *entries,
    ]
    return _compile("\n".join(text), kernels, arch, cache)


def probe_kernel(
    kernel: str, bodies: Mapping[str, str], kernels: Path, arch: str, cache: Cache
) -> dict[str, set[Access]]:
    """Accesses of each body, a statement about `kernel`, which the kernel file itself sets up."""
    source = (kernels / f"{kernel}.cu").read_text()
    setup = re.search(
        rf"^void {kernel}\(Block& block, const Params& p\) \{{\n(.*?)^  run_\w+\(", source, re.M | re.S
    )
    assert setup is not None
    parts = [
        f"inline void {name}(Block& block, const Params& p) {{\n{setup[1]}{body}\n}}"
        for name, body in bodies.items()
    ]
    entries = [f"MK_KERNEL({name}, Params, -, -, {name}, -)" for name in bodies]
    # Without the file's own entry, which takes longest to compile.
    text = "\n".join([source[: source.rindex("MK_KERNEL(")], "namespace mk {", *parts, "}", *entries])
    return _compile(text, kernels, arch, cache)


def _compile(text: str, kernels: Path, arch: str, cache: Cache) -> dict[str, set[Access]]:
    (kernels / "probe.cu").write_text(text)
    compiled = sass(compile_cubin("probe", arch, sources=kernels, cache=cache))
    return {name: accesses(instructions) for name, instructions in compiled.items()}
