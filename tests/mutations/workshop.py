"""Builds mutants of the kernels."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gauntlet import DEFINES

from mkbench.build import cpu
from mkbench.build.cache import Cache, digest
from mkbench.build.sources import included_files
from mkbench.core.resources import kernels_dir

sys.path.append(str(Path(__file__).parents[1] / "proxy"))

import lazy_cuda

Gauntlet = Literal["simulator", "threads"]

# Never both proxies, the host's and the simulator's: they hold the same inline functions, of which the linker
# would choose one.
_UNITS: Mapping[Gauntlet, tuple[str, ...]] = {
    "simulator": ("host/layout.cpp", "proxy/proxy_sim.cpp", "sim/"),
    "threads": ("host/", "proxy/proxy.cpp"),
}
# Simulator and layout use no part of the protocol; what they include of it need not be compiled again.
_FIXED = ("sim/", "host/layout.cpp")
# A mutant may leave a variable unused. Compiling takes longer than running, so nothing is optimised that need
# not be.
_FLAGS: Mapping[cpu.Variant, tuple[str, ...]] = {"release": ("-O0", "-w"), "tsan": ("-w", "-g1")}

# Some hundred megabytes, gone when this process ends.
_headers_folder = tempfile.TemporaryDirectory(prefix="mkbench-headers-")
_headers = Cache(Path(_headers_folder.name))


def build(
    kernel: str, gauntlet: Gauntlet, variant: cpu.Variant, edits: Mapping[str, str], folder: Path
) -> Path:
    """Return a kernel's library for one gauntlet, with small tiles. `edits`: whole files that replace others.

    `folder` receives the changed sources and what is compiled from them. Raises BuildFailed.
    """
    original, compiler, shared = kernels_dir(), cpu.find_compiler(), Cache()
    changed, own = original, shared
    if edits:
        changed, own = _tree(folder / "kernels", edits), Cache(folder / "build")
    objects = []
    for unit in cpu._units(kernel, original, DEFINES, variant):
        name = unit.source.relative_to(original).as_posix()
        if not name.startswith((f"{kernel}.cu", *_UNITS[gauntlet])):
            continue
        files = {file.relative_to(original).as_posix() for file in included_files(unit.source, original)}
        recompiled = bool(files & set(edits)) and not name.startswith(_FIXED)
        root, store = (changed, own) if recompiled else (original, shared)
        flags = (*unit.flags, *_FLAGS[variant])
        if recompiled:
            flags = (*flags, "-include", str(_standard_headers(flags)))
        unit = replace(unit, source=root / name, flags=flags)
        objects.append(cpu._compile(unit, root, compiler, store))
    return cpu._link(kernel, objects, variant, compiler, own)


def _standard_headers(flags: tuple[str, ...]) -> Path:
    """Return a header of all standard ones that the kernels include, precompiled for a command with `flags`.

    Most of what a compiler does for a mutant is to read them.
    """
    files = [file for file in kernels_dir().rglob("*") if file.suffix in (".h", ".cpp")]
    names = sorted({name for file in files for name in re.findall(r"#include (<.+>)", file.read_text())})
    text = "".join(f"#if __has_include({name})\n#include {name}\n#endif\n" for name in names)
    key = digest(["headers", *flags, text])
    header = _headers.get(key, ".h", lambda target: target.write_text(text))

    def precompile(target: Path) -> None:
        command = [*cpu.find_compiler().command, *flags, "-x", "c++-header", str(header), "-o", str(target)]
        subprocess.run(command, check=True, timeout=300)

    # The compiler looks for it beside the header.
    assert _headers.get(key, ".h.gch", precompile) == header.with_suffix(".h.gch")
    return header


def build_driver(variant: cpu.Variant) -> Path:
    """Return lazy_cuda. ThreadSanitizer must see that its flags are set with release."""
    flags = cpu._TSAN_INSTRUMENTED if variant == "tsan" else ()
    source = lazy_cuda.SOURCE.read_text()
    key = digest(["driver", cpu.find_compiler().version, *lazy_cuda.FLAGS, *flags, source])
    return Cache().get(key, ".so", lambda target: lazy_cuda.build(target, *flags))


def _tree(folder: Path, edits: Mapping[str, str]) -> Path:
    shutil.copytree(kernels_dir(), folder)
    for file, text in edits.items():
        (folder / file).write_text(text)
    return folder
