from __future__ import annotations

import signal

import pytest

from mkbench.dist.heartbeat import FINISHED, Heartbeat
from mkbench.dist.supervisor import describe_ending


def beat(phase: str) -> Heartbeat:
    return Heartbeat(0, "h", 1, 1, phase, None, 0.0, 60.0)


def test_a_rank_that_finished_has_nothing_to_explain():
    assert describe_ending(0, beat(FINISHED)) == (None, 0)


@pytest.mark.parametrize(
    ("code", "phase", "message", "exit_code"),
    [
        (-signal.SIGKILL, "launch 1", "was killed by SIGKILL", 4),
        (-signal.SIGSEGV, FINISHED, "was killed by SIGSEGV", 4),
        (-signal.SIGALRM, "mpi_init", "was stuck in MPI_Init for 60 s", 3),
        (7, "verify", "exited with code 7 before it had finished", 4),
        (0, "verify", "exited with code 0 before it had finished", 4),
        (0, "start", "exited with code 0 before it had finished", 3),
    ],
)
def test_every_other_ending_is_noted_and_never_succeeds(code: int, phase: str, message: str, exit_code: int):
    assert describe_ending(code, beat(phase)) == (message, exit_code)


def test_a_rank_without_a_heartbeat():
    assert describe_ending(0, None) == ("exited with code 0 before it had finished", 3)
