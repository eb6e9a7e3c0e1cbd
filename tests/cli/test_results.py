"""What reads a run directory: figures and export; and the catalogue."""

import csv
from pathlib import Path

import pandas as pd
import pytest

SWEEP = ("sweep", "gemm_ar", "--platform", "sim", "--sizes", "2048", "--comm-sms", "4,8,16")


@pytest.fixture
def run(fake, mkbench):
    assert mkbench(*SWEEP, "--out", "results/runs/mine").exit_code == 0
    return Path("results/runs/mine")


def test_sweep_draws_what_it_can_and_says_what_not(fake, mkbench):
    lines = mkbench(*SWEEP, "--out", "out").stdout.splitlines()
    assert "fig3      out/figures/fig3.png" in lines
    assert Path("out/figures/fig3.png").stat().st_size > 1000
    assert any(line.startswith("fig7      ") for line in lines)


def test_figures_of_the_newest_run(run, mkbench):
    result = mkbench("figures", "fig3", "--out", "pictures")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "pictures/fig3.png\n"
    assert {path.suffix for path in Path("pictures").iterdir()} == {".png", ".svg", ".csv", ".json"}


def test_export_csv(run, mkbench):
    result = mkbench("export", str(run))
    assert result.stdout == f"{run}/records.csv\n"
    rows = list(csv.DictReader((run / "records.csv").open()))
    assert [row["comm_sms"] for row in rows if row["policy"] == "static"] == ["4.0", "8.0", "16.0"]
    assert all(float(row["latency_us.median"]) > 0 for row in rows)


def test_export_parquet(run, mkbench):
    assert mkbench("export", str(run), "--format", "parquet", "-o", "mine.parquet").exit_code == 0
    assert len(pd.read_parquet("mine.parquet")) == 4


def test_list(mkbench):
    everything = mkbench("list").stdout
    for name in ("gemm_ar", "1x8-h100", "2x8-h200-efa", "h200", "adaptive", "sim", "tcp"):
        assert f"\n {name} " in everything
    clusters = mkbench("list", "clusters").stdout
    assert "1x8-h100" in clusters
    assert "gemm_ar" not in clusters
