"""A plan and its results as tables. Simulated results say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from mkbench.cli.console import kernel_name, outcome, print_line, print_table, shape_name
from mkbench.core.pace import Pace
from mkbench.core.plan import Plan
from mkbench.core.selection import TIE, best_static
from mkbench.core.statistics import ratio_ci
from mkbench.core.units import format_bytes, format_tflops, format_us, plural

Record = Mapping[str, Any]

WHERE = {
    "sim": "simulated: virtual time of a model, nothing was measured",
    "host": "measured on this machine's CPU, not on GPUs",
    "cuda": "measured",
}

NUMBERS = (
    "best\ncomm\nSMs",
    "lowest\nstatic",
    "95 % CI",
    "adaptive",
    "adaptive\n/ lowest",
    "worst\n/ lowest",
    "lower\nbound",
    "network",
)


def plan_header(plan: Plan) -> str:
    """One line: what is measured and where, with "simulated" said plainly."""
    cluster, config = plan.cluster, plan.config
    count, nodes = plural(len(plan.points), "point"), plural(cluster.nodes, "node")
    return (
        f"{', '.join(config.kernels)}: {count} on {cluster.name} ({nodes} x {cluster.ranks_per_node} ranks "
        f"of {cluster.hardware.name}, {cluster.blocks} blocks each), {WHERE[config.platform]}"
        f"{_paced(Pace.of(config.pace) if config.pace else None)}"
    )


def print_plan(plan: Plan) -> None:
    """Every point of a plan with its lower bound."""
    print_line(plan_header(plan))
    print_table(
        ("kernel", "size", "shape", "policy", "comm SMs", "samples", "network", "lower bound"),
        [
            (
                kernel_name(point.kernel, point.reduction),
                str(point.size or ""),
                point.shape.label,
                point.policy,
                str(point.comm_sms) if point.comm_sms is not None else f"from {point.start_comm_sms}",
                str(point.samples),
                format_bytes(point.network_bytes) if point.network_bytes else "",
                _us(point.lower_bound_us),
            )
            for point in plan.points
        ],
        right=("size", "comm SMs", "samples", "network", "lower bound"),
    )


def print_results(records: Sequence[Record]) -> None:
    """One row a kernel, shape and reduction: the best static partition beside the adaptive policy."""
    rows = [_row(list(group)) for _, group in groupby(records, key=_series)]
    columns = ("kernel", "size", *NUMBERS)
    # A column that says nothing here, such as the network of one node, only takes room.
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    table = [[row[i] for i in kept] for row in rows]
    print_table([columns[i] for i in kept], table, right=("size", *NUMBERS))
    if "static" in {record["policy"] for record in records}:
        print_line(f"best: the fewest communication SMs within {TIE:.0%} of the lowest static latency")
    # Again, since the end of the output is what gets copied: the header is far above.
    print_line(f"{_measured(records[0])}{_not_verified(records)}")


def print_record(record: Record) -> None:
    """Everything about one point, one line a fact."""
    print_table(("what", "value"), list(_facts(record)))
    print_line(_measured(record))


def _measured(record: Record) -> str:
    pace = record["pace"]
    return WHERE[record["platform"]] + _paced(Pace(**pace) if pace else None)


def _paced(pace: Pace | None) -> str:
    return f", {pace.words}" if pace else ""


def _not_verified(records: Sequence[Record]) -> str:
    unchecked = sum(record["check"] is None and record["status"] == "ok" for record in records)
    return f"; results of {plural(unchecked, 'point')} not verified (data off)" if unchecked else ""


def _series(record: Record) -> tuple[str, str]:
    return kernel_name(record["kernel"], record.get("reduction")), shape_name(record)


def _row(records: list[Record]) -> tuple[str, ...]:
    first = records[0]
    static = {r["comm_sms"]: r for r in records if r["policy"] == "static" and r["status"] == "ok"}
    medians = {comm_sms: _median(record) for comm_sms, record in static.items()}
    best = static[best_static(medians)] if static else None
    lowest = min(static.values(), key=_median) if static else None
    adaptive = next((record for record in records if record["policy"] == "adaptive"), None)
    ratio = ""
    if lowest and adaptive and adaptive["latency_us"]:
        ratio = _ratio(adaptive, lowest)
    network = max(record["network_bytes"] for record in records)
    return (
        *_series(first),
        str(best["comm_sms"]) if best else "",
        format_us(_median(lowest)) if lowest else "",
        _interval(lowest) if lowest else "",
        _brief(adaptive) if adaptive else "",
        ratio,
        f"{max(medians.values()) / _median(lowest):.2f}" if lowest else "",
        "" if first["lower_bound_us"] is None else format_us(first["lower_bound_us"]),
        format_bytes(network) if network else "",
    )


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    yield "status", record["status"]
    if record["message"]:
        yield "message", record["message"]
    latency = record["latency_us"]
    if latency:
        spread = f"95 % CI: {_interval(record)}, n = {latency['n']}" if latency["n"] > 1 else "n = 1"
        yield "latency", f"{outcome(record)}, {spread}"
        yield "stopped after", record["stop"]
        yield "throughput", f"{format_tflops(record['tflops_per_gpu'])} a rank"
    if record["lower_bound_us"] is not None:
        yield "lower bound", format_us(record["lower_bound_us"])
    roles = record["partition"].items()
    start = "at the start: " if record["policy"] == "adaptive" else ""
    yield "partition", start + ", ".join(f"{plural(blocks, 'block')} {role}" for role, blocks in roles)
    if record.get("reduction"):
        yield "reduction", record["reduction"]
    commands = plural(record["commands"], "proxy command")
    yield "network", f"{format_bytes(record['network_bytes'])} in {commands}"
    if record["nodes"] > 1 and record["platform"] == "cuda":
        yield "network memory", record["network_memory"]
    check = record["check"]
    if check is None:
        yield "check", "not verified"
    elif check["mismatches"]:
        yield "check", f"{check['mismatches']} of {check['elements']} elements are wrong"
        yield "first wrong", check["first"]
    else:
        yield "check", f"all {check['elements']} elements are right, on {plural(record['ranks'], 'rank')}"


def _ratio(record: Record, base: Record) -> str:
    ratio = f"{_median(record) / _median(base):.3f}"
    if max(record["latency_us"]["n"], base["latency_us"]["n"]) == 1:
        return ratio
    low, high = ratio_ci(record["samples_us"], base["samples_us"])
    return f"{ratio} ({low:.3f} to {high:.3f})"


def _brief(record: Record) -> str:
    return format_us(_median(record)) if record["latency_us"] else str(record["status"])


def _median(record: Record) -> float:
    return float(record["latency_us"]["median"])


def _us(value: float | None) -> str:
    return "unknown" if value is None else format_us(value)


def _interval(record: Record) -> str:
    latency = record["latency_us"]
    if latency["n"] == 1:
        # Not "exact", on the simulator either: another seed spreads the costs in another way.
        return "n = 1"
    return f"{format_us(latency['ci_low'])} to {format_us(latency['ci_high'])}"
