"""What an abort record says, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: AbortRecord.set: a wait of this rank passed its deadline; or another rank or the proxy gave up first.
DEADLINE = 1
#: AbortRecord.flag of a wait for a free slot in a command ring.
QUEUE_FULL = 0xFFFF

AbortFields = Mapping[str, int]


def culprit(records: Sequence[AbortFields | None]) -> AbortFields | None:
    """The record to report, out of one per rank: the lowest rank whose own wait passed its deadline, else
    any.
    """
    aborted = [record for record in records if record is not None]
    return next((r for r in aborted if r["set"] == DEADLINE), aborted[0] if aborted else None)


def describe(record: AbortFields, roles: Sequence[str], flags: Sequence[str]) -> str:
    """E.g. "rank 1 block 3 role receive waits for flag arrived[5]: expected 2:1, seen 1:1" (epoch:count)."""
    if record["set"] != DEADLINE:
        return f"rank {record['rank']} was told to give up by its proxy or by another rank"
    who = f"rank {record['rank']} block {record['block']} role {_name(roles, record['role'])}"
    if record["flag"] == QUEUE_FULL:
        what = f"a free slot in command ring {record['index']}"
        return f"{who} waits for {what}: expected {record['expected']} commands taken, seen {record['seen']}"
    flag = f"flag {_name(flags, record['flag'])}[{record['index']}]"
    return f"{who} waits for {flag}: expected {_epoch(record['expected'])}, seen {_epoch(record['seen'])}"


def _epoch(word: int) -> str:
    return f"{word >> 32}:{word & 0xFFFFFFFF}"


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)
