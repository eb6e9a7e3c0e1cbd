"""One thing that `mkbench doctor` looked for, and how it asks other programs."""

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for. `fix` is a command, or what to do; None where nothing helps."""

    what: str
    ok: bool
    found: str
    needed_for: str
    fix: str | None = None


def first_line(*command: str) -> str | None:
    """The first line that a command prints, or None if it fails, hangs or prints nothing."""
    printed = lines(*command)
    return printed[0] if printed else None


def lines(*command: str) -> list[str]:
    """What a command prints; nothing if it fails or takes longer than half a minute."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()
