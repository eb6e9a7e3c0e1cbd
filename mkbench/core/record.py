"""The record of one point: one JSON object a line."""

from collections.abc import Mapping
from typing import Any

from mkbench.core.environment import digest
from mkbench.core.measurement import Measurement
from mkbench.core.partition import Partition
from mkbench.core.point import Point
from mkbench.core.statistics import summarise
from mkbench.core.units import plural

SCHEMA_VERSION = 1


def make_record(point: Point, measurement: Measurement, env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of `point` in the environment `env`; only `meta` may differ between equal runs.

    Times are kept of a right result only: a wrong or failed point has no latency.
    """
    ok = measurement.status == "ok"
    samples = list(measurement.samples_us) if ok else []
    latency = summarise(samples, point.seed) if samples else None
    check = measurement.check
    details = dict(measurement.details)
    return {
        "schema": SCHEMA_VERSION,
        "key": point.key,
        "kernel": point.kernel,
        "source_hash": measurement.source_hash,
        "shape": point.shape.to_json(),
        "size": point.size,
        "platform": point.platform,
        "simulated": point.platform == "sim",
        "cluster": point.cluster,
        "hardware": point.hardware,
        "nodes": point.nodes,
        "ranks": point.ranks,
        "ranks_per_node": point.ranks_per_node,
        "blocks": point.blocks,
        "ranks_per_gpu": point.ranks_per_gpu,
        "transport": point.transport,
        "network_memory": point.network_memory,
        "pace": point.pace.to_json() if point.pace else None,
        "policy": point.policy,
        "comm_sms": point.comm_sms,
        "start_comm_sms": point.start_comm_sms,
        "partition": measurement.partition or Partition.of(point.blocks, point.start_comm_sms).to_json(),
        "chunk_tiles": point.chunk_tiles,
        "reduction": point.reduction,
        "family": point.family,
        "faults": [fault.label for fault in point.faults],
        "status": measurement.status,
        "message": measurement.message,
        "latency_us": latency.to_json() if latency else None,
        "samples_us": samples,
        "tflops_per_gpu": point.flops_per_rank / latency.median / 1e6 if latency else None,
        "lower_bound_us": point.lower_bound_us,
        "network_bytes": measurement.network_bytes,
        "commands": measurement.commands,
        "check": {"elements": check.elements, "mismatches": check.mismatches, "first": check.first}
        if check
        else None,
        "controller": measurement.controller,
        "seed": point.seed,
        "stop": details.pop("stop", plural(len(samples), "sample") if samples else None),
        "env": digest(env),
        "details": details,
        "meta": measurement.meta,
    }
