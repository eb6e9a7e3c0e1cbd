"""Verdicts from synthetic snapshots: no process and no clock is involved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mkbench.core.errors import EnvironmentProblem, HangError, UsageError
from mkbench.dist.heartbeat import FINISHED, Failure, Heartbeat
from mkbench.dist.watchdog import END_S, SETTLE_S, START_DEADLINE_S, Snapshot, Verdict, Watchdog

LAUNCH = Heartbeat(0, "h", 100, sequence=7, phase="launch 3", point="p", since=0.0, deadline_s=5.0)
DONE = replace(LAUNCH, sequence=9, phase=FINISHED, point=None)


def ranks(*beats: Heartbeat) -> dict[int, Heartbeat]:
    return {rank: replace(beat, rank=rank, pid=100 + rank) for rank, beat in enumerate(beats)}


def failed(kind: str, message: str, at: float, code: int = 4, time: float = 0.0) -> Heartbeat:
    return replace(LAUNCH, error=Failure(kind, message, code, at, time))


def observe(*moments: tuple[float, Snapshot], ranks: int = 3) -> Verdict | None:
    """The verdict at the last moment; there must be none before."""
    watchdog = Watchdog(ranks, started=0.0)
    for now, snapshot in moments[:-1]:
        assert watchdog.observe(now, snapshot) is None
    return watchdog.observe(*moments[-1])


def snapshot(beats: dict[int, Heartbeat], gone: Sequence[int] = (), exit_code: int | None = None) -> Snapshot:
    return Snapshot(beats, frozenset(gone), exit_code)


def settled(shot: Snapshot, ranks: int = 3) -> Verdict:
    verdict = observe((10.0, shot), (10.0 + SETTLE_S, shot), ranks=ranks)
    assert verdict is not None
    return verdict


def test_running_ranks_get_no_verdict():
    shot = snapshot(ranks(LAUNCH, LAUNCH, LAUNCH))
    assert observe((10.0, shot), (15.0, shot)) is None


def test_a_job_is_over_when_all_have_finished_and_mpiexec_ended():
    shot = snapshot(ranks(DONE, DONE, DONE), gone=[0, 1, 2], exit_code=0)
    watchdog = Watchdog(3, started=0.0)
    assert watchdog.observe(10.0, shot) is None
    assert watchdog.is_over(shot)
    assert not watchdog.is_over(replace(shot, exit_code=None))


def test_the_first_failure_is_named_and_not_its_victims():
    shot = snapshot(
        ranks(
            failed("ended", "was killed by SIGTERM", at=2.0),
            failed("ended", "was killed by SIGKILL", at=1.0),
            LAUNCH,
        ),
        gone=[0, 1, 2],
        exit_code=9,
    )
    verdict = settled(shot)
    assert verdict.rank == 1
    error = verdict.error()
    assert type(error) is HangError
    assert "rank 1 on h (pid 101) was killed by SIGKILL in phase 'launch 3' of p" in str(error)
    assert "dmesg" in (error.hint or "")


def test_a_crash_in_mpi_is_a_consequence_and_one_in_a_launch_is_not():
    crashed = failed("ended", "was killed by SIGSEGV", at=1.0)
    lost = failed("ended", "was killed by SIGKILL", at=1.1)
    in_mpi = replace(crashed, phase="gather 3")
    assert settled(snapshot(ranks(in_mpi, lost, LAUNCH))).rank == 1
    assert settled(snapshot(ranks(crashed, lost, LAUNCH))).rank == 0


def test_failures_of_hosts_are_ordered_by_the_time_of_day():
    victim = replace(failed("ended", "was killed by SIGSEGV", at=2.0, time=51.0), host="other")
    lost = failed("ended", "was killed by SIGKILL", at=1000.0, time=50.0)
    assert settled(snapshot(ranks(victim, lost, LAUNCH))).rank == 1


def test_a_lost_peer_is_a_consequence_even_when_it_is_noted_first():
    shot = snapshot(
        ranks(
            failed("PeerLost", "rank 2 closed", at=1.0),
            LAUNCH,
            failed("ended", "was killed by SIGKILL", at=1.1),
        )
    )
    assert settled(shot).rank == 2


def test_evidence_is_collected_before_the_verdict():
    early = snapshot(ranks(failed("PeerLost", "rank 2 closed", at=1.0), LAUNCH, LAUNCH))
    late = snapshot(
        ranks(failed("PeerLost", "rank 2 closed", at=1.0), LAUNCH, failed("ended", "died", at=1.1))
    )
    verdict = observe((10.0, early), (10.0 + SETTLE_S / 2, late), (10.0 + SETTLE_S, late))
    assert verdict is not None
    assert verdict.rank == 2


@pytest.mark.parametrize(
    ("code", "kind"), [(2, UsageError), (3, EnvironmentProblem), (4, HangError), (1, HangError)]
)
def test_a_ranks_exit_code_decides_the_kind_of_error(code: int, kind: type):
    shot = snapshot(ranks(LAUNCH, failed("ValueError", "boom", at=1.0, code=code), LAUNCH))
    error = settled(shot).error()
    assert type(error) is kind
    assert "rank 1" in str(error)
    assert "failed with ValueError: boom" in str(error)


def test_a_rank_that_knows_the_fix_says_so():
    failure = Failure("UsageError", "odd", 2, 1.0, 0.0, hint="use an even number")
    verdict = settled(snapshot(ranks(LAUNCH, replace(LAUNCH, error=failure), LAUNCH)))
    assert verdict.error().hint == "use an even number"


def test_a_rank_that_vanished_is_named():
    verdict = settled(snapshot(ranks(LAUNCH, replace(LAUNCH, sequence=6), LAUNCH), gone=[0, 1]))
    assert verdict.rank == 1
    assert "disappeared" in str(verdict.error())


def test_a_rank_that_finished_between_two_looks_did_not_vanish():
    torn = snapshot(ranks(DONE, LAUNCH, LAUNCH), gone=[0, 1])
    whole = snapshot(ranks(DONE, DONE, LAUNCH), gone=[0, 1])
    assert observe((10.0, torn), (10.1, whole), (14.0, whole), (14.1, torn)) is None


def test_the_overdue_rank_that_is_furthest_behind_is_named():
    shot = snapshot(
        ranks(
            replace(LAUNCH, sequence=8, phase="gather"),
            replace(LAUNCH, sequence=8, phase="gather"),
            LAUNCH,
        )
    )
    verdict = observe((10.0, shot), (14.9, shot), (15.1, shot))
    assert verdict is not None
    assert verdict.rank == 2
    assert "made no progress in phase 'launch 3' of p, which began 5.1 s before" in str(verdict.error())
    assert type(verdict.error()) is HangError


def test_a_rank_that_is_not_late_itself_is_named_if_the_late_ones_wait_for_it():
    waiting = replace(LAUNCH, sequence=8, phase="gather", deadline_s=1.0)
    shot = snapshot(ranks(waiting, waiting, replace(LAUNCH, deadline_s=100.0)))
    verdict = observe((10.0, shot), (11.1, shot))
    assert verdict is not None
    assert verdict.rank == 2


def test_progress_renews_the_deadline():
    before = snapshot(ranks(LAUNCH, LAUNCH, LAUNCH))
    after = snapshot(ranks(*[replace(LAUNCH, sequence=8)] * 3))
    assert observe((10.0, before), (14.0, after), (18.0, after)) is None


def test_a_finished_rank_is_never_overdue():
    shot = snapshot(ranks(DONE, replace(LAUNCH, deadline_s=1000.0), DONE))
    assert observe((10.0, shot), (500.0, shot)) is None


def test_a_rank_stuck_in_mpi_init_is_a_problem_of_the_environment():
    stuck = replace(LAUNCH, phase="mpi_init", point=None)
    verdict = observe(
        (10.0, snapshot(ranks(stuck, stuck, stuck))), (16.0, snapshot(ranks(stuck, stuck, stuck)))
    )
    assert verdict is not None
    assert type(verdict.error()) is EnvironmentProblem


def test_a_rank_that_never_starts_is_named():
    shot = snapshot(ranks(replace(LAUNCH, deadline_s=1000.0), replace(LAUNCH, deadline_s=1000.0)))
    verdict = observe((1.0, shot), (START_DEADLINE_S + 1.0, shot))
    assert verdict is not None
    assert verdict.rank == 2
    assert type(verdict.error()) is EnvironmentProblem


def test_mpiexec_that_fails_before_the_ranks_start_is_a_problem_of_the_environment():
    verdict = settled(snapshot({}, exit_code=255))
    assert type(verdict.error()) is EnvironmentProblem
    said = str(verdict.error("no route to host"))
    assert said == "mpiexec ended with code 255 before rank 0 had started: no route to host"


def test_mpiexec_that_outlives_its_ranks_is_a_hang():
    shot = snapshot(ranks(DONE, DONE, DONE), gone=[0, 1, 2])
    verdict = observe((10.0, shot), (10.0 + END_S, shot), (10.1 + END_S, shot))
    assert verdict is not None
    assert "mpiexec did not end" in str(verdict.error())


def test_a_clean_exit_of_mpiexec_is_not_enough():
    verdict = settled(snapshot(ranks(DONE, DONE, LAUNCH), gone=[0, 1, 2], exit_code=0))
    assert verdict.rank == 2
