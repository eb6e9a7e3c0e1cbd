import json
import subprocess
import sys

import matplotlib
import pandas as pd
import pytest

from mkbench import __version__
from mkbench.core.errors import UsageError
from mkbench.figures import FIGURES, figure_module
from mkbench.figures.render import render_figures

SUFFIXES = (".png", ".svg", ".csv", ".json")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_four_files_a_figure_and_the_pngs_are_returned(make, run_dir):
    run = run_dir(make.sweep())
    assert render_figures(run) == [run / "figures" / "fig3.png", run / "figures" / "fig7.png"]
    assert set(contents(run / "figures")) == {f"{name}{suffix}" for name in FIGURES for suffix in SUFFIXES}


def test_the_same_records_give_the_same_bytes(make, run_dir, tmp_path):
    run = run_dir(make.sweep(n=3))
    render_figures(run, out=tmp_path / "first")
    # What is set in the process, as a matplotlibrc would, must not leak into the picture.
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "green", "svg.hashsalt": None}):
        render_figures(run, out=tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_other_records_give_other_pictures(make, run_dir):
    one, two = run_dir(make.sweep(), "one"), run_dir(make.sweep(comm_sms=range(4, 49, 4)), "two")
    pictures = [render_figures(run, ["fig3"])[0].read_bytes() for run in (one, two)]
    assert pictures[0] != pictures[1]


def test_neither_date_nor_machine_is_in_the_files(make, run_dir):
    run = run_dir(make.sweep())
    render_figures(run)
    for name, content in contents(run / "figures").items():
        assert str(run).encode() not in content, name
        assert b"dc:date" not in content, name
        assert b"tEXtSoftware" not in content, name


def test_provenance(make, run_dir):
    run = run_dir(make.sweep(sizes=(2048,), comm_sms=(8, 16)))
    render_figures(run, ["fig3"])
    said = json.loads((run / "figures" / "fig3.json").read_text())
    drawn = pd.read_csv(run / "figures" / "fig3.csv")
    assert said["keys"] == sorted(drawn["key"])
    assert len(said["keys"]) == 3
    expected = {
        "figure": "fig3", "runs": ["run"], "mkbench": __version__, "schema": [1], "cluster": "1x8-h100",
        "platform": "sim", "simulated": True, "source_hash": {"gemm_ar": ["0123456789ab"]},
    }  # fmt: skip
    assert {name: said[name] for name in expected} == expected


def test_simulated_beside_measured_is_refused_with_nothing_written(make, run_dir):
    run = run_dir([*make.sweep(), *make.sweep(platform="host")])
    with pytest.raises(UsageError, match="cannot share a picture"):
        render_figures(run)
    assert not (run / "figures").exists()


def test_every_machine_has_its_own_picture(make, run_dir):
    one, two = run_dir(make.sweep(), "one"), run_dir(make.sweep(cluster="1x8-h200"), "two")
    pngs = render_figures([one, two], ["fig3"])
    assert [png.name for png in pngs] == ["fig3-1x8-h100.png", "fig3-1x8-h200.png"]
    for png, cluster in zip(pngs, ("1x8-h100", "1x8-h200"), strict=True):
        assert set(pd.read_csv(png.with_suffix(".csv"))["cluster"]) == {cluster}


def test_a_figure_without_records_is_refused_before_anything_is_written(make, run_dir):
    run = run_dir([make.record()])
    with pytest.raises(UsageError, match=r"^fig7 needs [^\n]+$"):
        render_figures(run, ["fig3", "fig7"])
    assert not (run / "figures").exists()


def test_an_unknown_figure_suggests_the_near_name():
    with pytest.raises(UsageError, match="fig3"):
        figure_module("figg3")


def test_the_names_cost_no_drawing_library():
    code = "import sys, mkbench.figures; print(sorted({'matplotlib', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_drawing_leaves_pyplot_alone():
    code = (
        "import sys, mkbench.figures.render, mkbench.figures.fig3; print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
