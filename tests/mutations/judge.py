"""A process that puts libraries through the gauntlet, each in a child of its own, which may crash or hang.

It reads one request a line, {"library": path, "seeds": n, "timeout_s": s}, and answers each with one line,
{"detector": name or null, "detail": text}. Start it with libtsan preloaded for libraries of the variant "tsan".
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gauntlet import complaints, use_small_tiles

RACE = 66
"""Exit code of ThreadSanitizer, as TSAN_OPTIONS sets it."""

_CAUGHT = 65


def judge(library: str, seeds: int, timeout_s: float) -> dict[str, str | None]:
    """Return the detector that catches the library, and how."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            _run(library, seeds)
        status = _wait(child, timeout_s)
        said.seek(0)
        text = said.read().decode(errors="replace")
    if status is None:
        return {"detector": "time-out", "detail": f"no end within {timeout_s:g} s"}
    if os.WIFSIGNALED(status):
        return {"detector": "crash", "detail": signal.Signals(os.WTERMSIG(status)).name}
    code = os.WEXITSTATUS(status)
    if code == RACE:
        race = re.search(r"SUMMARY: ThreadSanitizer: (.*)", text)
        return {"detector": "ThreadSanitizer", "detail": race[1] if race else text[-300:]}
    if code == _CAUGHT:
        return dict(zip(("detector", "detail"), json.loads(text.splitlines()[-1]), strict=True))
    return {"detector": None if code == 0 else "crash", "detail": text[-2000:]}


def _run(library: str, seeds: int) -> None:
    """Leave the child: by _exit when something was found, else by way of ThreadSanitizer's own check at exit."""
    try:
        found = next(complaints(Path(library), range(seeds)), None)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    if found:
        print(json.dumps(found), flush=True)
        os._exit(_CAUGHT)
    sys.exit(0)


def _wait(child: int, timeout_s: float) -> int | None:
    """Return the child's status, or None after killing it at the time limit."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return None if killed and time.monotonic() - began >= timeout_s else status


def main() -> None:
    """Serve until the requests end."""
    use_small_tiles()
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        print(json.dumps(judge(**request)), flush=True)


if __name__ == "__main__":
    main()
