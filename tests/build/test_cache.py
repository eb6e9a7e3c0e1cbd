from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from mkbench.build.cache import Cache, cache_root, digest
from mkbench.core.errors import EnvironmentProblem

KEY = digest(["some inputs"])


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MKBENCH_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("MKBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "mkbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "mkbench"


def test_digest_separates_its_parts() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["a", ""]) != digest(["a"])
    assert digest(["a"]) == digest([b"a"])


def test_builds_once(cache: Cache) -> None:
    calls = []

    def build(path: Path) -> None:
        calls.append(path)
        path.write_text("built")

    first = cache.get(KEY, ".o", build)
    assert first == cache.get(KEY, ".o", build)
    assert first.read_text() == "built"
    assert len(calls) == 1


def test_failed_build_leaves_nothing_and_is_tried_again(cache: Cache) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("compiler died")

    with pytest.raises(RuntimeError):
        cache.get(KEY, ".o", fail)
    assert not list(cache.path(KEY, ".o").parent.iterdir())
    assert cache.get(KEY, ".o", lambda path: path.touch()).exists()


def _build_slowly(root: Path, ready: Barrier, log: Path) -> None:
    def build(path: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        # Two writes, so that a reader of an unfinished entry would see half.
        path.write_bytes(b"x" * 100_000)
        with path.open("ab") as file:
            file.write(b"y" * 100_000)

    ready.wait()
    entry = Cache(root).get(KEY, ".o", build)
    assert entry.stat().st_size == 200_000


def test_concurrent_processes_compile_once(cache: Cache, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Barrier(4)
    log = tmp_path / "builds"
    workers = [context.Process(target=_build_slowly, args=(cache.root, ready, log)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(log.read_text().splitlines()) == 1


KILLED = """
import sys, signal
from pathlib import Path
from mkbench.build.cache import Cache
def build(path):
    path.write_text("half")
    print("building", flush=True)
    signal.pause()
Cache(Path(sys.argv[1])).get(sys.argv[2], ".o", build)
"""


def test_killed_builder_leaves_nothing_broken(cache: Cache) -> None:
    command = [sys.executable, "-c", KILLED, str(cache.root), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
        builder.send_signal(signal.SIGKILL)
    assert not cache.path(KEY, ".o").exists()
    entry = cache.get(KEY, ".o", lambda path: path.write_text("whole") and None)
    assert entry.read_text() == "whole"
    assert list(entry.parent.iterdir()) == [entry]


def test_unwritable_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentProblem, match="cannot write the build cache") as caught:
        Cache(tmp_path / "file").get(KEY, ".o", lambda path: path.touch())
    assert "MKBENCH_CACHE" in str(caught.value.hint)
