"""Findings about GPUs, from what nvidia-smi prints on machines of several kinds."""

import os

import pytest

from mkbench.cli import gpus, machine
from mkbench.cli.links import pairs

HEADER = """\
Tue Nov  4 10:00:00 2025
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.159.03             Driver Version: 580.159.03     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
"""
ONE = "0, NVIDIA H200, 143771, Default, Disabled, 580.159.03\n"
FOUR = "".join(f"{i}, NVIDIA H100 80GB HBM3, 81559, Default, Disabled, 535.104.05\n" for i in range(4))
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tSYS\t0-51\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\t52-103\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\t52-103\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PEERS = """\
 \tGPU0\tGPU1\tGPU2\tGPU3\t
 GPU0\tX\tOK\tOK\tOK\t
 GPU1\tOK\tX\tOK\tOK\t
 GPU2\tOK\tOK\tX\tOK\t
 GPU3\tOK\tOK\tOK\tX\t

Legend:

  X    = Self
  OK   = Status Ok
"""
TWO_PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"
TWO_TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Installs an nvidia-smi that prints what is given, and removes variables that findings depend on."""
    for name in ("CUDA_LAUNCH_BLOCKING", "NCCL_NVLS_ENABLE", "CUDA_MODULE_LOADING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def install(query=ONE, header=HEADER, topology="", peers="", status=0):
        for name, text in (("query", query), ("header", header), ("topo-m", topology), ("p2p", peers)):
            (tmp_path / name).write_text(text)
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"""#!/bin/sh
            cd {tmp_path}
            case "$*" in
            *--query-gpu*) cat query; exit {status};;
            "topo -m") cat topo-m;;
            "topo -p2p r") cat p2p;;
            "") cat header;;
            *) exit 9;;
            esac
            """
        )
        program.chmod(0o755)

    return install


def found():
    return {finding.what: finding for finding in gpus.probe_gpus()}


def test_one_gpu(smi):
    smi()
    findings = found()
    assert findings["driver"].found == "580.159.03, CUDA 13.0"
    assert findings["GPU 0"].found == "NVIDIA H200, 132 SMs, 140 GiB"
    assert {what for what, finding in findings.items() if not finding.ok} <= {"MPS"}
    assert findings["NCCL_NVLS_ENABLE"].found.startswith("unset")
    assert "NVLink" not in findings


def test_equal_gpus_share_a_line_and_their_links_are_summed_up(smi):
    smi(FOUR, topology=TOPOLOGY, peers=PEERS)
    findings = found()
    assert findings["GPU 0-3"].found == "4 x NVIDIA H100 80GB HBM3, 132 SMs, 80 GiB"
    assert findings["NVLink"].found == "all pairs NV18"
    assert findings["peer access"].found == "all pairs"


def test_different_gpus_have_lines_of_their_own(smi):
    smi(ONE + "1, NVIDIA H100 PCIe, 81559, Default, Disabled, 580.159.03\n")
    findings = found()
    assert findings["GPU 0"].found.startswith("NVIDIA H200")
    assert findings["GPU 1"].found == "NVIDIA H100 PCIe, 80 GiB"
    assert findings["NVLink"].ok


def test_gpus_that_do_not_reach_each_other(smi):
    two = "".join(f"{i}, NVIDIA RTX, 24576, Default, [N/A], 570.1\n" for i in range(2))
    smi(two, topology=TWO_TOPOLOGY, peers=TWO_PEERS)
    findings = found()
    assert findings["NVLink"].found == "all pairs PHB"
    assert not findings["peer access"].ok
    assert findings["peer access"].found == "GPU 0 and GPU 1: the chipset does not support it"
    assert "--ranks-per-node 1" in findings["peer access"].fix
    # A rank a node needs no peers.
    assert "cuda" not in findings["peer access"].needed_for.split(", ")


def test_pairs_of_several_kinds():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSYS\nGPU1\tNV4\tX\tSYS\nGPU2\tSYS\tSYS\tX\n"
    assert pairs(text) == {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"}
    assert pairs("no devices") == {}


@pytest.mark.parametrize("mode", ["Exclusive_Process", "Prohibited"])
def test_a_compute_mode_that_keeps_ranks_out_comes_with_the_administrators_command(smi, mode):
    smi(f"0, NVIDIA H200, 143771, {mode}, Disabled, 580.159.03\n")
    finding = found()["compute mode"]
    assert not finding.ok
    assert mode in finding.found
    assert "nvidia-smi -i 0 -c DEFAULT" in finding.fix


def test_mig_is_refused(smi):
    smi("0, NVIDIA H200, 143771, Default, Enabled, 580.159.03\n")
    finding = found()["MIG"]
    assert not finding.ok
    assert "-mig 0" in finding.fix


@pytest.mark.parametrize(("value", "ok"), [("1", False), ("0", True), ("", True)])
def test_blocking_launches_are_refused(smi, monkeypatch, value, ok):
    smi()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    finding = found()["CUDA_LAUNCH_BLOCKING"]
    assert finding.ok == ok
    assert ok or "deadlock" in finding.found
    assert finding.fix == (None if ok else "unset CUDA_LAUNCH_BLOCKING")


def test_variables_are_shown(smi, monkeypatch):
    smi()
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    findings = found()
    assert (findings["NCCL_NVLS_ENABLE"].found, findings["CUDA_MODULE_LOADING"].found) == ("0", "EAGER")


@pytest.mark.parametrize("installed", [True, False])
def test_mps(smi, tmp_path, monkeypatch, installed):
    smi()
    if installed:
        (tmp_path / "nvidia-cuda-mps-control").touch(0o755)
    else:
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    finding = found()["MPS"]
    assert finding.ok == installed
    assert installed or "nvidia-compute-utils" in finding.fix
    # One rank a GPU needs none.
    assert "cuda" not in finding.needed_for.split(", ")


def test_an_old_driver_is_refused(smi):
    smi(header=HEADER.replace("13.0", "11.8"))
    finding = found()["driver"]
    assert not finding.ok
    assert "CUDA 12" in finding.fix


def test_what_nvidia_smi_complains_about_is_passed_on(smi):
    smi(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.1\n", status=18
    )
    (finding,) = gpus.probe_gpus()
    assert finding.what == "GPU"
    assert not finding.ok
    assert finding.found == "nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"
    assert "reboot" in finding.fix


def test_one_that_hangs_is_given_up(smi, tmp_path, monkeypatch):
    smi()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(gpus, "_TIMEOUT_S", 0.2)
    (finding,) = gpus.probe_gpus()
    assert finding.found == "nvidia-smi: no answer within 0.2 s"


@pytest.mark.parametrize("query", ["", "No devices were found\n"])
def test_no_gpu(smi, query):
    smi(query)
    (finding,) = gpus.probe_gpus()
    assert (finding.what, finding.found, finding.ok) == ("GPU", "none", False)


def test_without_nvidia_smi(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    (finding,) = gpus.probe_gpus()
    assert (finding.what, finding.found, finding.ok) == ("GPU", "none", False)


def test_doctor_shows_them_and_what_they_rule_out(smi, mkbench, monkeypatch):
    smi("0, NVIDIA H200, 143771, Exclusive_Process, Disabled, 580.159.03\n")
    result = mkbench("doctor")
    assert result.exit_code == 0
    assert "\n GPU 0" in result.stdout
    assert "nvidia-smi -i 0 -c DEFAULT" in " ".join(result.stdout.split())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    usable = machine.platforms(machine.probe())
    assert usable["sim"]
    assert not usable["cuda"]
