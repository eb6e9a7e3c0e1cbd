"""Processes of a job on this machine: found by an argument that only they have, and ended."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Linux only; elsewhere nothing happens."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def marked(marker: str) -> list[int]:
    """Running processes that have exactly `marker` among their arguments, this one excepted."""
    wanted = marker.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if wanted in arguments and is_running(int(entry.name)):
            found.append(int(entry.name))
    return found


def end_marked(marker: str, timeout_s: float) -> list[int]:
    """Kill every process that `marked` finds; returns those still there after `timeout_s` seconds."""
    deadline = monotonic() + timeout_s
    while left := marked(marker):
        for pid in left:
            send(pid, signal.SIGKILL)
        if monotonic() > deadline:
            return left
        sleep(0.01)
    return []


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process, or with -pid a process group; one that has ended already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
