"""What can go wrong while compiling a kernel."""

from __future__ import annotations

import re
from pathlib import Path

from mkbench.core.errors import MkbenchError

_ERROR_LINE = re.compile(r"\b(?:error|undefined reference|multiple definition)\b", re.IGNORECASE)


class BuildFailed(MkbenchError):
    """A compiler or linker refused the sources. The whole of its output is in `log_path`."""

    exit_code = 3

    def __init__(self, what: str, output: str, log_path: Path) -> None:
        self.log_path = log_path
        super().__init__(
            f"compiling {what} failed: {first_error(output)}",
            hint=f"the compiler's whole output is in {log_path}",
        )


def first_error(output: str) -> str:
    """The first line of a compiler's output that reports an error; its last line if none says so."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if _ERROR_LINE.search(line):
            return line
    return lines[-1] if lines else "the compiler said nothing"
