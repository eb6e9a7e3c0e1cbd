import json
from pathlib import Path

from mkbench.core.measurement import Check, Measurement

RUN = ("run", "gemm_ar", "--platform", "sim")


def test_checks_every_element_and_keeps_nothing(fake, mkbench):
    result = mkbench(*RUN, "--size", "512", "--comm-sms", "8")
    assert result.exit_code == 0, result.stderr
    assert "all 262144 elements are right" in result.stdout
    assert "simulated" in result.stdout
    assert not list(Path().iterdir())


def test_the_facts_hold_pace_and_network_memory(fake, mkbench):
    where = ("--platform", "cuda", "--cluster", "1x4-h200-virtual", "--nodes", "2", "--ranks-per-node", "2")
    asked = ("--pace", "network=50", "--network-memory", "host")
    result = mkbench("run", "gemm_ar", *where, *asked, "--comm-sms", "8")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert ["network", "memory", "host"] in [line.split() for line in lines]
    assert lines[-1] == "measured, paced to 50 GB/s of network a GPU"


def test_out_keeps_the_record(fake, mkbench):
    mkbench(*RUN, "--comm-sms", "8", "--out", "out")
    record = json.loads((Path("out") / "records.jsonl").read_text())
    assert (record["policy"], record["comm_sms"], record["size"]) == ("static", 8, 512)


def test_adaptive_starts_with_the_communication_sms_that_are_given(fake, mkbench):
    mkbench(*RUN, "--policy", "adaptive", "--comm-sms", "100", "--out", "out")
    record = json.loads((Path("out") / "records.jsonl").read_text())
    assert (record["policy"], record["comm_sms"], record["start_comm_sms"]) == ("adaptive", None, 100)


def test_without_communication_sms_the_controller_chooses(fake, mkbench):
    mkbench(*RUN, "--shape", "m=300,n=520,k=64", "--out", "out")
    record = json.loads((Path("out") / "records.jsonl").read_text())
    assert (record["policy"], record["shape"]) == ("adaptive", {"m": 300, "n": 520, "k": 64})


def test_a_wrong_element_is_named_and_its_time_is_not_shown(fake, mkbench):
    first = "rank 1 row 3 column 77: expected 12.0, got nan"
    fake.behave = lambda point: Measurement("wrong", samples_us=(1.0,), check=Check(262144, 9, first))
    result = mkbench(*RUN)
    assert result.exit_code == 5
    assert first in result.stderr
    assert "9 of 262144 elements are wrong" in result.stdout
    assert "latency" not in result.stdout


def test_a_hang_says_who_waits(fake, mkbench):
    fake.behave = lambda point: Measurement("hang", message="rank 3 block 7 waits for flag ready")
    result = mkbench(*RUN)
    assert result.exit_code == 4
    assert "rank 3 block 7 waits for flag ready" in result.stderr


def test_the_report_of_a_failed_run_is_where_the_hint_says(fake, mkbench):
    fake.behave = lambda point: Measurement("hang", message="rank 3 waits")
    assert "with --out" in mkbench(*RUN).stderr
    assert "the record holds the whole report" in mkbench(*RUN, "--out", "out").stderr


def test_what_was_simulated_is_said_last_too(fake, mkbench):
    assert mkbench(*RUN).stdout.splitlines()[-1].startswith("simulated: ")


def test_where_the_controller_started_is_not_taken_for_the_whole_launch(fake, mkbench):
    assert "at the start: " in mkbench(*RUN, "--policy", "adaptive").stdout
    assert "at the start: " not in mkbench(*RUN, "--comm-sms", "1").stdout
    assert " 1 block communication" in mkbench(*RUN, "--comm-sms", "1").stdout


def test_an_extent_may_be_zero_where_the_kernel_has_one(fake, mkbench):
    fake.behave = lambda point: Measurement("ok", samples_us=(1e6,))
    result = mkbench("run", "ring_attention", "--platform", "sim", "--shape", "s=4K,causal=0", "--out", "out")
    assert result.exit_code == 0, result.stderr
    record = json.loads((Path("out") / "records.jsonl").read_text())
    assert record["shape"] == {"b": 4, "h": 16, "g": 16, "s": 4096, "d": 128, "causal": 0}
    assert mkbench(*RUN, "--shape", "m=0,n=1,k=1").exit_code == 2
