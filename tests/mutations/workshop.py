"""Builds mutants of the kernels."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gauntlet import DEFINES

from mkbench.build import cpu
from mkbench.build.cache import Cache
from mkbench.build.sources import included_files
from mkbench.core.resources import kernels_dir

Gauntlet = Literal["simulator", "threads"]

# Never both proxies, the host's and the simulator's: they hold the same inline functions, of which the linker
# would choose one.
_UNITS: Mapping[Gauntlet, tuple[str, ...]] = {
    "simulator": ("gemm_ar.cu", "host/layout.cpp", "proxy/proxy_sim.cpp", "sim/"),
    "threads": ("gemm_ar.cu", "host/", "proxy/proxy.cpp"),
}
# Simulator and layout use no part of the protocol; what they include of it need not be compiled again.
_FIXED = ("sim/", "host/layout.cpp")
# A mutant may leave a variable unused. Compiling takes longer than running, so nothing is optimised that need
# not be.
_FLAGS: Mapping[cpu.Variant, tuple[str, ...]] = {"release": ("-O0", "-w"), "tsan": ("-w",)}


def build(gauntlet: Gauntlet, variant: cpu.Variant, edits: Mapping[str, str], folder: Path) -> Path:
    """Return the library for one gauntlet, with small tiles. `edits`: whole files that replace the kernels'.

    `folder` receives the changed sources and what is compiled from them. Raises BuildFailed.
    """
    original, compiler, shared = kernels_dir(), cpu.find_compiler(), Cache()
    changed, own = original, shared
    if edits:
        changed, own = _tree(folder / "kernels", edits), Cache(folder / "build")
    objects = []
    for unit in cpu._units("gemm_ar", original, DEFINES, variant):
        name = unit.source.relative_to(original).as_posix()
        if not name.startswith(_UNITS[gauntlet]):
            continue
        files = {file.relative_to(original).as_posix() for file in included_files(unit.source, original)}
        recompiled = bool(files & set(edits)) and not name.startswith(_FIXED)
        root, store = (changed, own) if recompiled else (original, shared)
        unit = replace(unit, source=root / name, flags=(*unit.flags, *_FLAGS[variant]))
        objects.append(cpu._compile(unit, root, compiler, store))
    return cpu._link("gemm_ar", objects, variant, compiler, own)


def _tree(folder: Path, edits: Mapping[str, str]) -> Path:
    shutil.copytree(kernels_dir(), folder)
    for file, text in edits.items():
        (folder / file).write_text(text)
    return folder
