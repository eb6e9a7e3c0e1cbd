from pathlib import Path
from typing import Any

import pytest

from mkbench.core.config import SweepConfig, load_config
from mkbench.core.errors import UsageError
from mkbench.core.faults import Fault, parse_fault
from mkbench.core.workloads import KERNELS


def write(path: Path, text: str) -> Path:
    file = path / "mine.toml"
    file.write_text(text)
    return file


def test_defaults_then_file_then_command_line(tmp_path: Path) -> None:
    file = write(tmp_path, 'seed = 3\nsizes = [4096]\ncomm_sms = "2:6:2"\n')
    assert load_config() == SweepConfig()
    config = load_config(file, {"seed": 5, "cluster": None, "policies": "adaptive"})
    assert (config.seed, config.sizes, config.comm_sms) == (5, (4096,), (2, 4, 6))
    assert config.policies == ("adaptive",)
    assert config.cluster is None


def test_a_size_on_the_command_line_replaces_a_shape_in_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[shape]\nm = 1\nn = 2\nk = 3\n")
    assert load_config(file).shape == {"m": 1, "n": 2, "k": 3}
    config = load_config(file, {"sizes": "2K"})
    assert (config.sizes, config.shape) == ((2048,), None)


def test_sizes_are_of_all_kernels_or_a_table_by_kernel(tmp_path: Path) -> None:
    listed = load_config(write(tmp_path, "sizes = [4096, 2048]"))
    assert {listed.sizes_of(kernel) for kernel in KERNELS} == {(2048, 4096)}
    file = write(tmp_path, '[sizes]\ngemm_ar = "4K,2K"\nmoe_dispatch_gemm = 131072\n')
    table = load_config(file)
    assert table.sizes_of("gemm_ar") == (2048, 4096)
    assert table.sizes_of("moe_dispatch_gemm") == (131072,)
    assert table.sizes_of("ag_gemm") is None
    assert load_config(file, {"sizes": "8K"}).sizes == (8192,)


@pytest.mark.parametrize(
    ("text", "values"), [('"0,0.5,1"', (0.0, 0.5, 1.0)), ("[1, 0.29, 1.0]", (0.29, 1.0)), ("2", (2.0,))]
)
def test_skews_are_text_or_numbers(text: str, values: tuple[float, ...], tmp_path: Path) -> None:
    assert load_config(write(tmp_path, f"skew = {text}")).skew == values


def test_a_pace_is_text_or_a_table(tmp_path: Path) -> None:
    rates = {"nvlink": 450.0, "network": 50.0}
    for text in ('pace = "nvlink=450,network=50"', "pace = {nvlink = 450, network = 50}"):
        assert load_config(write(tmp_path, text)).pace == rates
    file = write(tmp_path, "[pace]\nnetwork = 50\n")
    assert load_config(file, {"pace": "nvlink=900"}).pace == {"nvlink": 900.0}


def test_an_unknown_key_is_named_with_its_line_and_the_near_key(tmp_path: Path) -> None:
    file = write(tmp_path, "seed = 1\n\ncomm_sm = [2]\n")
    with pytest.raises(UsageError) as caught:
        load_config(file)
    assert str(caught.value) == f"unknown key 'comm_sm' in {file} line 3; did you mean 'comm_sms'?"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": "-2048"}, "size '-2048'"),
        ({"sizes": (0,)}, "sizes.list.0"),
        ({"sizes": {"gemm_ar": [0]}}, "sizes.table.gemm_ar.0"),
        ({"sizes": {"gemm_ra": [8]}}, "unknown kernel 'gemm_ra'; did you mean 'gemm_r"),
        ({"sizes": {}}, "sizes"),
        ({"skew": "1,-1"}, "list '1,-1' holds what is no number of 0 or more"),
        ({"skew": ""}, "list '' holds what is no number"),
        ({"skew": "0.005"}, "skew 0.005 is not a number of hundredths"),
        ({"skew": [float("nan")]}, "skew nan is not a number of hundredths"),
        ({"skew": 101}, "skew.0"),
        ({"skew": []}, "skew"),
        ({"skew": ["a"]}, "skew"),
        ({"skew": (1.0,), "shape": {"t": 8, "skew": 50}}, "a skew and a shape with a skew are both given"),
        ({"comm_sms": "2:"}, "axis '2:' is malformed"),
        ({"comm_sms": [1.5]}, "comm_sms.0"),
        ({"policies": "adaptiv"}, "unknown policy 'adaptiv'; did you mean 'adaptive'"),
        ({"platform": "hots"}, "unknown platform 'hots'; did you mean 'host'"),
        ({"transport": "tpc"}, "unknown transport 'tpc'; did you mean 'tcp'"),
        ({"network_memory": "devise"}, "unknown network memory 'devise'; did you mean 'device'"),
        ({"pace": "nvlnk=450"}, "unknown rate 'nvlnk' of pace; did you mean 'nvlink'"),
        ({"pace": "nvlink=0"}, "pace nvlink=0 is no rate"),
        ({"pace": 450}, "pace"),
        ({"nodes": 0}, "nodes"),
        ({"samples": -1}, "samples"),
        ({"seed": -1}, "seed"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": float("nan")}, "deadline_s"),
        ({"deadline_s": 1e300}, "deadline_s"),
        ({"samples": 10**9}, "samples"),
        ({"data": "yes"}, "data"),
        ({"cluster": ""}, "cluster"),
        ({"transport": ""}, "transport"),
        ({"sizes": 0.5}, "valid list"),
        ({"chunk_tiles": "four"}, "chunk_tiles"),
        ({"faults": ("slow",)}, "fault 'slow' is malformed"),
        ({"sizes": "8", "shape": {"m": 1, "n": 1, "k": 1}}, "both given"),
        ({"kernel": "gemm_ar"}, "unknown key 'kernel'"),
    ],
)
def test_bad_settings_are_one_line_usage_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_config(None, settings)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["seed = ", "seed = 'seven'\n", "sizes = [-1]\n", "sizes = []\n"])
def test_a_bad_file_is_named(text: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError, match=r"mine\.toml"):
        load_config(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no file .*none.toml"):
        load_config(tmp_path / "none.toml")


def test_repeated_names_and_sizes_count_once() -> None:
    config = load_config(None, {"kernels": "gemm_ar,gemm_ar", "sizes": [8, 4, 8]})
    assert (config.kernels, config.sizes) == (("gemm_ar",), (4, 8))


def test_shipped_figures_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    figure_3, figure_7 = load_config("fig3.toml"), load_config("fig7")
    assert set(figure_3.kernels) == set(KERNELS)
    assert (figure_3.sizes, figure_3.shape) == (None, None)
    assert figure_7.sizes == {"gemm_ar": (32768,), "moe_dispatch_gemm": (131072,)}
    assert figure_7.kernels == tuple(figure_7.sizes)


def test_fault_texts_round_trip() -> None:
    fault = parse_fault("network_slow@500usx2")
    assert fault == Fault("network_slow", 500.0, 2.0)
    assert parse_fault(fault.label) == fault
