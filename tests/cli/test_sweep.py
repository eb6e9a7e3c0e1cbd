import json
import os
import signal
from pathlib import Path

import pytest

from mkbench.core.measurement import Measurement
from mkbench.core.workloads import KERNELS

SWEEP = ("sweep", "gemm_ar", "--platform", "sim", "--sizes", "2048,4096", "--comm-sms", "4,8,16")


def records(path):
    return [json.loads(line) for line in (path / "records.jsonl").read_text().splitlines()]


def test_prints_a_header_a_line_a_point_a_table_and_paths(fake, mkbench):
    result = mkbench(*SWEEP, "--out", "out")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "8 points on 1x8-h100" in lines[0]
    assert "simulated" in lines[0]
    assert [line.split("]")[0] for line in lines[1:9]] == [f"[{i}/8" for i in range(1, 9)]
    row = next(line for line in lines if line.split()[:3] == ["gemm_ar", "2048", "8"])
    assert row.split()[-4:-2] == ["1.000", "2.33"]  # adaptive/best, then worst/best
    assert "records   out/records.jsonl" in lines
    assert len(records(Path("out"))) == 8


def test_without_a_kernel_all_are_swept_at_sizes_of_their_own(fake, mkbench):
    lines = mkbench("sweep", "--platform", "sim", "--policy", "adaptive", "--out", "out").stdout.splitlines()
    kernels = "ag_gemm, gemm_ar, gemm_rs, moe_dispatch_gemm, ring_attention"
    assert lines[0].startswith(f"{kernels}: 25 points on ")
    sizes = {name: [r["size"] for r in records(Path("out")) if r["kernel"] == name] for name in KERNELS}
    assert sizes == {name: list(kernel.sizes) for name, kernel in KERNELS.items()}
    resumed = mkbench("sweep", "--platform", "sim", "--policy", "adaptive", "--out", "out", "--resume")
    assert "25 of 25 points are there already" in resumed.stdout


def test_a_skew_has_rows_of_its_own(fake, mkbench):
    words = ("--platform", "sim", "--sizes", "4K", "--comm-sms", "8", "--skew", "0,0.5")
    lines = mkbench("sweep", "moe_dispatch_gemm", "gemm_ar", *words, "--out", "out").stdout.splitlines()
    rows = [line.split()[:4] for line in lines if line.startswith((" moe_dispatch_gemm", " gemm_ar"))]
    assert rows == [
        ["moe_dispatch_gemm", "4096", "8", rows[0][3]],
        ["moe_dispatch_gemm", "4096,", "skew", "0.5"],
        ["gemm_ar", "4096", "8", rows[2][3]],
    ]
    assert any(": moe_dispatch_gemm 4096, skew 0.5 static 8: " in f": {line[6:]}" for line in lines)
    plain = mkbench("sweep", "moe_dispatch_gemm", *words[:6], "--out", "plain")
    assert plain.exit_code == 0
    shared = {r["key"] for r in records(Path("plain"))} & {r["key"] for r in records(Path("out"))}
    assert len(shared) == 2  # without a skew the keys are as they were


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gemm_ar", "ag_gemm", "--skew", "1"), "nothing is routed in gemm_ar and ag_gemm"),
        (("--skew", "1,"), "'1,' holds what is no number"),
        (("--skew", "0.123"), "hundredths"),
        (("--skew", "1", "--config", "skewed.toml"), "both given"),
    ],
)
def test_a_skew_that_makes_no_sense_is_one_line(fake, mkbench, words, says):
    shape = "{t = 9, hidden = 8, inter = 8, experts = 4, topk = 1, skew = 1}"
    Path("skewed.toml").write_text(f'kernels = ["moe_dispatch_gemm"]\nshape = {shape}\n')
    result = mkbench("sweep", "--platform", "sim", *words)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert not fake.measured


def test_piped_output_has_no_escape_codes_and_no_padding(fake, mkbench):
    result = mkbench(*SWEEP)
    assert "\x1b" not in result.output
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip()]


def test_network_bytes_are_shown_only_where_there_are_some(fake, mkbench):
    assert " network" not in mkbench(*SWEEP).stdout
    result = mkbench(*SWEEP, "--cluster", "2x8-h200-ib")
    assert " network" in result.stdout
    assert "16.0 MiB" in result.stdout  # 2 x 128 tiles of 64 KiB for size 2048


def test_dry_run_shows_the_bound_of_every_point_and_writes_nothing(fake, mkbench):
    result = mkbench(*SWEEP, "--dry-run")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if line.startswith(" gemm_ar")]
    assert len(rows) == 8
    assert all(row.endswith(" us") for row in rows)
    assert not list(Path().iterdir())
    assert not fake.measured


def test_default_directory_is_under_results_runs(fake, mkbench):
    mkbench(*SWEEP)
    (run,) = Path("results/runs").iterdir()
    assert run.name.endswith("-1x8-h100")


@pytest.mark.parametrize(("status", "code"), [("wrong", 5), ("hang", 4), ("failed", 7)])
def test_a_failed_point_is_named_and_decides_the_exit_code(fake, mkbench, status, code):
    fake.behave = lambda point: Measurement(status, message="rank 3 said no") if point.comm_sms == 8 else None
    result = mkbench(*SWEEP, "--out", "out")
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert "rank 3 said no" in result.stderr
    assert len(records(Path("out"))) == 8


def test_no_result_at_all_is_a_problem_of_the_machine(fake, mkbench):
    fake.behave = lambda point: Measurement("build_failed", message="g++ refused")
    result = mkbench(*SWEEP)
    assert result.exit_code == 3
    assert "g++ refused" in result.stderr


def test_interrupt_keeps_the_records_and_says_how_to_resume(fake, mkbench, monkeypatch):
    def interrupt(point):
        if point.size == 4096:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["mkbench", *SWEEP])
    fake.behave = interrupt
    result = mkbench(*SWEEP)
    assert result.exit_code == 130
    (run,) = Path("results/runs").iterdir()
    assert len(records(run)) == 4
    assert "4 of 8 points are kept" in result.stderr
    assert f"continue with: mkbench {' '.join(SWEEP)} --out {run} --resume" in result.stderr

    fake.behave, fake.measured = lambda point: None, []
    result = mkbench(*SWEEP, "--resume")
    assert result.exit_code == 0
    assert len(fake.measured) == 4
    assert "4 of 8 points are there already" in result.stdout
    assert len(records(run)) == 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_ending_signal_is_an_interrupt(fake, mkbench, number):
    before = signal.getsignal(number)
    fake.behave = lambda point: os.kill(os.getpid(), number) if point.size == 4096 else None
    result = mkbench(*SWEEP, "--out", "out")
    assert result.exit_code == 130
    assert "4 of 8 points are kept in out" in result.stderr
    assert signal.getsignal(number) == before


def test_the_table_says_simulated_and_not_verified_below_it(fake, mkbench):
    lines = mkbench(*SWEEP, "--out", "out").stdout.splitlines()
    (below,) = (line for line in lines[1:] if line.startswith("simulated"))
    assert "best: the fewest communication SMs within 3% of the lowest static latency" in lines
    assert below.endswith("results of 8 points not verified (data off)")


def test_a_pace_is_said_above_and_below_and_recorded(fake, mkbench):
    where = ("--platform", "cuda", "--cluster", "1x4-h200-virtual", "--nodes", "2", "--ranks-per-node", "2")
    words = "measured, paced to 450 GB/s of NVLink and 50 GB/s of network a GPU"
    pace = ("--pace", "nvlink=450,network=50")
    lines = mkbench(*SWEEP, *where, *pace, "--out", "out").stdout.splitlines()
    assert lines[0].endswith(words)
    assert words in lines[1:]
    for record in records(Path("out")):
        assert record["pace"] == {"nvlink_gbps": 450.0, "network_gbps": 50.0}
        assert (record["transport"], record["network_memory"]) == ("tcp", "host")
    assert "out/figures/fig3.png" in "".join(lines)
    assert "pace" not in mkbench(*SWEEP, *where, "--dry-run").stdout
    refused = mkbench(*SWEEP, *where, "--out", "out", "--resume")
    assert (refused.exit_code, "pace is" in refused.stderr) == (2, True)
    assert mkbench(*SWEEP, *where, *pace, "--out", "out", "--resume").exit_code == 0


def test_a_ratio_of_noisy_latencies_has_its_interval(fake, mkbench):
    def noisy(point):
        return Measurement("ok", (50.0, 60.0, 70.0), network_bytes=point.network_bytes)

    fake.behave = noisy
    assert "1.000 (0.714 to 1.400)" in mkbench(*SWEEP, "--samples", "3").stdout


def test_one_sample_has_no_interval_and_is_not_called_exact(fake, mkbench):
    out = mkbench(*SWEEP).stdout
    assert "exact" not in out
    assert " n = 1  " in out


def test_a_directory_with_a_run_is_refused_without_resume(fake, mkbench):
    mkbench(*SWEEP, "--out", "out")
    before = (Path("out") / "records.jsonl").read_bytes()
    result = mkbench(*SWEEP, "--out", "out")
    assert result.exit_code == 2
    assert "--resume" in result.stderr
    result = mkbench(*SWEEP, "--out", "out", "--resume", "--seed", "8")
    assert result.exit_code == 2
    assert "seed" in result.stderr
    assert (Path("out") / "records.jsonl").read_bytes() == before


def test_settings_come_from_a_file_and_the_command_line_goes_first(fake, mkbench):
    Path("sweep.toml").write_text(
        'kernels = ["gemm_ar"]\nsizes = [2048]\ncomm_sms = [4, 8]\nplatform = "sim"\nseed = 3\n'
    )
    result = mkbench(
        "sweep", "--config", "sweep.toml", "--comm-sms", "16", "--policy", "static", "--out", "out"
    )
    assert result.exit_code == 0, result.stderr
    (record,) = records(Path("out"))
    assert (record["size"], record["comm_sms"], record["seed"]) == (2048, 16, 3)


def test_other_ranks_of_a_launcher_print_and_write_nothing(fake, mkbench, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    result = mkbench(*SWEEP)
    assert (result.exit_code, result.output) == (0, "")
    assert not list(Path().iterdir())
    assert mkbench(*SWEEP, "--cluster", "nowhere").output == ""
