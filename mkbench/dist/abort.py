"""What an abort record says, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: AbortRecord.set: a wait of this rank passed its deadline; another rank or the proxy gave up first.
DEADLINE = 1
ELSEWHERE = 2
#: AbortRecord.flag of a wait for a free slot in a command ring.
QUEUE_FULL = 0xFFFF
#: AbortRecord.flag of a wait for a link that is paced; expected and seen are times in ns.
PACED = 0xFFFE

AbortFields = Mapping[str, int]


def culprit(records: Sequence[AbortFields | None]) -> tuple[int, AbortFields] | None:
    """Rank and record to report, out of one record per rank or None.

    The lowest rank whose own wait passed its deadline, else the lowest that gave up at all.
    """
    aborted = [(rank, record) for rank, record in enumerate(records) if record is not None]
    by_deadline = [(rank, record) for rank, record in aborted if record["set"] == DEADLINE]
    return next(iter(by_deadline + aborted), None)


def describe(rank: int, record: AbortFields, roles: Sequence[str], flags: Sequence[str]) -> str:
    """E.g. "rank 1 block 3 role receive waits for flag arrived[5]: expected 2:1, seen 1:1" (epoch:count)."""
    if record["set"] != DEADLINE:
        # Who told it so filled in nothing else.
        return f"rank {rank} was told to give up by its proxy or by another rank"
    who = f"rank {rank} block {record['block']} role {_name(roles, record['role'])}"
    if record["flag"] == QUEUE_FULL:
        what = f"a free slot in command ring {record['index']}"
        return f"{who} waits for {what}: expected {record['expected']} commands taken, seen {record['seen']}"
    if record["flag"] == PACED:
        left_ms = (record["expected"] - record["seen"]) / 1e6
        return f"{who} waits for its paced NVLink port, which is taken for another {left_ms:.3g} ms"
    flag = f"flag {_name(flags, record['flag'])}[{record['index']}]"
    return f"{who} waits for {flag}: expected {_epoch(record['expected'])}, seen {_epoch(record['seen'])}"


def _epoch(word: int) -> str:
    return f"{word >> 32}:{word & 0xFFFFFFFF}"


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)
