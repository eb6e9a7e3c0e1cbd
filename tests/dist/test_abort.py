from __future__ import annotations

from mkbench.dist.abort import culprit, describe
from mkbench.dist.library import Launch
from mkbench.dist.point_run import Round

ROLES = ("none", "compute", "local", "send", "receive")
FLAGS = ("ready", "arrived", "credit", "finished")
WAIT = {
    "expected": 2 << 32 | 1,
    "seen": 1 << 32 | 1,
    "set": 1,
    "rank": 1,
    "block": 3,
    "role": 4,
    "flag": 1,
    "index": 5,
}
TOLD = WAIT | {"set": 2, "rank": 0}


def test_a_wait_is_described_by_who_waits_for_what():
    assert (
        describe(1, WAIT, ROLES, FLAGS)
        == "rank 1 block 3 role receive waits for flag arrived[5]: expected 2:1, seen 1:1"
    )


def test_a_rank_that_was_told_says_so():
    assert describe(5, TOLD, ROLES, FLAGS).startswith("rank 5 was told to give up")


def test_a_full_ring_is_no_flag():
    said = describe(1, WAIT | {"flag": 0xFFFF, "index": 2, "expected": 65, "seen": 1}, ROLES, FLAGS)
    assert said.endswith("waits for a free slot in command ring 2: expected 65 commands taken, seen 1")


def test_a_paced_port_is_no_flag():
    said = describe(1, WAIT | {"flag": 0xFFFE, "expected": 90_000_000, "seen": 50_000_000}, ROLES, FLAGS)
    assert said.endswith("waits for its paced NVLink port, which is taken for another 40 ms")


def test_numbers_without_a_name_are_shown_as_they_are():
    assert "role 9 waits for flag 8[5]" in describe(1, WAIT | {"role": 9, "flag": 8}, ROLES, FLAGS)


def test_the_first_rank_whose_own_wait_ended_is_the_culprit():
    assert culprit([None, TOLD, WAIT, WAIT | {"rank": 2}]) == (2, WAIT)
    assert culprit([None, TOLD, TOLD]) == (1, TOLD)
    assert culprit([None, None]) is None


class Names:
    roles = ROLES

    class layout:
        flags = FLAGS


def test_a_proxy_that_failed_is_named_before_the_wait_that_it_caused():
    round_ = Round([Launch(0, 10, None), Launch(2000, 9000, dict(WAIT))], [None, "peer node 0: it left"])
    assert round_.has_hung
    assert round_.why(Names).startswith("rank 1: peer node 0: it left; rank 1 block 3")  # type: ignore[arg-type]


def test_the_slowest_rank_and_the_skew():
    round_ = Round([Launch(1000, 4000, None), Launch(2500, 7500, None)], [None, None])
    assert (round_.slowest_us, round_.skew_us, round_.has_hung) == (5.0, 1.5, False)
