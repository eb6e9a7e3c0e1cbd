"""A process that puts libraries through the gauntlet, each in a child of its own, which may crash or hang.

It reads one request a line, {"kernel": name, "library": path, "gauntlet": "simulator" or "threads",
"seeds": n, "driver": path, "timeout_s": s}, and answers with one, {"detector": name or null, "detail":
text}. Start it with libtsan preloaded for libraries of the variant "tsan".
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import gauntlet as simulator

RACE = 66
"""Exit code of ThreadSanitizer, as TSAN_OPTIONS sets it."""

_CAUGHT = 65


def judge(
    kernel: str, library: str, gauntlet: str, seeds: int, driver: str, timeout_s: float
) -> dict[str, str | None]:
    """Return the detector that catches the library, and how."""
    if gauntlet == "simulator":
        simulator.remember_data(kernel)  # here, for all children
    # ThreadSanitizer reports nothing in the fork of a process that has more.
    assert len(os.listdir("/proc/self/task")) == 1
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            # SIGPROF or SIGALRM ends the child.
            signal.setitimer(signal.ITIMER_PROF if gauntlet == "simulator" else signal.ITIMER_REAL, timeout_s)
            _run(kernel, library, gauntlet, seeds, driver)
        status = os.waitpid(child, 0)[1]
        said.seek(0)
        text = said.read().decode(errors="replace")
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        late = name in ("SIGPROF", "SIGALRM")
        return {"detector": "time-out" if late else "crash", "detail": name}
    code = os.WEXITSTATUS(status)
    if code == RACE:
        race = re.search(r"SUMMARY: ThreadSanitizer: (.*)", text)
        return {"detector": "ThreadSanitizer", "detail": race[1] if race else text[-300:]}
    if code == _CAUGHT:
        return dict(zip(("detector", "detail"), json.loads(text.splitlines()[-1]), strict=True))
    return {"detector": None if code == 0 else "error", "detail": text[-2000:]}


def _run(kernel: str, library: str, gauntlet: str, seeds: int, driver: str) -> NoReturn:
    """Leave the child, at once if something was found, else by way of ThreadSanitizer's check at exit."""
    try:
        # Kept until the process ends: a run that is cleaned up behind a complaint only makes more of them.
        if gauntlet == "simulator":
            complaints = simulator.complaints(kernel, Path(library), range(seeds))
        else:
            import host_gauntlet  # here, where the tiles are small already

            complaints = host_gauntlet.complaints(Path(library), Path(driver))
        found = next(complaints, None)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    if found:
        print(json.dumps(found), flush=True)
        os._exit(_CAUGHT)
    sys.exit(0)


def main() -> None:
    """Serve until the requests end."""
    simulator.use_small_tiles()
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        print(json.dumps(judge(**request)), flush=True)


if __name__ == "__main__":
    main()
