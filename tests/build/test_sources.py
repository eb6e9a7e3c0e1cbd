from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mkbench.build.sources import included_files, kernel_source
from mkbench.core.errors import UsageError

Write = Callable[[Path, str], None]


def names(sources: Path, unit: str) -> list[str]:
    files = included_files(sources / unit, sources)
    return [file.relative_to(sources.resolve()).as_posix() for file in files]


def test_follows_includes_of_includes_once(sources: Path, write: Write) -> None:
    write(sources / "mk" / "add.h", '#pragma once\n  #  include "deep.h"\n#include <vector>\n')
    write(sources / "mk" / "deep.h", '#include "add.h"\n#include <mk/angle.h>\n')
    write(sources / "mk" / "angle.h", '#if 0\n#include "../sim/inactive.h"\n#endif\n')
    write(sources / "sim" / "inactive.h", "")
    assert names(sources, "toy.cu") == ["mk/add.h", "mk/angle.h", "mk/deep.h", "sim/inactive.h", "toy.cu"]


def test_files_outside_the_sources_are_not_followed(sources: Path, write: Write) -> None:
    write(sources.parent / "outside.h", '#include "other.h"\n')
    write(sources / "toy.cu", '#include "../outside.h"\n')
    assert names(sources, "toy.cu") == ["toy.cu"]


def test_computed_include_is_refused(sources: Path, write: Write) -> None:
    write(sources / "toy.cu", "#include MK_HEADER\n")
    with pytest.raises(UsageError, match="MK_HEADER"):
        included_files(sources / "toy.cu", sources)


def test_unknown_kernel_lists_the_known(sources: Path) -> None:
    with pytest.raises(UsageError, match="nosuch") as caught:
        kernel_source("nosuch", sources)
    assert "toy" in str(caught.value.hint)
