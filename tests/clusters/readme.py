"""The commands of README that only a cluster can run."""

from __future__ import annotations

import re
import shlex

from daemons import ROOT


def command_of_readme(launcher: str) -> list[str]:
    """The words of the only line that begins with `launcher` in a block that test_readme.py does not run."""
    blocks = re.findall(r"^```text\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    (command,) = [line for line in lines if line.startswith(f"{launcher} ")]
    return shlex.split(command)
