import json
from collections.abc import Callable

import pytest

from mkbench.core.measurement import STATUSES, Check, Measurement
from mkbench.core.pace import Pace
from mkbench.core.plan import Point
from mkbench.core.record import SCHEMA_VERSION, make_record

MakePoint = Callable[..., Point]
ENV = {"mkbench": "0"}
FIELDS = {
    "schema",
    "key",
    "kernel",
    "source_hash",
    "shape",
    "size",
    "platform",
    "simulated",
    "cluster",
    "nodes",
    "ranks",
    "ranks_per_node",
    "blocks",
    "transport",
    "network_memory",
    "pace",
    "policy",
    "comm_sms",
    "start_comm_sms",
    "partition",
    "chunk_tiles",
    "status",
    "message",
    "latency_us",
    "samples_us",
    "tflops_per_gpu",
    "lower_bound_us",
    "network_bytes",
    "commands",
    "check",
    "controller",
    "seed",
    "stop",
    "env",
    "details",
    "meta",
}


def test_measurements_round_trip_through_json() -> None:
    measurement = Measurement(
        status="wrong",
        samples_us=(1.5, 2.5),
        check=Check(9, 1, "rank 1 row 3 column 77: expected 12.0, got nan"),
        network_bytes=7,
        commands=2,
        partition={"compute": 1},
        controller={"t_us": [0.0], "target": [4.0]},
        message="one element",
        details={"queue_full": 0},
        meta={"host": "here"},
    )
    assert Measurement.from_json(json.loads(json.dumps(measurement.to_json()))) == measurement
    bare = Measurement(status="failed")
    assert Measurement.from_json(json.loads(json.dumps(bare.to_json()))) == bare


def test_a_status_is_one_of_the_known() -> None:
    with pytest.raises(ValueError, match="status 'fine'"):
        Measurement(status="fine")


def test_a_good_record(make_point: MakePoint) -> None:
    point = make_point(flops_per_rank=4e9)
    record = make_record(
        point, Measurement("ok", (90.0, 100.0, 110.0), details={"stop": "enough", "x": 1}), ENV
    )
    assert record.keys() >= FIELDS
    assert record["schema"] == SCHEMA_VERSION
    assert record["latency_us"]["median"] == 100.0
    assert record["latency_us"]["n"] == 3
    assert record["tflops_per_gpu"] == pytest.approx(40.0)
    assert record["partition"] == {"compute": 124, "communication": 8}
    assert (record["stop"], record["details"]) == ("enough", {"x": 1})
    assert record["simulated"] is True
    assert record["check"] is None
    assert len(record["env"]) == 12
    json.dumps(record, allow_nan=False)


def test_a_record_says_the_pace_as_asked(make_point: MakePoint) -> None:
    measurement = Measurement("ok", (1.0,))
    record = make_record(make_point(), measurement, ENV)
    assert (record["network_memory"], record["pace"]) == ("host", None)
    point = make_point(network_memory="device", pace=Pace(450.0, None), ranks_per_gpu=4)
    record = make_record(point, measurement, ENV)
    assert record["network_memory"] == "device"
    assert record["pace"] == {"nvlink_gbps": 450.0, "network_gbps": None}


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "ok"])
def test_a_point_that_is_not_ok_has_no_timing(status: str, make_point: MakePoint) -> None:
    record = make_record(make_point(), Measurement(status, (5.0,)), ENV)
    assert record["status"] == status
    assert record["latency_us"] is record["tflops_per_gpu"] is record["stop"] is None
    assert record["samples_us"] == []


def test_equal_measurements_differ_in_meta_only(make_point: MakePoint) -> None:
    first, second = (
        make_record(make_point(), Measurement("ok", (5.0, 6.0), meta={"wall_s": wall}), ENV)
        for wall in (1, 2)
    )
    assert first != second
    assert {**first, "meta": None} == {**second, "meta": None}
