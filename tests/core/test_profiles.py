from pathlib import Path

import pytest

from mkbench.core import resources
from mkbench.core.cluster import cluster_names, load_cluster
from mkbench.core.errors import UsageError
from mkbench.core.hardware import HardwareProfile, hardware_names, load_hardware
from mkbench.core.profile import Sourced, read_profile


def test_shipped_clusters() -> None:
    assert cluster_names() == [
        "1x4-h200-virtual", "1x8-h100", "1x8-h200", "2x8-h200-efa", "2x8-h200-ib", "host",
    ]  # fmt: skip
    for name in cluster_names():
        cluster = load_cluster(name)
        assert cluster.name == name
        assert cluster.nodes == 1 or cluster.network is not None


def test_the_simulated_hardware_has_every_rate_and_each_rate_a_source() -> None:
    assert hardware_names() == ["cpu", "h100", "h200"]
    fields = HardwareProfile.model_fields.keys() - {"name", "description"}
    for name in ("h100", "h200"):
        profile = load_hardware(name)
        for field in fields:
            entry = getattr(profile, field)
            assert isinstance(entry, Sourced)
            assert entry.source.startswith(
                ("measured on one H200", "vendor datasheet", "assumption: ", "derived: ")
            )
    assert load_hardware("h200").blocks == 132


def test_the_network_of_efa_does_not_order() -> None:
    for name, ordered in (("2x8-h200-ib", True), ("2x8-h200-efa", False)):
        network = load_cluster(name).network
        assert network is not None
        assert network.ordered is ordered
        assert network.gbps_per_gpu.value == 50


def test_a_rate_that_is_absent() -> None:
    cpu = load_hardware("cpu")
    assert cpu.get("peak_tflops") is None
    with pytest.raises(UsageError, match="'cpu' gives no peak_tflops"):
        cpu.rate("peak_tflops")
    assert load_hardware("h100").rate("nvlink_gbps") == 450


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="unknown cluster '1x8-h10'; did you mean '1x8-h100'"):
        load_cluster("1x8-h10")
    with pytest.raises(UsageError, match="unknown hardware 'h20'; did you mean 'h200'"):
        load_hardware("h20")


def test_resized_clusters_say_so() -> None:
    assert load_cluster("host").resized(2, 2).name == "2x2-host"
    assert load_cluster("host").resized(None, None).name == "host"
    assert load_cluster("host").resized(1, 2).name == "host"
    assert load_cluster("2x8-h200-ib").resized(4, None).name == "4x8-h200-ib"
    assert load_cluster("2x8-h200-ib").resized(4, None).ranks == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sms]\nvalue = 8\n", "sms.source"),
        (
            "[sms]\nvalue = 8\nsource = 'vendor datasheet'\n[sm]\nvalue = 1\nsource = 'x'",
            "unknown key 'sm'.*'sms'",
        ),
        ("[sms]\nvalue = -8\nsource = 'vendor datasheet'\n", "sms.value"),
        ("[sms", "is not TOML"),
    ],
)
def test_a_bad_profile_names_its_key(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hardware").mkdir()
    header = "" if text == "[sms" else "description = 'a bad one'\n"
    (tmp_path / "hardware" / "bad.toml").write_text(header + text)
    monkeypatch.setattr("mkbench.core.profile.configs_dir", lambda: tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        read_profile(HardwareProfile, "hardware", "hardware", "bad")
    assert "\n" not in str(caught.value)


def test_folders_are_found_in_the_checkout() -> None:
    assert (resources.configs_dir() / "clusters" / "host.toml").is_file()
    assert resources.kernels_dir().name in ("kernels", "_kernels")
