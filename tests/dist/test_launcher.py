from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mkbench.core.errors import EnvironmentProblem
from mkbench.dist import launcher
from mkbench.dist.launcher import ForeignLauncher, foreign_launcher, recognise, require_agreement

HYDRA = "HYDRA build details:\n    Version: 5.0.2\n"
OPEN_MPI = "mpiexec (OpenRTE) 4.1.6\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpiexec (Open MPI) 5.0.11\n"


@pytest.mark.parametrize("version", [OPEN_MPI, OPEN_MPI_5])
def test_open_mpi_must_be_told_that_it_may(version: str):
    assert recognise(Path("/m"), version, is_root=False).arguments == ("--oversubscribe",)
    assert recognise(Path("/m"), version, is_root=True).arguments == (
        "--oversubscribe",
        "--allow-run-as-root",
    )


def test_mpich_needs_nothing():
    found = recognise(Path("/m"), HYDRA, is_root=True)
    assert (found.flavour, found.arguments) == ("MPICH", ())


def test_mpich_in_a_step_of_slurm_must_not_start_another():
    found = recognise(Path("/m"), HYDRA, is_root=True, is_in_step=True)
    assert found.arguments == ("-launcher", "fork")


def test_ranks_inherit_what_the_user_sets_and_not_what_an_outer_launcher_sets(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("HYDRA_HOST_FILE", "/machines")
    monkeypatch.setenv("PMI_FD", "3")
    environment = launcher._environment()
    assert environment["HYDRA_HOST_FILE"] == "/machines"
    assert "PMI_FD" not in environment


def test_the_command_runs_the_worker_under_this_python():
    command = recognise(Path("/m"), HYDRA, is_root=True).command(3, "worker_module", Path("/job"))
    assert command == ["/m", "-n", "3", sys.executable, "-m", "worker_module", "/job"]


def make_mpiexec(folder: Path, body: str) -> None:
    script = folder / "mpiexec"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


def test_the_mpiexec_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "venv").mkdir()
    (tmp_path / "other").mkdir()
    make_mpiexec(tmp_path / "venv", "echo HYDRA")
    make_mpiexec(tmp_path / "other", "echo Open MPI")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert launcher.find_mpiexec().flavour == "MPICH"
    (tmp_path / "venv" / "mpiexec").unlink()
    assert launcher.find_mpiexec().flavour == "Open MPI"


def test_no_mpi_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem) as caught:
        launcher.find_mpiexec()
    assert "pip install mpich" in (caught.value.hint or "")


def test_a_broken_mpiexec_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_mpiexec(tmp_path, "exit 3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentProblem, match="does not work"):
        launcher.find_mpiexec()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, ForeignLauncher("mpiexec", 2, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ForeignLauncher("Open MPI", 1, 2)),
        (
            {"PMIX_RANK": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8"},
            ForeignLauncher("PMIx", 1, 8),
        ),
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"},
            ForeignLauncher("srun", 3, 4),
        ),
        (
            {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"},
            ForeignLauncher("srun", 3, 4),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_HOSTNAME": "n1", "SLURM_STEP_NUM_TASKS": "2"},
            ForeignLauncher("mpiexec", 1, 2),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ],
    ids=[
        "none",
        "mpich",
        "mpich-alone",
        "open-mpi",
        "srun-pmix",
        "srun",
        "srun-pmi2",
        "mpiexec-in-slurm",
        "sbatch-script",
    ],
)
def test_launchers_are_recognised(environment: dict[str, str], expected: ForeignLauncher | None):
    assert foreign_launcher(environment) == expected


def test_ranks_that_each_think_they_are_alone_are_refused():
    require_agreement(ForeignLauncher("srun", 0, 4), 4)
    with pytest.raises(EnvironmentProblem) as caught:
        require_agreement(ForeignLauncher("srun", 0, 4), 1)
    assert "srun started 4 ranks, but MPI says that there are 1" in str(caught.value)
    assert "--mpi=pmi2" in (caught.value.hint or "")
