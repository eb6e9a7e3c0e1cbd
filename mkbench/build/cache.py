"""A content-addressed store of build results, shared by processes that may build the same thing at once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mkbench.core.errors import EnvironmentProblem

_CHANGE_FOLDER = "set MKBENCH_CACHE to a folder that you can write"


def cache_root() -> Path:
    """$MKBENCH_CACHE, else $XDG_CACHE_HOME/mkbench, else ~/.cache/mkbench."""
    if chosen := os.environ.get("MKBENCH_CACHE"):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "mkbench"
    try:
        return Path.home() / ".cache" / "mkbench"
    except RuntimeError:
        raise EnvironmentProblem("there is no home folder to cache builds in", hint=_CHANGE_FOLDER) from None


def digest(parts: Iterable[str | bytes]) -> str:
    """sha256 (64 hex digits) of a sequence. Lengths are hashed too, so ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


class Cache:
    """Maps a key (64 hex digits over everything that determines a result) to a file that never changes.

    An entry appears whole or not at all: it is written beside its place and renamed. Builders of one key take
    turns by a file lock, which the kernel drops when its holder dies, however it dies.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() if root is None else root

    def path(self, key: str, suffix: str) -> Path:
        """Where the entry is, once it has been built."""
        return self.root / "entries" / key[:2] / (key + suffix)

    def log_path(self, key: str) -> Path:
        """Where to keep the compiler's output of a build that failed."""
        return self.root / "logs" / f"{key}.log"

    def write_log(self, key: str, text: str) -> Path:
        """Keeps `text`, and returns where."""
        path = self.log_path(key)
        with _folder_problems(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path

    def get(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        """The entry's path; if it does not exist, `build(path)` must write it to the path that it is given.

        Of several callers, in any process, one builds and the others wait for it. When a build raises,
        nothing is stored and the next caller tries again. Raises EnvironmentProblem if the folder can't be
        written.
        """
        entry = self.path(key, suffix)
        if entry.exists():
            return entry
        with _folder_problems(self.root):
            entry.parent.mkdir(parents=True, exist_ok=True)
        with self._lock(key + suffix):
            if not entry.exists():
                self._build(entry, build)
        return entry

    def _build(self, entry: Path, build: Callable[[Path], None]) -> None:
        # Whoever holds the lock may remove what dead builders left. The folder's name is fresh each time: a
        # compiler can outlive the process that started it, and must not write into its successor's file.
        for abandoned in entry.parent.glob(f".{entry.name}.*"):
            _remove_folder(abandoned)
        with _folder_problems(self.root):
            scratch = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
        try:
            partial = scratch / entry.name
            build(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(entry)
        finally:
            _remove_folder(scratch)

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        path = self.root / "locks" / name
        with _folder_problems(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink(missing_ok=True)
        folder.rmdir()


@contextlib.contextmanager
def _folder_problems(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the build cache {root}: {error.strerror}", hint=_CHANGE_FOLDER
        ) from error
