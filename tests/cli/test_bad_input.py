"""Every wrong word gets one line with what to do next and its exit code; no traceback, nothing on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SIM = ("--platform", "sim")

# words after `mkbench`, exit code, what the line must say
CASES = {
    "unknown command": (("swep",), 2, "did you mean 'sweep'?"),
    "unknown option": (("sweep", "--sizs", "2048"), 2, "--sizes"),
    "option without value": (("sweep", "--sizes"), 2, "--help"),
    "seed is no number": (("sweep", "--seed", "x"), 2, "'x' is not a valid integer"),
    "unknown kernel": (("sweep", "gem_ar", *SIM), 2, "did you mean 'gemm_ar'?"),
    "unknown kernel in run": (("run", "gem_ar", *SIM), 2, "did you mean 'gemm_ar'?"),
    "malformed axis": (("sweep", *SIM, "--comm-sms", "2:64:"), 2, "2:64:2"),
    "empty axis": (("sweep", *SIM, "--comm-sms", "64:2:2"), 2, "no values"),
    "too many communication SMs": (("sweep", *SIM, "--comm-sms", "132"), 2, "131"),
    "no communication SMs": (("sweep", *SIM, "--comm-sms", "0"), 2, "1 to 131"),
    "negative size": (("sweep", *SIM, "--sizes", "-5"), 2, "'-5' is not a positive number"),
    "negative size in run": (("run", "gemm_ar", *SIM, "--size", "-5"), 2, "'-5' is not a positive number"),
    "size that does not fit": (("sweep", *SIM, "--sizes", "1M"), 3, "smaller size"),
    "unknown cluster": (("sweep", *SIM, "--cluster", "1x8-h10"), 2, "did you mean '1x8-h100'?"),
    "unknown platform": (("sweep", "--platform", "simm"), 2, "did you mean 'sim'?"),
    "unknown policy": (("sweep", *SIM, "--policy", "adaptiv"), 2, "did you mean 'adaptive'?"),
    "unknown transport": (("sweep", "--platform", "host", "--transport", "udp"), 2, "tcp"),
    "unknown network memory": (("sweep", "--network-memory", "gpu"), 2, "device, host"),
    "network memory of sim": (("sweep", *SIM, "--network-memory", "device"), 2, "--platform cuda"),
    "unknown rate": (("sweep", "--pace", "nvlnk=450"), 2, "did you mean 'nvlink'?"),
    "no rate": (("sweep", "--pace", "nvlink=nan"), 2, "nvlink=450,network=50"),
    "pace of sim": (("sweep", *SIM, "--pace", "network=50"), 2, "hardware profile"),
    "NVLink of host": (("sweep", "--platform", "host", "--pace", "nvlink=450"), 2, "network=... alone"),
    "no such file": (("sweep", "--config", "nothing.toml"), 2, "nothing.toml"),
    "unknown key": (("sweep", "--config", "bad.toml"), 2, "did you mean 'sizes'?"),
    "malformed shape": (("run", "gemm_ar", *SIM, "--shape", "300"), 2, "m=4096,n=4096,k=512"),
    "unknown dimension": (("run", "gemm_ar", *SIM, "--shape", "m=1,n=1,q=1"), 2, "'q'"),
    "dimension twice": (("run", "gemm_ar", *SIM, "--shape", "m=1,m=2,n=1,k=1"), 2, "twice"),
    "endless deadline": (("run", "gemm_ar", *SIM, "--deadline", "1e300"), 2, "deadline"),
    "run of many points": (("run", "gemm_ar", *SIM, "--size", "512,1024"), 2, "mkbench sweep"),
    "unknown list": (("list", "kernel"), 2, "did you mean 'kernels'?"),
    "unknown figure": (("figures", "fig33"), 2, "did you mean 'fig3'?"),
    "no run yet": (("figures",), 2, "mkbench sweep"),
    "nothing to resume": (("sweep", *SIM, "--resume"), 2, "mkbench sweep"),
    "not a run": (("export", "."), 2, "not a run directory"),
    "unknown format": (("export", ".", "--format", "xls"), 2, "parquet"),
}


@pytest.mark.parametrize(("words", "code", "says"), CASES.values(), ids=CASES.keys())
def test_one_line(fake, mkbench, words, code, says):
    Path("bad.toml").write_text("size = [2048]\n")
    result = mkbench(*words)
    assert_one_line(result.exit_code, result.stdout, result.stderr, code, says)
    assert not fake.measured
    assert [path.name for path in Path().iterdir()] == ["bad.toml"]


def test_a_bug_is_called_a_bug(fake, mkbench, monkeypatch):
    def fail(point):
        raise RuntimeError("what\nis this")

    fake.behave = fail
    result = mkbench("run", "gemm_ar", *SIM)
    assert result.exit_code == 70
    assert result.stderr.count("\n") == 1
    assert "RuntimeError: what is this" in result.stderr
    assert "MKBENCH_TRACEBACK=1" in result.stderr
    monkeypatch.setenv("MKBENCH_TRACEBACK", "1")
    assert "Traceback" in mkbench("run", "gemm_ar", *SIM).stderr


def test_no_compiler(tmp_path):
    """The machine has neither g++ nor a library from before."""
    done = bare_machine(tmp_path, ("run", "gemm_ar", *SIM), {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert_one_line(done.returncode, done.stdout, done.stderr, 3, "g++")
    assert not (tmp_path / "work").exists() or not list((tmp_path / "work").iterdir())


def test_no_mpi(tmp_path):
    done = bare_machine(tmp_path, ("run", "gemm_ar", "--platform", "host"), {}, tools=("g++",))
    assert_one_line(done.returncode, done.stdout, done.stderr, 3, "mpi")
    assert not list((tmp_path / "work").iterdir())


def bare_machine(tmp_path, words, environ, tools=()):
    """Run mkbench where only `tools` are installed beside Python."""
    bin_dir, work = tmp_path / "bin", tmp_path / "work"
    bin_dir.mkdir()
    work.mkdir()
    for tool in tools:
        (bin_dir / tool).symlink_to(f"/usr/bin/{tool}")
    # sys.executable tells mkbench where to look for mpiexec; the packages stay those of this environment.
    script = f"import sys; sys.executable = {str(bin_dir / 'python')!r}; from mkbench.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=work,
        env={**os.environ, "PATH": str(bin_dir), "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_one_line(exit_code, stdout, stderr, code, says):
    assert exit_code == code, stderr
    assert stdout == ""
    assert stderr.startswith("Error: ")
    assert stderr.count("\n") == 1
    assert says.lower() in stderr.lower()


@pytest.mark.parametrize("words", [("list",), ("--help",)])
def test_output_that_cannot_be_written(words, tmp_path):
    mkbench = [sys.executable, "-c", "from mkbench.cli import main; main()", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(mkbench, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert_one_line(done.returncode, "", done.stderr, 3, "no space left")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *mkbench]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
