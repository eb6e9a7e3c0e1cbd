"""An MPS daemon of our own, with which several ranks run on one GPU at the same time.

Without it the GPU gives them slices of time, and a rank that waits for another one waits for whole slices.
The daemon outlives whoever starts it, so three things see to its end: the owner's `with`, a watcher that
notices when the owner is gone, and the next start, which cleans up after owners that are gone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import IO

from mkbench.core.errors import EnvironmentProblem
from mkbench.dist import processes

CONTROL = "nvidia-cuda-mps-control"
#: Not TMPDIR: the daemon makes Unix sockets there, whose paths have at most 107 characters.
DEFAULT_ROOT = Path("/tmp")

_FAMILY = b"nvidia-cuda-mps-"
_PREFIX = "mkbench-mps-"
_OWNER = "owner"
_ONE_RANK = "or use one rank a GPU (--ranks-per-gpu 1)"


class MpsDaemon:
    """Runs an MPS daemon while it is entered. Ranks become its clients through `environment`.

    `root` is where its private directory is made; `patience_s` bounds the daemon's start, and how long it
    may take to quit before it is killed. To enter raises EnvironmentProblem if there is no MPS or it does not
    start, to leave only if a process survives SIGKILL.
    """

    def __init__(self, root: Path = DEFAULT_ROOT, patience_s: float = 10.0) -> None:
        self._root = root
        self._patience_s = patience_s
        self._directory: Path | None = None
        self._lock: IO[str] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def directory(self) -> Path:
        """The private directory; there is one only while the daemon is entered."""
        assert self._directory is not None
        return self._directory

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process a client. They must be set before it first uses CUDA."""
        return _variables(self.directory)

    def rank_environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """`base` as a rank needs it: with `environment`, and without another daemon's or share's settings."""
        kept = {name: value for name, value in base.items() if not name.startswith("CUDA_MPS_")}
        return kept | self.environment

    def processes(self) -> list[int]:
        """The process ids of the control daemon and of its servers (one runs once there was a client)."""
        return _members(self.directory)

    def __enter__(self) -> MpsDaemon:
        control = find_control()
        clean_up(self._root, self._patience_s)
        self._directory, self._lock = _claim(self._root)
        try:
            # First, so that no moment is left in which our end would leave a daemon behind.
            self._watcher = _watch(self._directory, self._patience_s)
            _start(control, self._directory, self._patience_s)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        end(self.directory, self._patience_s)
        self._directory = None
        if self._watcher is not None:
            assert self._watcher.stdin is not None
            self._watcher.stdin.close()
            self._watcher.wait()
        if self._lock is not None:
            self._lock.close()


def find_control() -> str:
    """The path of the program that controls MPS. Raises EnvironmentProblem if there is none."""
    found = shutil.which(CONTROL)
    if found is None:
        raise EnvironmentProblem(
            f"no {CONTROL}: several ranks on one GPU need MPS",
            f"install the driver's utilities (Debian: nvidia-compute-utils), {_ONE_RANK}",
        )
    return found


def clean_up(root: Path = DEFAULT_ROOT, patience_s: float = 10.0) -> None:
    """End the daemons of this user below `root` whose owners are gone, and remove what they left.

    Raises EnvironmentProblem if one of them survives SIGKILL.
    """
    for directory in root.glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):
            if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
                continue
            with (directory / _OWNER).open("r+") as owner:
                # The owner holds it until it ends, however it ends; its process id could be another's by now.
                try:
                    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                end(directory, patience_s)


def end(directory: Path, patience_s: float) -> None:
    """Have the daemon of `directory` quit, kill exactly its processes if it does not, remove the directory.

    Raises EnvironmentProblem if a process is still there `patience_s` seconds after SIGKILL.
    """
    control = shutil.which(CONTROL)
    if control is not None and _members(directory):
        with suppress(OSError, subprocess.SubprocessError):
            _ask(control, directory, "quit", patience_s)
    if _wait_for_end(directory, patience_s):
        left = _wait_for_end(directory, patience_s, kill=True)
        if left:
            raise EnvironmentProblem(
                f"MPS processes {left} of {directory} cannot be killed",
                "look at them with `ps`; a GPU that is stuck needs a reset by an administrator",
            )
    shutil.rmtree(directory, ignore_errors=True)


def _claim(root: Path) -> tuple[Path, IO[str]]:
    """A private directory of ours below `root`, and its lock, which tells that we are there."""
    # Locked before it gets the name by which others find it.
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
    for name in ("pipe", "log"):
        (hidden / name).mkdir()
    lock = (hidden / _OWNER).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return hidden.rename(root / hidden.name.removeprefix(".")), lock


def _start(control: str, directory: Path, patience_s: float) -> None:
    said = directory / "log" / "start"
    try:
        # Into a file: the daemon inherits its output, and the end of a pipe would not come.
        with said.open("wb") as output:
            status = subprocess.run(
                [control, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(directory),
                timeout=patience_s,
                check=False,
            ).returncode
        words = f"{control} -d ended with {status}"
        if status == 0:
            # Any question will do: whoever answers is there.
            answer = _ask(control, directory, "get_default_active_thread_percentage", patience_s)
            status, words = answer.returncode, answer.stdout.strip()
    except subprocess.TimeoutExpired:
        status, words = 1, f"no answer within {patience_s:g} s"
    except OSError as error:
        status, words = 1, str(error)
    if status != 0:
        last = (said.read_text(errors="replace").strip() or words).splitlines()[-1:]
        raise EnvironmentProblem(
            f"the MPS daemon does not start: {''.join(last)}",
            f"look with `nvidia-smi` whether the GPU works, {_ONE_RANK}",
        )


def _ask(control: str, directory: Path, question: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [control],
        input=f"{question}\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(directory),
        timeout=timeout_s,
        check=False,
    )


def _variables(directory: Path) -> dict[str, str]:
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(directory / "log"),
    }


def _environment(directory: Path) -> dict[str, str]:
    """The daemon's environment: it serves all GPUs with their own numbers, and limits nobody to a share."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("CUDA_MPS_") and name != "CUDA_VISIBLE_DEVICES"
    }
    return kept | _variables(directory)


def _members(directory: Path) -> list[int]:
    """Running processes of MPS itself, not its clients, that belong to the daemon of `directory`."""
    setting = f"CUDA_MPS_PIPE_DIRECTORY={directory / 'pipe'}".encode()
    found = []
    for entry in _own_processes():
        with suppress(OSError):
            # A script's own name comes after its interpreter's.
            program = (entry / "cmdline").read_bytes().split(b"\0")[:2]
            if not any(os.path.basename(word).startswith(_FAMILY) for word in program):
                continue
            if setting in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if processes.is_running(pid)]


def _own_processes() -> Iterator[Path]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                yield entry


def _wait_for_end(directory: Path, timeout_s: float, *, kill: bool = False) -> list[int]:
    """Wait until the daemon's processes are gone, killing them if told; those that are left in the end."""
    deadline = monotonic() + timeout_s
    while left := _members(directory):
        for pid in left if kill else ():
            processes.send(pid, signal.SIGKILL)
        if monotonic() > deadline:
            return left
        sleep(0.01)
    return []


def _watch(directory: Path, patience_s: float) -> subprocess.Popen[bytes]:
    """A process that ends the daemon as soon as this one is gone, which closes its standard input."""
    package_root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "mkbench.dist.mps", str(directory), str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=package_root,
        start_new_session=True,  # Ctrl-C and a killed process group must not reach it
    )


def _be_watcher() -> None:
    sys.stdin.read()
    directory = Path(sys.argv[1])
    if directory.is_dir():
        end(directory, float(sys.argv[2]))


if __name__ == "__main__":
    _be_watcher()
