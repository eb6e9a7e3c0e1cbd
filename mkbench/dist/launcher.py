"""Starting ranks: which mpiexec, what each MPI needs, and whether a launcher has started us already."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mkbench.build.errors import first_error
from mkbench.core.errors import EnvironmentProblem
from mkbench.dist import processes

DEFAULT_WORKER = "mkbench.dist.worker"
#: Set by every launcher of ranks; a nested mpiexec must not inherit them. HYDRA_* (as in HYDRA_HOST_FILE) is
#: what the user sets.
_LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "PMI2_", "OMPI_", "HYDI_", "MPI_LOCAL", "PRTE_")
#: (launcher, variable with the rank, variable with the number of ranks), the most specific first.
#: Slurm sets SLURM_NTASKS in a batch script too, where nobody has started ranks yet; the variable of the step
#: is set by `srun` alone.
_FOREIGN = (
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("PMIx", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Mpiexec:
    """An mpiexec and the arguments that it needs here."""

    path: Path
    flavour: str
    arguments: tuple[str, ...] = ()

    def command(self, ranks: int, worker: str, job: Path) -> list[str]:
        python = [sys.executable, "-m", worker, str(job)]
        return [str(self.path), *self.arguments, "-n", str(ranks), *python]


@dataclass(frozen=True, slots=True)
class ForeignLauncher:
    """A launcher other than mkbench that started this process as rank `rank` of `size`."""

    name: str
    rank: int
    size: int

    @property
    def outlives_ranks(self) -> bool:
        """Whether it waits for the other ranks when one has ended in the middle, instead of ending all."""
        return self.name in {"srun", "PMIx"}


def find_mpiexec() -> Mpiexec:
    """The mpiexec beside this Python (where the `mpich` wheel puts it), else the first on PATH.

    Raises EnvironmentProblem if there is none or it does not work.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise EnvironmentProblem("no mpiexec found", f"install MPI: {sys.executable} -m pip install mpich")
    try:
        answer = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblem(
            f"{found} does not work: {error}", "reinstall MPI: pip install mpich"
        ) from error
    # A step of several nodes cannot do without another one.
    is_in_step = "SLURM_STEP_NUM_TASKS" in os.environ and os.environ.get("SLURM_NNODES") == "1"
    return recognise(Path(found), answer.stdout, is_root=os.geteuid() == 0, is_in_step=is_in_step)


def recognise(path: Path, version: str, *, is_root: bool, is_in_step: bool = False) -> Mpiexec:
    """Which MPI an mpiexec belongs to, from what `--version` prints, and the arguments that it needs.

    `is_in_step`: this process is in a Slurm step, for whose processors another step would wait.
    """
    if "Open MPI" in version or "OpenRTE" in version or "prte" in version.lower():
        root = ("--allow-run-as-root",) if is_root else ()
        return Mpiexec(path, "Open MPI", ("--oversubscribe", *root))
    if "HYDRA" in version:
        return Mpiexec(path, "MPICH", ("-launcher", "fork") if is_in_step else ())
    return Mpiexec(path, "unknown")


def foreign_launcher(environment: Mapping[str, str] = os.environ) -> ForeignLauncher | None:
    """The launcher that started this process among several ranks, or None if mkbench starts its own."""
    for name, rank, size in _FOREIGN:
        if rank in environment and int(environment.get(size, 1)) > 1:
            if name == "mpiexec" and _is_srun(environment):
                name = "srun"
            return ForeignLauncher(name, int(environment[rank]), int(environment[size]))
    return None


def _is_srun(environment: Mapping[str, str]) -> bool:
    """Whether srun, with --mpi=pmi2, is behind PMI's variables: mpiexec in a Slurm job adds the host."""
    return "SLURM_STEP_NUM_TASKS" in environment and "PMI_HOSTNAME" not in environment


def require_agreement(launcher: ForeignLauncher, mpi_size: int) -> None:
    """Refuse to run when the launcher started several ranks and MPI sees another number: each would think
    it is alone.
    """
    if mpi_size == launcher.size:
        return
    raise EnvironmentProblem(
        f"{launcher.name} started {launcher.size} ranks, but MPI says that there are {mpi_size}",
        "the launcher belongs to another MPI than mpi4py: use the mpiexec beside this Python "
        f"({Path(sys.executable).parent}/mpiexec), or with Slurm `srun --mpi=pmi2`",
    )


class Launched:
    """A running mpiexec with its ranks. Every process of the job carries the job directory on its command
    line.
    """

    def __init__(
        self, mpiexec: Mpiexec, ranks: int, job: Path, stderr: Path, worker: str = DEFAULT_WORKER
    ) -> None:
        with stderr.open("wb") as errors:
            self._process = subprocess.Popen(
                mpiexec.command(ranks, worker, job),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
                start_new_session=True,
                preexec_fn=processes.die_with_parent,
            )
        assert self._process.stdout is not None
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdout, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._partial = b""
        self._job = job
        self._stderr = stderr

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """mpiexec's exit code once it has ended, negative for a signal."""
        return self._process.poll()

    def last_words(self) -> str:
        """The line on stderr, of mpiexec or a rank, that says best what failed; empty if there is none."""
        text = self._stderr.read_text(errors="replace").strip()
        return first_error(text) if text else ""

    def lines(self, timeout_s: float) -> Iterator[str]:
        """Complete lines of stdout; waits at most `timeout_s` seconds for the first."""
        while self._selector.select(timeout_s):
            data = os.read(self._stdout, 1 << 16)
            if not data:
                if self._process.poll() is None:
                    self._wait(timeout_s)
                return
            *complete, self._partial = (self._partial + data).split(b"\n")
            yield from (line.decode() for line in complete)
            timeout_s = 0.0

    def end(self) -> None:
        """End mpiexec and every rank on this machine; returns once they are gone.

        Raises EnvironmentProblem if a process survives SIGKILL (stuck in the operating system).
        """
        if self._process.poll() is None:
            processes.send(-self._process.pid, signal.SIGTERM)
            self._wait(1.0)
        processes.send(-self._process.pid, signal.SIGKILL)
        self._process.wait()
        left = processes.end_marked(str(self._job), timeout_s=3.0)
        self._selector.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if left:
            raise EnvironmentProblem(
                f"processes {left} of this job cannot be killed", "look at them with `ps`"
            )

    def _wait(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return


def _environment() -> dict[str, str]:
    """Our environment without an outer launcher's variables, and one thread per rank for numerical
    libraries.
    """
    # What a user sets for Open MPI, OMPI_MCA_... for one, is none of the launcher's own.
    kept = {
        name: value
        for name, value in os.environ.items()
        if "_MCA_" in name or not name.startswith(_LAUNCHER_PREFIXES)
    }
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        kept.setdefault(name, "1")
    return kept
