from pathlib import Path

import pandas as pd
import pytest

from mkbench.core.errors import UsageError
from mkbench.figures.frame import by_machine, load_frame, refuse_mixture, to_frame


def test_a_row_has_the_median_and_its_interval(make):
    row = to_frame([make.record(latency=50.0, n=5)]).iloc[0]
    assert (row["latency_us"], row["ci_low_us"], row["ci_high_us"], row["n"]) == (50.0, 49.0, 51.0, 5)
    assert row["reason"] is None


def test_only_an_ok_record_has_a_latency(make):
    wrong = make.record(status="wrong", message="rank 1 row 3") | {"latency_us": {"median": 5.0, "n": 1}}
    row = to_frame([wrong]).iloc[0]
    assert pd.isna(row["latency_us"])
    assert row["reason"] == "rank 1 row 3"


def test_a_failure_without_a_message_gives_its_status_as_the_reason(make):
    assert to_frame([make.record(status="oom")])["reason"].tolist() == ["oom"]


def test_data_off_is_not_verified(make):
    assert to_frame([make.record(), make.record(checked=False)])["verified"].tolist() == [True, False]


def test_no_record_is_refused_in_one_line(run_dir):
    with pytest.raises(UsageError, match=r"^no records in run$"):
        load_frame([run_dir([])])


def test_what_is_no_run_directory_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="is not a run directory"):
        load_frame([tmp_path])


def test_mixture_names_the_files_of_each_kind(make, run_dir):
    simulated = run_dir([make.record()], "first")
    measured = run_dir([make.record(platform="host"), make.record(comm_sms=8, platform="host")], "second")
    with pytest.raises(UsageError) as caught:
        refuse_mixture(load_frame([simulated, measured]))
    assert "simulated in first/records.jsonl (1 records)" in str(caught.value)
    assert "measured in second/records.jsonl (2 records)" in str(caught.value)


def test_one_kind_is_no_mixture(make):
    refuse_mixture(to_frame([make.record(platform="host"), make.record(platform="cuda")]))


def test_machines_are_told_apart_by_what_differs(make):
    records = [make.record(), make.record(cluster="2x8-h200-ib") | {"nodes": 2}]
    parts = by_machine(to_frame(records))
    assert [suffix for suffix, _ in parts] == ["-1x8-h100-nodes1", "-2x8-h200-ib-nodes2"]
    assert [len(rows) for _, rows in parts] == [1, 1]


def test_paced_and_unpaced_records_share_no_picture(make):
    paced = make.record(platform="cuda") | {"pace": {"nvlink_gbps": 450.0, "network_gbps": None}}
    parts = by_machine(to_frame([make.record(platform="cuda") | {"pace": None}, paced]))
    assert sorted(suffix for suffix, _ in parts) == ["-paced-nvlink450", "-unpaced"]
    in_gpu = make.record(platform="cuda") | {"network_memory": "device"}
    parts = by_machine(to_frame([make.record(platform="cuda"), in_gpu]))
    assert [suffix for suffix, _ in parts] == ["-network_memorydevice", "-network_memoryhost"]


def test_records_from_before_a_setting_have_what_was_then(make):
    row = to_frame([make.record()]).iloc[0]
    assert row["network_memory"] == "host"
    assert pd.isna(row["pace"])


def test_one_machine_has_no_suffix(make):
    assert [suffix for suffix, _ in by_machine(to_frame(make.sweep()))] == [""]
