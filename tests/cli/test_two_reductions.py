"""Sweeps of both ways to reduce keep them apart, in what they print and in what they draw."""

import json
from pathlib import Path

BOTH = (
    "sweep",
    "gemm_rs",
    "--platform",
    "sim",
    "--sizes",
    "2048",
    "--comm-sms",
    "4,8",
    "--reduction",
    "ordered,atomic",
)


def test_both_ways_have_lines_rows_and_pictures_of_their_own(fake, mkbench):
    result = mkbench(*BOTH, "--out", "out")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "6 points" in lines[0]
    assert [" ".join(line.split("] ")[1].split()[:3]) for line in lines[1:7]] == [
        *["gemm_rs 2048 static"] * 2,
        "gemm_rs 2048 adaptive:",
        *["gemm_rs atomic 2048"] * 3,
    ]
    rows = [line.split()[:4] for line in lines if line.startswith(" gemm_rs")]
    assert rows == [["gemm_rs", "2048", "8", rows[0][3]], ["gemm_rs", "atomic", "2048", "8"]]
    kept = [json.loads(line) for line in Path("out/records.jsonl").read_text().splitlines()]
    assert [record["reduction"] for record in kept] == ["ordered"] * 3 + ["atomic"] * 3
    assert len({record["key"] for record in kept}) == 6
    drawn = {path.name for path in Path("out/figures").glob("fig3*.png")}
    assert drawn == {"fig3-ordered.png", "fig3-atomic.png"}


def test_a_dry_run_shows_which_is_which(fake, mkbench):
    lines = mkbench(*BOTH, "--policy", "static", "--dry-run").stdout.splitlines()
    names = [line.split("2048")[0].strip() for line in lines if line.startswith(" gemm_rs")]
    assert names == ["gemm_rs"] * 2 + ["gemm_rs atomic"] * 2


def test_run_measures_one_way_and_says_it(fake, mkbench):
    run = ("run", "gemm_ar", "--platform", "sim", "--size", "2048", "--comm-sms", "8")
    assert "reduction" in mkbench(*run).stdout
    lines = mkbench(*run, "--reduction", "atomic").stdout.splitlines()
    assert ["reduction", "atomic"] in [line.split() for line in lines]
    both = mkbench(*run, "--reduction", "ordered,atomic")
    assert (both.exit_code, "and this is 2" in both.stderr) == (2, True)


def test_a_kernel_without_a_choice_is_refused_in_one_line(fake, mkbench):
    refused = mkbench("sweep", "ag_gemm", "--platform", "sim", "--reduction", "atomic")
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "it is for gemm_ar and gemm_rs" in refused.stderr
    assert not fake.measured


def test_list_says_that_atomic_is_not_reproducible(mkbench):
    words = mkbench("list", "reductions").stdout
    assert "ordered" in words
    assert "not reproducible" in words
