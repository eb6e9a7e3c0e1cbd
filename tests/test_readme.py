"""README's commands do what README says: all are run, in its order, on a small machine in seconds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# These make the environment that the tests already run in; `make sweep` is looked into below.
SET_UP = ("make ", ". .venv/bin/activate")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands():
    return [line for block in blocks("sh") for line in block.splitlines() if not line.startswith(SET_UP)]


def run(command, cwd):
    """Run a line of README as a person would after activating the environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        shlex.split(command),
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.mpi
def test_every_command_works(tmp_path):
    (toml,) = blocks("toml")
    (tmp_path / "sweep.toml").write_text(toml)
    for command in commands():
        done = run(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stderr == "", command
    assert (tmp_path / "pictures" / "fig3.png").is_file()
    assert (tmp_path / "first.csv").is_file()


def test_the_blocks_hold_what_this_test_believes():
    every = [line for block in blocks("sh") for line in block.splitlines()]
    assert {line.split()[0] for line in every} == {"make", "mkbench", "mpiexec", "."}
    assert len(commands()) >= 10


@pytest.mark.slow
def test_make_sweep_measures_and_draws(tmp_path):
    """What `make sweep` would run once it is set up."""
    plan = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "sweep"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    command = plan.stdout.splitlines()[-1]
    assert command.startswith(".venv/bin/mkbench sweep ")
    done = run(command.removeprefix(".venv/bin/"), tmp_path)
    assert done.returncode == 0, done.stderr
    (picture,) = re.findall(r"^fig3 +(\S+)$", done.stdout, re.MULTILINE)
    assert (tmp_path / picture).is_file()
    (records,) = re.findall(r"^records +(\S+)$", done.stdout, re.MULTILINE)
    assert (tmp_path / records).read_text().count("\n") > 30


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 70, 130])
def test_exit_codes_are_listed(code):
    assert f"\n| {code} | " in README
