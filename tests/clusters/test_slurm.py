"""`mkbench` under a real Slurm of one machine: ranks that srun starts, and jobs that start their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import monotonic

import pytest
from daemons import require, wait_until
from readme import command_of_readme
from slurm import Slurm, running_slurm

pytestmark = pytest.mark.mpi

RUN = ("run", "gemm_ar", "--platform", "host", "--nodes", "2", "--ranks-per-node", "2", "--transport", "tcp")
SMALL = ("--size", "256", "--comm-sms", "2", "--samples", "1", "--deadline", "1")
SRUN = ("srun", "-n", "4", "--mpi=pmi2")
RIGHT = "all 262144 elements are right, on 4 ranks"
#: What is promised: everything ends this soon after a fault, once ranks have started on a busy machine.
START_S = 15.0
PROMISE_S = 10.0


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    require("slurmctld", "slurmd", "srun", "munged")
    if os.geteuid() != 0:
        pytest.skip("only root can start slurmd")
    with running_slurm() as slurm:
        yield slurm


def test_srun_as_in_readme(slurm: Slurm):
    done = slurm.run(*command_of_readme("srun"), *SMALL)
    assert done.returncode == 0, done.stderr
    # Rank 0 alone speaks.
    assert done.stdout.count(RIGHT) == 1
    assert done.stdout.count("gemm_ar 256 static 2") == 1
    assert done.stderr == ""


def test_ranks_that_do_not_find_each_other_are_refused(slurm: Slurm):
    done = slurm.run("srun", "-n", "4", "--mpi=none", "mkbench", *RUN, *SMALL)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("Error: srun started 4 ranks, but MPI says that there are 1") == 1
    assert "srun --mpi=pmi2" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("ranks", "arguments", "said"),
    [
        ("3", (), "srun started 3 ranks, but the plan has 2 nodes of 2 ranks"),
        # Only rank 0 looks there, while the others wait for it.
        ("4", ("--out", "state"), "state is not empty"),
    ],
)
def test_a_refusal_ends_all_ranks_with_its_code(
    ranks: str, arguments: tuple[str, ...], said: str, slurm: Slurm
):
    done = slurm.run("srun", "-n", ranks, "--mpi=pmi2", "mkbench", *RUN, *SMALL, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("Error: ") == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        # In `inputs` the others would wait for half a minute.
        ("kill:2:inputs", "has ended"),
        ("raise:1:verify", "rank 1: Error: this is a bug in mkbench: Boom: planted"),
        ("stop:1:launch 1", "made no progress in phase 'gather 1'"),
    ],
)
def test_a_lost_rank_ends_the_job(fault: str, said: str, slurm: Slurm, patched: list[str]):
    started = monotonic()
    done = slurm.run(*SRUN, *patched, *RUN, *SMALL, MKBENCH_TEST_FAULT=fault)
    assert monotonic() - started < START_S + PROMISE_S
    assert done.returncode != 0
    assert said in done.stderr
    wait_until(lambda: not slurm.jobs(), "Slurm keeps the job", PROMISE_S)


def test_a_signal_that_finds_rank_0_in_mpi_ends_it(slurm: Slurm, patched: list[str]):
    """Slurm would wait half a minute before it kills who does not end."""
    started = monotonic()
    done = slurm.run(*SRUN, "--kill-on-bad-exit", *patched, *RUN, *SMALL, MKBENCH_TEST_FAULT="kill:1:inputs")
    assert monotonic() - started < START_S + PROMISE_S
    assert done.returncode != 0
    wait_until(lambda: not slurm.jobs(), "Slurm keeps the job", PROMISE_S)


@pytest.mark.parametrize("launcher", ["", "mpiexec -n 4 "], ids=["mkbench", "mpiexec"])
def test_a_batch_job_starts_its_own_ranks(launcher: str, slurm: Slurm):
    said = slurm.run_batch(f"{launcher}mkbench {' '.join((*RUN, *SMALL))}")
    assert said.endswith("exit code 0\n"), said
    assert said.count(RIGHT) == 1


def test_a_step_of_one_task_starts_its_own_ranks(slurm: Slurm):
    """A second step would wait for the processors of the first."""
    done = slurm.run("srun", "-n", "1", "mkbench", *RUN, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(RIGHT) == 1
