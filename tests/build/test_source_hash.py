from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from mkbench.build.source_hash import source_hash

Write = Callable[[Path, str], None]


def test_covers_the_kernel_and_the_device_library_only(sources: Path, write: Write) -> None:
    before = source_hash("toy", sources)
    assert re.fullmatch("[0-9a-f]{12}", before)
    write(sources / "sim" / "helper.cpp", "int helper() { return 101; }\n")
    write(sources / "mk" / "README.md", "words")
    write(sources / "other.cu", "")
    assert source_hash("toy", sources) == before
    write(sources / "mk" / "unused_here.h", "")
    with_header = source_hash("toy", sources)
    assert with_header != before
    write(sources / "toy.cu", "int x;\n")
    assert source_hash("toy", sources) not in {before, with_header}


def test_a_renamed_header_changes_it(sources: Path) -> None:
    before = source_hash("toy", sources)
    (sources / "mk" / "add.h").rename(sources / "mk" / "sum.h")
    assert source_hash("toy", sources) != before


def test_does_not_depend_on_place_or_creation_order(sources: Path, tmp_path: Path, write: Write) -> None:
    for name in ("b.h", "a.h", "c.h"):
        write(sources / "mk" / name, name)
    before = source_hash("toy", sources)
    other = tmp_path / "elsewhere"
    for file in sorted(sources.rglob("*"), reverse=True):
        if file.is_file():
            target = other / file.relative_to(sources)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    assert source_hash("toy", other) == before
