"""Records with the shape of a real sweep, from a plain formula: every expected number can be worked out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

Record = dict[str, Any]

BLOCKS = 132
PEAK_GFLOP_A_US = 0.8  # one GPU
COMM_GB_A_US_PER_SM = 0.04e-3


def latency_us(size: int, comm_sms: int, ranks: int = 8) -> float:
    """Compute and communication overlap; whichever has too few SMs is what the launch waits for."""
    compute = 2e-9 * size * size * max(size // ranks, 1) / (PEAK_GFLOP_A_US * (BLOCKS - comm_sms) / BLOCKS)
    communication = 4e-9 * size * size / (COMM_GB_A_US_PER_SM * comm_sms)
    p = 6.0  # a soft maximum: real curves bend, they have no corner
    return 9.0 + (compute**p + communication**p) ** (1 / p)


def record(
    size: int = 2048,
    comm_sms: int | None = 16,
    *,
    latency: float | None = None,
    kernel: str = "gemm_ar",
    policy: str = "static",
    status: str = "ok",
    platform: str = "sim",
    cluster: str = "1x8-h100",
    n: int = 1,
    suffix: str = "",
    message: str | None = None,
    controller: Mapping[str, list[float]] | None = None,
    checked: bool = True,
    faults: Iterable[str] = (),
) -> Record:
    median = latency if latency is not None else latency_us(size, comm_sms or 16)
    spread = 0.02 * median if n > 1 else 0.0
    latency_us_of = {"median": median, "ci_low": median - spread, "ci_high": median + spread, "n": n}
    shape = {"k": max(size // 8, 1), "m": size, "n": size}  # sorted, as records are
    who = f"c{comm_sms}" if policy == "static" else "auto"
    return {
        "schema": 1,
        "key": f"{kernel}/m{size}n{size}k{shape['k']}/{platform}/{cluster}/{policy}/{who}/seed7{suffix}",
        "kernel": kernel,
        "source_hash": "0123456789ab",
        "shape": shape,
        "size": size,
        "platform": platform,
        "simulated": platform == "sim",
        "cluster": cluster,
        "nodes": 1,
        "ranks": 8,
        "ranks_per_node": 8,
        "blocks": BLOCKS,
        "transport": "sim" if platform == "sim" else "shm",
        "policy": policy,
        "comm_sms": comm_sms if policy == "static" else None,
        "start_comm_sms": comm_sms or 16,
        "status": status,
        "message": message,
        "latency_us": latency_us_of if status == "ok" else None,
        "lower_bound_us": median / 2,
        "check": {"elements": size * size, "mismatches": 0, "first": None} if checked else None,
        "controller": dict(controller) if controller else None,
        "seed": 7,
        "faults": list(faults),
        "meta": {"host": "example"},
    }  # fmt: skip


def history(latency: float, best: int, start: int = 16, samples: int = 120) -> dict[str, list[float]]:
    """A controller that starts at `start`, overshoots a little and settles at `best`."""
    t = [latency * i / (samples - 1) for i in range(samples)]
    target = [round(best + (start - best) * math.exp(-i / 12) * math.cos(i / 7)) for i in range(samples)]
    blocks = [start] * 3 + target[:-3]
    compute = [min(1.0, 1.06 * i / (samples - 1)) for i in range(samples)]
    communication = [max(0.0, min(1.0, (i - 4) / (samples - 5))) for i in range(samples)]
    return {
        "t_us": t,
        "target": [float(v) for v in target],
        "communication_blocks": [float(v) for v in blocks],
        "compute_blocks": [float(BLOCKS - v) for v in blocks],
        "compute_progress": compute,
        "communication_progress": communication,
    }


def adaptive(size: int = 2048, *, ratio: float = 1.02, **options: Any) -> Record:
    latency = ratio * min(latency_us(size, c) for c in range(2, 65, 2))
    options.setdefault("controller", history(latency, 16, start=40))
    return record(size, None, latency=latency, policy="adaptive", **options)


def sweep(
    sizes: Iterable[int] = (2048, 8192), comm_sms: Iterable[int] = range(4, 65, 4), **options: Any
) -> list[Record]:
    """Static records of every size and partition, then the adaptive one of each size."""
    partitions = list(comm_sms)
    return [
        entry
        for size in sizes
        for entry in (*(record(size, c, **options) for c in partitions), adaptive(size, **options))
    ]


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    return SimpleNamespace(
        record=record, adaptive=adaptive, sweep=sweep, history=history, latency_us=latency_us
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Callable[..., Path]:
    """Write records as a run directory; its plan and environment are empty, as no figure reads them."""

    def write(records: Iterable[Record], name: str = "run") -> Path:
        path = tmp_path / name
        path.mkdir()
        (path / "records.jsonl").write_text(
            "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in records)
        )
        (path / "plan.toml").write_text("")
        (path / "env.json").write_text("{}\n")
        return path

    return write
