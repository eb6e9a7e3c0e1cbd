"""Records of one or more run directories as one pandas table, a row a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mkbench.core.errors import UsageError
from mkbench.core.pace import Pace
from mkbench.core.store import RunDirectory

#: Two records with the same values here were taken on one machine in one way and may share a picture.
MACHINE = (
    "cluster", "nodes", "ranks_per_node", "platform", "transport", "network_memory", "pace", "reduction",
)  # fmt: skip

#: Copied from a record as they are; absent ones become null.
PLAIN = (
    "key", "kernel", "size", "policy", "comm_sms", "status", "blocks", *MACHINE, "source_hash", "schema",
    "hardware", "ranks_per_gpu", "lower_bound_us",
)  # fmt: skip

WHOLE_NUMBERS = ("size", "comm_sms", "blocks", "nodes", "ranks_per_node", "ranks_per_gpu", "n", "schema")
MEASURED = ("lower_bound_us", "latency_us", "ci_low_us", "ci_high_us")


def load_frame(run_dirs: Sequence[Path]) -> pd.DataFrame:
    """Read the records of all `run_dirs`; the column ``source`` names the file that a row came from.

    Raises UsageError when a directory is not a run directory or when there is no record at all.
    """
    names = [path.resolve().name for path in run_dirs]
    frames = [
        to_frame(RunDirectory.open(path).records(), source=f"{name}/records.jsonl")
        for path, name in zip(run_dirs, names, strict=True)
    ]
    filled = [frame for frame in frames if not frame.empty]
    if not filled:
        raise UsageError(f"no records in {', '.join(names)}", hint="measure first with mkbench sweep")
    return pd.concat(filled, ignore_index=True)


def to_frame(records: Iterable[Mapping[str, Any]], *, source: str = "records.jsonl") -> pd.DataFrame:
    """One row a record.

    Latencies are in microseconds: ``latency_us`` is the median, ``ci_low_us`` and ``ci_high_us`` bound its
    confidence interval, ``n`` is the number of samples; all null unless the status is ok. ``reason`` says why
    a point failed. ``shape`` and ``controller`` hold the record's objects; ``pace`` is text, as in --pace.
    """
    rows = [_row(record, source) for record in records]
    df = pd.DataFrame(rows, columns=list(_row({}, source)))
    types = dict.fromkeys(WHOLE_NUMBERS, "Int64") | dict.fromkeys(MEASURED, "float64")
    return df.astype({**types, "simulated": "bool", "verified": "bool", "faulted": "bool"})


def _row(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    ok = record.get("status") == "ok"
    latency = (record.get("latency_us") or {}) if ok else {}
    return {
        **{name: record.get(name) for name in PLAIN},
        # Records from before these fields were taken without either.
        "network_memory": record.get("network_memory", "host"),
        # Kernels that sum nothing share a picture with those that do as usual.
        "reduction": record.get("reduction") or "ordered",
        "pace": Pace(**record["pace"]).label if record.get("pace") else None,
        "shape": record.get("shape"),
        "simulated": bool(record.get("simulated")),
        "latency_us": latency.get("median"),
        "ci_low_us": latency.get("ci_low"),
        "ci_high_us": latency.get("ci_high"),
        "n": latency.get("n"),
        "reason": None if ok else record.get("message") or record.get("status"),
        "verified": record.get("check") is not None,
        "faulted": bool(record.get("faults")),
        "controller": record.get("controller"),
        "source": source,
    }


def rows_of(df: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of `df` as dicts by column name."""
    return [{str(name): value for name, value in row.items()} for row in df.to_dict("records")]


def refuse_mixture(df: pd.DataFrame) -> None:
    """Raise UsageError if simulated and measured records are together: a reader could not tell them apart."""
    if df["simulated"].nunique() < 2:
        return
    held = {}
    for kind, rows in (("simulated", df[df["simulated"]]), ("measured", df[~df["simulated"]])):
        counts = rows["source"].value_counts().sort_index()
        held[kind] = ", ".join(f"{source} ({count} records)" for source, count in counts.items())
    raise UsageError(
        "simulated and measured records cannot share a picture: "
        f"simulated in {held['simulated']}; measured in {held['measured']}",
        hint="draw each kind from its own run directory",
    )


def by_machine(df: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split `df` into one table a machine: (suffix for file names, rows).

    The suffix names only what differs, and is empty when there is one machine.
    """
    differing = [name for name in MACHINE if df[name].nunique(dropna=False) > 1]
    if not differing:
        return [("", df)]
    parts = []
    for _, rows in df.groupby(differing, sort=True, dropna=False):
        first = rows.iloc[0]
        parts.append(("-" + "-".join(_word(name, first[name]) for name in differing), rows))
    return parts


def _word(name: str, value: Any) -> str:
    """`value` as a part of a file name."""
    if name == "pace":
        return "unpaced" if pd.isna(value) else "paced-" + value.replace("=", "").replace(",", "-")
    return f"{name}{value}" if name in (*WHOLE_NUMBERS, "network_memory") else str(value)
