from __future__ import annotations

from pathlib import Path

from mkbench.dist import heartbeat
from mkbench.dist.heartbeat import FINISHED, HeartbeatFile


def test_a_phase_change_is_visible_and_counted(tmp_path: Path):
    beats = HeartbeatFile(3, tmp_path)
    beats.enter("start", deadline_s=1.0)
    beats.enter("launch 0", deadline_s=2.0, point="p")
    (seen,) = heartbeat.read_all(tmp_path).values()
    assert seen == beats.state
    assert (seen.rank, seen.sequence, seen.phase, seen.point, seen.deadline_s) == (3, 2, "launch 0", "p", 2.0)


def test_ranks_come_in_numeric_order(tmp_path: Path):
    for rank in (10, 2, 0):
        HeartbeatFile(rank, tmp_path).enter("start", deadline_s=1.0)
    assert list(heartbeat.read_all(tmp_path)) == [0, 2, 10]


def test_a_failure_keeps_the_phase_it_happened_in(tmp_path: Path):
    beats = HeartbeatFile(0, tmp_path)
    beats.enter("verify", deadline_s=1.0)
    beats.fail(ValueError("boom"), 4)
    seen = heartbeat.read(tmp_path / "0.json")
    assert seen is not None
    assert seen.error is not None
    assert (seen.phase, seen.error.type, seen.error.message, seen.error.exit_code) == (
        "verify",
        "ValueError",
        "boom",
        4,
    )


def test_an_ending_is_noted_for_a_rank_that_said_nothing(tmp_path: Path):
    HeartbeatFile(0, tmp_path).enter("verify", deadline_s=1.0)
    heartbeat.record_ending(tmp_path, 0, "was killed", 4)
    seen = heartbeat.read(tmp_path / "0.json")
    assert seen is not None
    assert seen.error is not None
    assert seen.error.message == "was killed"


def test_an_ending_does_not_overwrite_the_ranks_own_words(tmp_path: Path):
    beats = HeartbeatFile(0, tmp_path)
    beats.enter("verify", deadline_s=1.0)
    beats.fail(ValueError("boom"), 4)
    heartbeat.record_ending(tmp_path, 0, "exited with 4", 4)
    assert heartbeat.read(tmp_path / "0.json") == beats.state


def test_a_rank_that_finished_cannot_fail_afterwards(tmp_path: Path):
    HeartbeatFile(0, tmp_path).enter(FINISHED, deadline_s=0.0)
    heartbeat.record_ending(tmp_path, 0, "was killed", 4)
    seen = heartbeat.read(tmp_path / "0.json")
    assert seen is not None
    assert seen.error is None


def test_no_scratch_file_is_left_or_read(tmp_path: Path):
    HeartbeatFile(0, tmp_path).enter("start", deadline_s=1.0)
    (tmp_path / "1.4711").write_text("{torn")
    assert list(heartbeat.read_all(tmp_path)) == [0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.4711"]


def test_without_a_watcher_nothing_is_written():
    beats = HeartbeatFile(0, None)
    beats.enter("verify", deadline_s=1.0)
    assert beats.state.phase == "verify"


def test_no_heartbeat_yet(tmp_path: Path):
    assert heartbeat.read(tmp_path / "0.json") is None
    heartbeat.record_ending(tmp_path, 0, "was killed", 4)
    assert heartbeat.read_all(tmp_path) == {}
