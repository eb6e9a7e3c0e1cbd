"""Real ranks under mpiexec that are killed, raise, leave or stall: the job ends, the culprit is named,
nothing is left.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from mkbench.core.errors import EnvironmentProblem, HangError
from mkbench.dist import processes
from mkbench.dist.job import JobDirectory, job_directory
from mkbench.dist.launcher import Launched, find_mpiexec
from mkbench.dist.watchdog import follow

pytestmark = pytest.mark.mpi
#: What is promised: everything ends this soon after the fault, or after the deadline of a rank that stalls.
PROMISE_S = 10.0


@pytest.fixture
def job() -> Iterator[JobDirectory]:
    with job_directory() as job:
        yield job


def lines_of(job: JobDirectory, worker: str, ranks: int = 3) -> Iterator[str]:
    launched = Launched(find_mpiexec(), ranks, job.path, job.stderr, worker)
    return follow(launched, job.heartbeats, ranks)


def run_with(
    fault: str, job: JobDirectory, worker: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], Exception]:
    monkeypatch.setenv("MKBENCH_TEST_FAULT", fault)
    monkeypatch.setenv("MKBENCH_TEST_STAND_IN", "1")
    lines: list[str] = []
    started = monotonic()
    with pytest.raises((HangError, EnvironmentProblem)) as caught:
        # Not a list comprehension: the lines before the failure are wanted.
        lines.extend(lines_of(job, worker))
    assert monotonic() - started < PROMISE_S
    assert processes.marked(str(job.path)) == []
    # mpiexec adds its own report of the failure.
    return [line for line in lines if line.startswith("launch")], caught.value


def test_without_a_fault_all_lines_arrive_in_order(
    job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKBENCH_TEST_STAND_IN", "1")
    assert list(lines_of(job, faulty_worker)) == ["launch 0", "launch 1", "launch 2"]
    assert processes.marked(str(job.path)) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("kill:2:launch 1", "rank 2 on .* was killed by SIGKILL in phase 'launch 1' of some/point"),
        ("kill:0:launch 1", "rank 0 on .* was killed by SIGKILL in phase 'launch 1' of some/point"),
        ("raise:1:launch 1", "rank 1 on .* failed with Boom: planted in phase 'launch 1' of some/point"),
        ("exit:1:launch 1", "rank 1 on .* exited with code 0 before it had finished in phase 'launch 1'"),
        ("stall:1:launch 1", "rank 1 on .* made no progress in phase 'launch 1' of some/point"),
        ("stop:2:launch 1", "rank 2 on .* made no progress in phase 'launch 1' of some/point"),
    ],
)
def test_a_fault_at_work_is_named(
    fault: str, said: str, job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    lines, error = run_with(fault, job, faulty_worker, monkeypatch)
    assert type(error) is HangError
    assert re.search(said, str(error)), error
    assert "--resume" in (error.hint or "")
    assert lines == ["launch 0"]


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (
            "exit:1:start",
            EnvironmentProblem,
            "rank 1 on .* exited with code 0 before it had finished in phase 'start'",
        ),
        ("exit:0:mpi_init", EnvironmentProblem, "rank 0 on .* exited with code 0 .* in phase 'mpi_init'"),
        ("kill:1:mpi_init", HangError, "rank 1 on .* was killed by SIGKILL in phase 'mpi_init'"),
        ("raise:2:start", HangError, "rank 2 on .* failed with Boom: planted in phase 'start'"),
    ],
)
def test_a_fault_before_mpi_is_up_is_named(
    fault: str, kind: type, said: str, job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    lines, error = run_with(fault, job, faulty_worker, monkeypatch)
    assert type(error) is kind
    assert re.search(said, str(error)), error
    assert lines == []


def test_ranks_that_wait_in_mpi_init_for_one_that_is_stuck_end(
    job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKBENCH_TEST_INIT_DEADLINE_S", "2")
    _, error = run_with("stall:1:start", job, faulty_worker, monkeypatch)
    assert type(error) is EnvironmentProblem
    assert "MPI_Init" in str(error)


def test_a_listener_that_leaves_ends_the_job(
    job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKBENCH_TEST_FAULT", "stall:1:launch 1")
    monkeypatch.setenv("MKBENCH_TEST_STAND_IN", "1")
    lines = lines_of(job, faulty_worker)
    assert next(lines) == "launch 0"
    assert len(processes.marked(str(job.path))) == 7
    lines.close()  # type: ignore[attr-defined]
    assert processes.marked(str(job.path)) == []


def test_mpiexec_that_is_killed_takes_its_ranks_along(
    job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKBENCH_TEST_FAULT", "stall:1:launch 1")
    monkeypatch.setenv("MKBENCH_TEST_STAND_IN", "1")
    launched = Launched(find_mpiexec(), 3, job.path, job.stderr, faulty_worker)
    lines = follow(launched, job.heartbeats, 3)
    assert next(lines) == "launch 0"
    processes.send(launched.pid, signal.SIGKILL)
    with pytest.raises((HangError, EnvironmentProblem)):
        list(lines)
    assert processes.marked(str(job.path)) == []


def test_a_parent_that_is_killed_leaves_no_rank_behind(
    job: JobDirectory, faulty_worker: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MKBENCH_TEST_FAULT", "stall:1:launch 1")
    monkeypatch.setenv("MKBENCH_TEST_STAND_IN", "1")
    command = [sys.executable, "-c", PARENT, str(job.path), faulty_worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "launch 0\n"
        parent.kill()
    deadline = monotonic() + PROMISE_S
    while processes.marked(str(job.path)) and monotonic() < deadline:
        pass
    assert processes.marked(str(job.path)) == []


PARENT = """
import sys
from pathlib import Path
from mkbench.dist.job import JobDirectory
from mkbench.dist.launcher import Launched, find_mpiexec
from mkbench.dist.watchdog import follow
job = JobDirectory(Path(sys.argv[1]))
for line in follow(Launched(find_mpiexec(), 3, job.path, job.stderr, sys.argv[2]), job.heartbeats, 3):
    print(line, flush=True)
"""


def test_a_worker_that_cannot_be_imported_is_a_problem_of_the_environment(job: JobDirectory):
    with pytest.raises(EnvironmentProblem, match=r"before rank 0 had started: .*no_such_worker"):
        list(lines_of(job, "no_such_worker"))


def test_the_job_directory_is_removed():
    with job_directory() as job:
        assert job.heartbeats.is_dir()
    assert not Path(job.path).exists()
