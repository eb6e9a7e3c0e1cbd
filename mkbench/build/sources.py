"""Which files a translation unit is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkbench.core.errors import UsageError

# Inactive branches count too: a dependency too many costs a rebuild, one too few would serve a stale object.
_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)
_OPERAND = re.compile(rb'"([^"\n]+)"|<([^>\n]+)>')


def kernel_source(kernel: str, sources: Path) -> Path:
    """<sources>/<kernel>.cu. Raises UsageError if there is none."""
    path = sources / f"{kernel}.cu"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in sources.glob("*.cu"))) or "none"
        raise UsageError(f"no kernel source {path}", hint=f"kernels found there: {known}")
    return path


def included_files(unit: Path, sources: Path) -> list[Path]:
    """`unit` and all files below `sources` that it includes, directly or not, sorted by path.

    An include is looked up beside the including file, then in `sources`, as the compilers are told to do.
    System headers are not listed: the compiler's version stands for them.
    """
    found: set[Path] = set()
    waiting = [unit.resolve()]
    root = sources.resolve()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        for operand in _operands(file.read_bytes(), file):
            for folder in (file.parent, root):
                candidate = (folder / operand).resolve()
                if candidate.is_relative_to(root) and candidate.is_file():
                    waiting.append(candidate)
    return sorted(found)


def fingerprint(files: list[Path], sources: Path) -> Iterator[str | bytes]:
    """Relative names and contents, in an order that does not depend on the machine."""
    root = sources.resolve()
    for name, file in sorted((file.resolve().relative_to(root).as_posix(), file) for file in files):
        yield name
        yield file.read_bytes()


def _operands(text: bytes, file: Path) -> list[str]:
    names = []
    for directive in _INCLUDE.findall(text):
        match = _OPERAND.match(directive)
        if match is None:
            raise UsageError(f"{file}: cannot follow '#include {directive.decode(errors='replace').strip()}'")
        names.append((match[1] or match[2]).decode())
    return names
