import pytest

from mkbench.cli import machine
from mkbench.cli.machine import Finding


def test_names_what_is_there(mkbench):
    result = mkbench("doctor")
    for what in (
        "python",
        "g++",
        "make",
        "MPI library",
        "mpiexec",
        "cores",
        "memory",
        "/dev/shm",
        "GPU",
        "CuPy",
        "NVRTC",
    ):
        assert f"\n {what}" in result.stdout


def test_what_is_missing_comes_with_its_fix(mkbench, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = mkbench("doctor")
    assert result.exit_code == 3
    compiler = next(line for line in result.stdout.splitlines() if line.startswith(" g++"))
    assert "missing" in compiler
    assert "apt-get install g++" in compiler
    assert "apt-get install g++" in result.stderr


@pytest.mark.parametrize(
    ("missing", "sim", "host"), [((), True, True), (("MPI",), True, False), (("g++",), False, False)]
)
def test_a_platform_runs_if_all_it_needs_is_there(missing, sim, host):
    findings = [
        Finding("g++", "g++" not in missing, "", "sim, host"),
        Finding("MPI", "MPI" not in missing, "", "host"),
        Finding("make", False, "", "make sweep"),
    ]
    usable = machine.platforms(findings)
    assert (usable["sim"], usable["host"]) == (sim, host)


def test_without_mpi_the_simulator_still_runs(mkbench, monkeypatch):
    gone = Finding("mpiexec", False, "no mpiexec", "host", "pip install mpich")
    monkeypatch.setattr(machine, "_mpiexec", lambda: gone)
    result = mkbench("doctor")
    assert result.exit_code == 0
    assert "pip install mpich" in result.stdout
