from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from mkbench.core.errors import EnvironmentProblem
from mkbench.dist import mps, processes
from mkbench.dist.mps import CONTROL, MpsDaemon

# What the tests need of the real one: `-d` leaves a control process, which starts a server; questions come by
# standard input. Both wait in the shell itself, so that they keep their names.
FAKE = """#!/bin/sh
pipe=$CUDA_MPS_PIPE_DIRECTORY
case "$1" in
-d)
  [ "$FAKE_MPS" = stuck ] && exec sleep 600
  [ "$FAKE_MPS" = broken ] && { echo "an error of the driver"; exit 1; }
  [ "$FAKE_MPS" = dies ] && exit 0
  mkfifo "$pipe/never"
  setsid "$0" serve </dev/null &
  echo $! >"$pipe/pid"
  exit 0;;
serve)
  "$0-server" </dev/null &
  echo $! >"$pipe/server"
  read _ <"$pipe/never";;
*)
  read question
  echo "$question" >>"$FAKE_LOG"
  kill -0 "$(cat "$pipe/pid")" 2>/dev/null || { echo "Cannot find MPS control daemon process"; exit 1; }
  [ "$question" = quit ] || { echo 100.0; exit 0; }
  [ "$FAKE_MPS" = hangs ] && exec sleep 600
  kill "$(cat "$pipe/server")" "$(cat "$pipe/pid")";;
esac
"""
SERVER = """#!/bin/sh
read _ <"$CUDA_MPS_PIPE_DIRECTORY/never"
"""
OWNER = """
import signal, sys
from pathlib import Path
from mkbench.dist.mps import MpsDaemon
with MpsDaemon(Path(sys.argv[1])) as daemon:
    print(daemon.directory, flush=True)
    signal.pause()
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake MPS is first on PATH; the file that it writes every question to."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in ((CONTROL, FAKE), (f"{CONTROL}-server", SERVER)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Where daemons get their directories; none of their processes survives the test."""
    folder = tmp_path / "root"
    folder.mkdir()
    yield folder
    for directory in folder.iterdir():
        for pid in mps._members(directory):
            processes.send(pid, signal.SIGKILL)


@pytest.fixture
def start_owner(root: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Path]]]:
    """Starts a process that runs a daemon until it is killed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], Path]:
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(root)], stdout=subprocess.PIPE, text=True)
        started.append(owner)
        assert owner.stdout is not None
        return owner, Path(owner.stdout.readline().strip())

    yield start
    for owner in started:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.01)
    return True


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def test_runs_in_a_private_directory_and_leaves_nothing(log: Path, root: Path):
    with MpsDaemon(root) as daemon:
        directory = daemon.directory
        assert directory.parent == root
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert daemon.environment["CUDA_MPS_PIPE_DIRECTORY"] == str(directory / "pipe")
        assert daemon.environment["CUDA_MPS_LOG_DIRECTORY"] == str(directory / "log")
        assert within(10, lambda: len(daemon.processes()) == 2)
        pids = daemon.processes()
    assert not any(processes.is_running(pid) for pid in pids)
    assert list(root.iterdir()) == []
    assert log.read_text().splitlines()[-1] == "quit"
    assert processes.marked(str(directory)) == []


def test_limits_no_rank_and_serves_all_gpus(log: Path, root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with MpsDaemon(root) as daemon:
        environment = environment_of(daemon.processes()[0])
        rank = daemon.rank_environment()
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment.keys() | rank.keys()
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert rank["CUDA_VISIBLE_DEVICES"] == "1"
    assert rank["CUDA_MPS_PIPE_DIRECTORY"] == environment["CUDA_MPS_PIPE_DIRECTORY"]


def test_one_that_does_not_quit_is_killed_and_nobody_else(
    log: Path, root: Path, monkeypatch: pytest.MonkeyPatch
):
    with MpsDaemon(root) as other:
        monkeypatch.setenv("FAKE_MPS", "hangs")
        with MpsDaemon(root, patience_s=0.5) as daemon:
            client = subprocess.Popen(["sleep", "600"], env=daemon.rank_environment())
            pids = daemon.processes()
        assert not any(processes.is_running(pid) for pid in pids)
        assert client.poll() is None
        assert len(other.processes()) >= 1
        client.kill()
        client.wait()
        monkeypatch.delenv("FAKE_MPS")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_stops_when_what_it_runs_for_fails(log: Path, root: Path, error: type[BaseException]):
    with pytest.raises(error), MpsDaemon(root):
        raise error
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("broken", "an error of the driver"),
        ("stuck", "no answer within 0.5 s"),
        ("dies", "Cannot find MPS control daemon process"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    log: Path, root: Path, monkeypatch: pytest.MonkeyPatch, fault: str, words: str
):
    monkeypatch.setenv("FAKE_MPS", fault)
    with pytest.raises(EnvironmentProblem, match=words) as caught, MpsDaemon(root, patience_s=0.5):
        pass
    assert "--ranks-per-gpu 1" in str(caught.value.hint)
    assert list(root.iterdir()) == []


def test_without_mps_one_line_says_how_to_get_it(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentProblem, match=f"no {CONTROL}") as caught, MpsDaemon(root):
        pass
    assert "nvidia-compute-utils" in str(caught.value.hint)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ends_with_an_owner_that_is_killed(log: Path, root: Path, start_owner, number: signal.Signals):
    owner, directory = start_owner()
    pids = mps._members(directory)
    assert pids
    owner.send_signal(number)
    owner.wait()
    assert within(20, lambda: list(root.iterdir()) == [])
    assert not any(processes.is_running(pid) for pid in pids)


def test_the_next_start_cleans_up_when_the_watcher_was_killed_too(log: Path, root: Path, start_owner):
    owner, directory = start_owner()
    pids = mps._members(directory)
    for watcher in processes.marked(str(directory)):
        processes.send(watcher, signal.SIGKILL)
    owner.kill()
    owner.wait()
    assert all(processes.is_running(pid) for pid in pids)
    with MpsDaemon(root) as daemon:
        assert list(root.iterdir()) == [daemon.directory]
        assert not any(processes.is_running(pid) for pid in pids)


def test_the_next_start_leaves_a_daemon_with_an_owner_alone(log: Path, root: Path, start_owner):
    _, directory = start_owner()
    pids = mps._members(directory)
    mps.clean_up(root)
    assert directory.is_dir()
    assert all(processes.is_running(pid) for pid in pids)


def test_a_directory_of_somebody_else_is_left_alone(log: Path, root: Path, monkeypatch: pytest.MonkeyPatch):
    stranger = root / "mkbench-mps-stranger"
    stranger.mkdir()
    (stranger / "owner").touch()
    uid = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: uid + 1)
        mps.clean_up(root)
    assert stranger.is_dir()
    mps.clean_up(root)
    assert not stranger.exists()
