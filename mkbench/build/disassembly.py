"""Machine code of a cubin: what the compiler made of tiles, orders and scopes."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mkbench.core.errors import EnvironmentProblem

_HINT = "run `pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm`"
_FUNCTION = re.compile(r"Function ?:? (\w+)")
_RESOURCE = re.compile(r"(REG|STACK|SHARED|LOCAL):(\d+)")
# "        /*0a10*/                   ST.E.64.STRONG.SYS desc[UR4][R2.64], R4 ;"
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes: registers, stack and local bytes of a thread, static shared bytes of a block."""

    registers: int
    stack: int
    local: int
    shared: int


def sass(cubin: bytes) -> dict[str, list[str]]:
    """All instructions of every kernel, by name, in order, with predicate and operands.

    Raises EnvironmentProblem without the tools.
    """
    sections = _FUNCTION.split(_cuobjdump("-sass", cubin))
    return {
        name: _INSTRUCTION.findall(text) for name, text in zip(sections[1::2], sections[2::2], strict=True)
    }


def resources(cubin: bytes) -> dict[str, Resources]:
    """Resource usage of every kernel, by name. Raises EnvironmentProblem without the tools."""
    used: dict[str, Resources] = {}
    name = ""
    for line in _cuobjdump("-res-usage", cubin).splitlines():
        if match := _FUNCTION.search(line):
            name = match[1]
        elif numbers := {key: int(value) for key, value in _RESOURCE.findall(line)}:
            used[name] = Resources(numbers["REG"], numbers["STACK"], numbers["LOCAL"], numbers["SHARED"])
    return used


def _cuobjdump(option: str, cubin: bytes) -> str:
    program = _tool("cuobjdump")
    # cuobjdump starts nvdisasm by name.
    path = os.pathsep.join([str(_tool("nvdisasm").parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [program, option, file],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )
    if done.returncode != 0:
        raise EnvironmentProblem(
            f"cuobjdump failed: {done.stderr.strip() or done.stdout.strip()}", hint=_HINT
        )
    return done.stdout


def _tool(name: str) -> Path:
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError as error:
        raise EnvironmentProblem("package cuda-pathfinder is missing", hint=_HINT) from error
    found = find_nvidia_binary_utility(name)
    if found is None:
        raise EnvironmentProblem(f"{name} is missing", hint=_HINT)
    return Path(found)
